"""Links that the rules of a crawl excluded: their counts by reason, and a bounded number of examples."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from shared.domain.crawl.scope_change import BY_SCOPE
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.web.robots import NotIndexed

NOFOLLOW: Final = "nofollow"
LINKS_PER_PAGE: Final = "max_links_per_page"
INVALID: Final = "invalid"
SITEMAP_LOCATION: Final = "sitemap_location"
"""The exclusion reason of a URL in a sitemap that may not list it. The URL is not below the sitemap's path, and the
robots.txt of the URL's host does not name the sitemap."""

UNLISTED: Final = "unlisted"
"""A special key in a page's counts of excluded links by reason. Its value is the number of the page's links that the
archive did not store."""

SCOPE: Final = "scope"
"""A special key in a page's counts of excluded links by reason. Its value is not a count but a revision of the spec:
the scope of this revision, or of a later one, judged the page's links. A missing key means revision 1."""

_NO_REASONS: Final = frozenset((UNLISTED, SCOPE))

OUTLINKS: Final = "outlinks"
"""The kind of a crawl's counts of pages with links that the scope excluded. It has two keys: `left_out` counts all
these pages. `unlisted` counts those of them with links that the archive did not store."""

REDISCOVERED: Final = "rediscovered"
"""The kind of a crawl's counts of what its last REDISCOVER command did. Its keys: `pages` counts the pages that were
read from the archive, `links` the links published from them, `queued_again` the pages queued to be fetched again."""

NOT_INDEXED: Final = "not_indexed"
"""The kind of a crawl's counts of pages that are kept out of lists, exports and items. The reason is a robots
directive, `media.stored` or `media.fetched`."""

MAX_EXAMPLES: Final = 20
"""At most this many examples per reason are reported for a page, stored for a crawl and partition, and shown."""

MAX_URL: Final = 300
"""An example is cut after this many characters, and CUT is then appended."""

_NOT_INDEXED: Final = frozenset(NotIndexed)
_SHOWN: Final = 100

CUT: Final = "\u2026"

_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal or that cannot be sent."""


class ExcludedLink(Struct, frozen=True):
    """An example of an excluded link, to be stored.

    `url`: the link. `reason`: why it was excluded. `host_id`, `fingerprint`: the page that has the link.
    """

    crawl_id: CrawlId
    reason: str
    url: str
    host_id: HostId
    fingerprint: Fingerprint


class ExcludedLinkExample(Struct, frozen=True):
    """An example of an excluded link for display. `url`: the link. `page`: the URL of the page that has it."""

    url: str
    page: str

    def is_of(self, url: str) -> bool:
        """Return True if this example was stored for the link `url`. Only the first MAX_URL characters are compared."""
        return self.url == kept(url)


def kept(url: str) -> str:
    """Return a URL in the form of a stored example: cut to MAX_URL characters, with CUT appended if it was longer."""
    return url if len(url) <= MAX_URL else url[:MAX_URL] + CUT


def written(reference: str) -> str:
    """Return a link, as it is written in a page, in the form of a stored example.

    It is cut like `kept`, and each character that can control a terminal is replaced by a space.
    """
    return kept(_UNSEEN.sub(" ", reference[: MAX_URL + 1]).strip())


def shown(url: str) -> str:
    """Return a URL in the form for one line of text: cut to 100 characters, with CUT appended if it was longer."""
    return url if len(url) <= _SHOWN else url[:_SHOWN] + CUT


def encoded(counts: Mapping[str, int]) -> str | None:
    """Return a page's counts of excluded links by reason as text for SQL, such as `depth 3;scheme 1`.

    Return None if there are none. `decoded` reads the text.
    """
    return ";".join([f"{reason} {n}" for reason, n in counts.items()]) or None


def losses(
    page: bool, truncated: str | None, left_out: str | None, reason: str | None
) -> Sequence[tuple[str, str, int]]:
    """Return the numbers that a fetch adds to its crawl's counts of missing content.

    The result has tuples of a kind of count, a key within this kind, and the number to add. For example,
    `("left_out", "depth", 3)` stands for three links that are deeper than the depth limit.

    - `page`: the fetch stored a page.
    - `truncated`: why the body is incomplete, None if it is complete.
    - `left_out`: the numbers of the page's excluded links by reason, as the text that `encoded` returned.
    - `reason`: the reason that is stored with the fetch.
    """
    counts = [("left_out", each, n) for each, n in decoded(left_out).items()] if left_out else []
    if left_out and may_be_admitted(left_out):  # Count the page itself once, whatever the number of its links.
        counts.append((OUTLINKS, "left_out", 1))
        if is_unlisted(decoded(left_out, every=True)):
            counts.append((OUTLINKS, UNLISTED, 1))
    # An incomplete body counts only if the page is in lists, exports and items.
    if not_indexed(reason):
        counts.append((NOT_INDEXED, str(reason), 1))
    elif page and truncated:
        counts.append(("truncated", truncated, 1))
    return counts


def not_indexed(reason: str | None) -> bool:
    """Return True if `reason`, as stored with a fetch, keeps its page out of lists, exports and items (NotIndexed)."""
    return reason in _NOT_INDEXED


def may_be_admitted(row: str | None) -> bool:
    """Return True if the scope excluded at least one link of a page, which another scope may admit.

    `row`: the page's counts of excluded links, as the text that `encoded` returned.
    """
    return bool(row) and not BY_SCOPE.isdisjoint(decoded(row))


def judged_by(row: str | None) -> int:
    """Return the earliest revision of the spec whose scope may have judged the page's links.

    A later revision may have judged the links instead. Return 1 if no revision is stored.

    `row`: the page's counts of excluded links, as the text that `encoded` returned.
    """
    return decoded(row, every=True).get(SCOPE, 1)


def is_unlisted(counts: Mapping[str, int]) -> bool:
    """Return True if the archive did not store all links of a page.

    `counts`: the page's counts of excluded links, as `decoded` returns them with `every=True`.
    """
    return counts.get(UNLISTED, 0) > 0


def decoded(row: str | None, *, every: bool = False) -> dict[str, int]:
    """Return a page's counts of excluded links by reason, from the text `row` that `encoded` returned.

    `every`: also return the entries UNLISTED and SCOPE, if they are stored. Their keys are no reasons.
    """
    counts: dict[str, int] = {}
    for entry in (row or "").split(";"):
        reason, _, n = entry.partition(" ")
        if n.isdigit() and (every or reason not in _NO_REASONS):
            counts[reason] = int(n)
    return counts
