"""Sitemaps by sitemaps.org: those that a robots.txt names, and which URLs a sitemap may list."""

import re
from typing import Final

from shared.domain.web.url import Location, locate, origin_of

MAX_ROBOTS_SITEMAPS: Final = 1_000
"""The sitemaps that are read from one robots.txt."""

WELL_KNOWN_SITEMAP: Final = "/sitemap.xml"
"""Where a site most likely has its sitemap if its robots.txt names none."""

_LINE: Final = re.compile(rb"^[ \t]*site-?map[ \t]*:[ \t]*([^\r\n#]+)", re.IGNORECASE | re.MULTILINE)


def sitemaps_of(robots: bytes, origin: str) -> tuple[Location, ...]:
    """Return the sitemaps that the robots.txt of `origin` names, in order, each once.

    The line belongs to no group of rules. Its URL should be absolute. A path from the root is resolved, since many
    files have one; any other relative text is no URL.
    """
    found: dict[str, Location] = {}
    for match in _LINE.finditer(robots.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"\n")):
        text = match[1].decode("utf-8", "replace").strip()
        location = locate(text, origin if text.startswith("/") else None)
        if location is not None:
            found.setdefault(location.url, location)
            if len(found) >= MAX_ROBOTS_SITEMAPS:
                break
    return tuple(found.values())


def listing_folder(sitemap: str) -> str:
    """Return how a URL must begin that the sitemap at the canonical URL `sitemap` may list by its own location.

    https://www.sitemaps.org/protocol.html#location: the same protocol, the same host, at or below its path.
    """
    path = sitemap.partition("?")[0]
    return path[: path.rindex("/") + 1]


def lists_whole_host(sitemap: str) -> bool:
    """Return True if the location of a sitemap lets it list every URL of its origin."""
    return listing_folder(sitemap) == origin_of(sitemap) + "/"
