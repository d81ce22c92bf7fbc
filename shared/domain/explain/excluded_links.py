"""Counts of excluded links and of other missing content, and a bounded number of examples of excluded links.

A page has a count for each exclusion reason, such as three links for the reason `depth`. Two more keys of a page's
counts are no reasons: UNLISTED and SCOPE.

A crawl has a count for each pair of a kind and a key. The kind says what is counted:

- `left_out` counts excluded links. The key is the exclusion reason, such as `depth`.
- `truncated` counts pages with an incomplete body. The key is why the body is incomplete, such as `length`.
- NOT_INDEXED counts pages that are in no list, export or item. The key is the reason, such as `noindex`.
- OUTLINKS counts pages that have links excluded by the scope. The keys are two fixed words.
- REDISCOVERED counts what the command REDISCOVER did to find excluded links again. The keys are three fixed words.
"""

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
"""A special key in a page's counts of excluded links. It counts the page's links that are missing in the archive.

A missing link is not always an excluded link. The archive stores only a limited amount of a page's links, so links that
the scope admits may be missing, too. After a change of the scope, the page must be fetched again to judge them."""

SCOPE: Final = "scope"
"""A special key in a page's counts of excluded links by reason. Its value is not a count but a revision of the spec.

The value is the revision at which the page's URL was leased. The worker judged the links at this revision or a later
one. A missing key means revision 1.
"""

_NO_REASONS: Final = frozenset((UNLISTED, SCOPE))

OUTLINKS: Final = "outlinks"
"""A kind of a crawl's counts. It counts pages, not links, under two keys:

- `left_out`: pages with at least one link that the scope excluded. A page counts once, however many such links it has.
- `unlisted`: how many of the pages under `left_out` have links that are missing in the archive.

For example, the scope excluded 5 links of one page and 3 links of another page. Then `left_out` is 2.
"""

REDISCOVERED: Final = "rediscovered"
"""A kind of a crawl's counts. It counts what the crawl's last REDISCOVER command did, under three keys:

- `pages`: pages that were read from the archive.
- `links`: links of these pages that were published.
- `queued_again`: pages that were queued to be fetched again.
"""

NOT_INDEXED: Final = "not_indexed"
"""A kind of a crawl's counts. It counts the pages that no list, export or item shows. The key is the reason, a value of
NotIndexed: a robots directive, or the media type of the page."""

MAX_EXAMPLES: Final = 20
"""The maximum number of examples of excluded links for one exclusion reason. The same maximum applies three times:

- to the examples that a worker reports from one page
- to the examples that are stored for a crawl in one partition
- to the examples that the API shows for a crawl
"""

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
    """Return the form in which an example of a link is stored. `reference`: the link as the page has it.

    Each character that can control a terminal is replaced by a space. A link over MAX_URL characters is cut, and CUT
    is appended.
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

    The result has these tuples of a kind, a key and the number to add:

    - `("left_out", "depth", 3)`, for example: three links were excluded for the reason `depth`. One for each reason.
    - `(OUTLINKS, "left_out", 1)`, if the scope excluded at least one link of the page.
    - `(OUTLINKS, UNLISTED, 1)`, if the scope excluded at least one link, and the archive did not store all links.
    - `(NOT_INDEXED, "noindex", 1)`, for example: `reason` keeps the page out of lists, exports and items.
    - `("truncated", "length", 1)`, for example: a page with an incomplete body was stored. This tuple is left out if
      `reason` keeps the page out of lists, exports and items.

    Arguments:

    - `page`: True if the fetch stored a page.
    - `truncated`: why the body is incomplete, such as `length`. None if the body is complete.
    - `left_out`: the page's counts as text, such as `depth 3;unlisted 2` (`encoded`). None if there are none.
    - `reason`: the reason in the row of the fetch, such as `http_404` or `noindex`, None without one.
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


def earliest_judging_revision(row: str | None) -> int:
    """Return the earliest revision of the spec whose scope can have judged the page's links.

    For example, 3 means that a worker judged the links at revision 3 or a later one. The result is the revision that is
    stored with the page's counts (key SCOPE), or 1 if no revision is stored.

    `row`: the page's counts of excluded links, as the text that `encoded` returned.
    """
    return decoded(row, every=True).get(SCOPE, 1)


def is_unlisted(counts: Mapping[str, int]) -> bool:
    """Return True if a page has links that the archive did not store.

    The worker that fetched the page counted such links under the key UNLISTED of `counts`. For example,
    `is_unlisted({"depth": 3, "unlisted": 2})` returns True, and `is_unlisted({"depth": 3})` returns False.

    `counts`: the page's counts of excluded links, as `decoded` returns them with `every=True`.
    """
    return counts.get(UNLISTED, 0) > 0


def decoded(row: str | None, *, every: bool = False) -> dict[str, int]:
    """Return the numbers that are stored for a page in the text `row`. `encoded` made this text.

    For example, `row` is `depth 3;unlisted 2;scope 7`:

    - Without `every`, return only the counts of excluded links by reason: `{"depth": 3}`.
    - With `every`, return all entries: `{"depth": 3, "unlisted": 2, "scope": 7}`.

    In the example, 3 links were excluded because of their depth, and 2 links are not in the archive (UNLISTED). The
    value 7 of SCOPE is no count: it is the revision of the spec that judged the links.
    """
    counts: dict[str, int] = {}
    for entry in (row or "").split(";"):
        reason, _, n = entry.partition(" ")
        if n.isdigit() and (every or reason not in _NO_REASONS):
            counts[reason] = int(n)
    return counts
