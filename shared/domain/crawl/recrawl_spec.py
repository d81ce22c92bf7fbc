"""The section `recrawl` of a crawl spec: when stored pages are fetched again, and what counts as a change.

Times are in seconds. Without the section, or with the policy `never`, a page is fetched once.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.crawl.described import described

HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
YEAR_S: Final = 366 * DAY_S
Interval = Annotated[float, Meta(ge=1.0, le=YEAR_S)]


class RecrawlPolicy(StrEnum):
    """The policy for the wait between two fetches of a page.

    NEVER: a page is fetched once. FIXED: each page is fetched again after `min_s` seconds. ADAPTIVE: a page waits
    between `min_s` and `max_s` seconds, and pages that change often wait less.
    """

    NEVER = "never"
    FIXED = "fixed"
    ADAPTIVE = "adaptive"


class Compare(StrEnum):
    """What is compared with the previous fetch of a page, to decide if the page has changed.

    PAYLOAD: the body. TEXT: the visible text. ITEMS: the extracted items.
    """

    PAYLOAD = "payload"
    TEXT = "text"
    ITEMS = "items"


class RecrawlRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of `recrawl.by_pattern`: another interval for the URLs that match a pattern.

    The first rule that matches applies.
    """

    match: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1000)],
        described(
            "A regular expression (RE2) that the canonical URL of the page must match.", "^https://example\\.org/news/"
        ),
    ]
    policy: Annotated[
        RecrawlPolicy | None, described("The policy for these pages. Null: that of `recrawl`.", "never")
    ] = None
    min_s: Annotated[
        Interval | None, described("The shortest time between two fetches in seconds. Null: that of `recrawl`.", 3600.0)
    ] = None
    max_s: Annotated[
        Interval | None, described("The longest time between two fetches in seconds. Null: that of `recrawl`.", 86400.0)
    ] = None


class Recrawl(msgspec.Struct, frozen=True, kw_only=True):
    """The section `recrawl` of a crawl spec: when stored pages are fetched again."""

    policy: Annotated[
        RecrawlPolicy,
        described(
            "`never`: a page is fetched once. `fixed`: every page is fetched again `min_s` after its last "
            "fetch. `adaptive`: pages that change often are fetched more often, within `requests_per_day`."
        ),
    ] = RecrawlPolicy.NEVER
    min_s: Annotated[Interval, described("The shortest time between two fetches of a page in seconds.", 86400.0)] = (
        DAY_S
    )
    max_s: Annotated[
        Interval,
        described(
            "The longest time between two fetches of a page in seconds. Only `adaptive` waits longer than `min_s`.",
            2592000.0,
        ),
    ] = 30 * DAY_S
    requests_per_day: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        described(
            "The number of requests a day that `adaptive` spends on stored pages. It must be set for "
            "`adaptive`, and only for it.",
            10000,
        ),
    ] = None
    by_pattern: Annotated[
        Annotated[tuple[RecrawlRule, ...], Meta(max_length=100)],
        described("Other intervals for URLs that match a pattern. The first rule that matches applies."),
    ] = ()
    compare: Annotated[
        Compare,
        described(
            "What must be equal for a page to count as unchanged: its `payload`, its visible `text`, or "
            "the `items` that the rules extract. An answer 304 always counts as unchanged."
        ),
    ] = Compare.PAYLOAD
    keep_versions: Annotated[
        Annotated[int, Meta(ge=1, le=1000)],
        described("The number of versions of a page that are listed, the newest included.", 10),
    ] = 10
    share: Annotated[
        Annotated[float, Meta(ge=0.01, le=1.0)],
        described("The part of the requests to a host that goes to stored pages while new URLs wait, too.", 0.5),
    ] = 0.5

    @property
    def used(self) -> bool:
        """True if the policy is not `never`: then the crawl fetches stored pages again.

        Such a crawl goes on when all its URLs have been fetched.
        """
        return self.policy is not RecrawlPolicy.NEVER
