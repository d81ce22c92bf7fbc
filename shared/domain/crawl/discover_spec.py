"""The section `discover` of a crawl spec: sources of URLs besides the links of pages."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.domain.crawl.described import described


class Sitemaps(StrEnum):
    """Which sitemaps of a host are read.

    NONE: none. ROBOTS: those that robots.txt names. WELL_KNOWN: also `/sitemap.xml` if robots.txt names none.
    """

    NONE = "none"
    ROBOTS = "robots"
    WELL_KNOWN = "well-known"


class Discover(msgspec.Struct, frozen=True, kw_only=True):
    """The section `discover` of a crawl spec: sources of URLs besides the links of pages. By default there are none."""

    sitemaps: Annotated[
        Sitemaps,
        described(
            "Which sitemaps of the crawl's hosts are read: `none`, `robots` those that robots.txt names, `well-known` "
            "also `/sitemap.xml` where robots.txt names none."
        ),
    ] = Sitemaps.NONE
    feeds: Annotated[bool, described("True: read the RSS and Atom feeds that pages name, and queue their entries.")] = (
        False
    )
    max_quiet_fetches: Annotated[
        Annotated[int, Meta(ge=1, le=16)],
        described(
            "With `recrawl`: after this number of fetches in a row that found nothing new, a sitemap or feed is not "
            "read again.",
            10,
        ),
    ] = 10

    @property
    def any(self) -> bool:
        """True if the crawl reads sitemaps or feeds."""
        return self.feeds or self.sitemaps is not Sitemaps.NONE
