"""Links of pages that a crawl's rules excluded: their counts by reason, and a bounded number of examples."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.crawl.scope_change import BY_SCOPE
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.web.robots import NotIndexed

NOFOLLOW: Final = "nofollow"
LINKS_PER_PAGE: Final = "max_links_per_page"
INVALID: Final = "invalid"
SITEMAP_LOCATION: Final = "sitemap_location"
"""Reasons besides those of the scope (shared.domain.crawl.scope.ExclusionReason)."""

UNLISTED: Final = "unlisted"
"""Not a reason: a page's number of links that the scope judged and that its outlinks record does not have. It travels
and is stored with the reasons."""

SCOPE: Final = "scope"
"""Not a reason: the revision by whose scope, or a later one, the links of a page were judged. Stored if it is not the
first."""

_NO_REASONS: Final = frozenset((UNLISTED, SCOPE))

OUTLINKS: Final = "outlinks"
"""The tally of pages with links that the scope left out (`left_out`), and of those whose record lacks links
(`unlisted`)."""

REDISCOVERED: Final = "rediscovered"
"""The tally of what was found after the last wider scope: `pages` read from the archive, `links`, and pages
`queued_again`."""

NOT_INDEXED: Final = "not_indexed"
"""The tally of pages that robots directives, `media.stored` or `media.fetched` keep out of lists, exports and items."""

MAX_EXAMPLES: Final = 20
"""The most examples of one reason that a crawl keeps per partition, that a page reports, and that are shown."""

MAX_URL: Final = 300
"""Characters of an example that are kept. CUT marks a longer one."""

_NOT_INDEXED: Final = frozenset(NotIndexed)
_SHOWN: Final = 100

CUT: Final = "\u2026"

_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal or that cannot be sent."""


@dataclass(frozen=True, slots=True)
class ExcludedLink:
    """An example to store: a link that was excluded for `reason`, and the page with it (`host_id`, `fingerprint`)."""

    crawl_id: CrawlId
    reason: str
    url: str
    host_id: HostId
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class ExcludedLinkExample:
    """An example of an excluded link for display: its URL, and the URL of the `page` that has the link."""

    url: str
    page: str

    def is_of(self, url: str) -> bool:
        """Return True if this example was stored for the link `url`. Only the beginning of a long URL is compared."""
        return self.url == kept(url)


def kept(url: str) -> str:
    """Return a URL as an example stores it: cut to MAX_URL characters, with CUT at the end if it was longer."""
    return url if len(url) <= MAX_URL else url[:MAX_URL] + CUT


def written(reference: str) -> str:
    """Return a link as written in a page in the form of a stored example, without characters that steer a terminal."""
    return kept(_UNSEEN.sub(" ", reference[: MAX_URL + 1]).strip())


def shown(url: str) -> str:
    """Return a URL as a line of text shows it: cut to 100 characters, with CUT at the end if it was longer."""
    return url if len(url) <= _SHOWN else url[:_SHOWN] + CUT


def encoded(counts: Mapping[str, int]) -> str | None:
    """Return a page's counts of excluded links by reason as stored text, such as `depth 3;scheme 1`. None if empty."""
    return ";".join([f"{reason} {n}" for reason, n in counts.items()]) or None


def losses(
    page: bool, truncated: str | None, left_out: str | None, reason: str | None
) -> Sequence[tuple[str, str, int]]:
    """Return what a fetch adds to its crawl's tallies of losses, as (kind, key, number).

    These are excluded links by reason, the cause of an incomplete body, and why a page is not indexed. An incomplete
    body counts only for a page. `left_out`: as `encoded` returns it. `reason`: that of the stored fetch.

    A page with links that the scope left out counts once in OUTLINKS.
    """
    counts = [("left_out", each, n) for each, n in decoded(left_out).items()] if left_out else []
    if left_out and may_be_admitted(left_out):
        counts.append((OUTLINKS, "left_out", 1))
        if is_unlisted(decoded(left_out, every=True)):
            counts.append((OUTLINKS, UNLISTED, 1))
    if not_indexed(reason):
        counts.append((NOT_INDEXED, str(reason), 1))
    elif page and truncated:
        counts.append(("truncated", truncated, 1))
    return counts


def not_indexed(reason: str | None) -> bool:
    """Return True if the stored reason of a fetch is that its page is in no list (NotIndexed)."""
    return reason in _NOT_INDEXED


def may_be_admitted(row: str | None) -> bool:
    """Return True if another scope may admit links of a page, by the stored text of its excluded links."""
    return bool(row) and not BY_SCOPE.isdisjoint(decoded(row))


def judged_by(row: str | None) -> int:
    """Return the revision of the spec that judged the links of a page, from the stored text of its excluded links."""
    return decoded(row, every=True).get(SCOPE, 1)


def is_unlisted(counts: Mapping[str, int]) -> bool:
    """Return True if the outlinks record of a page with these counts does not have all of its links."""
    return counts.get(UNLISTED, 0) > 0


def decoded(row: str | None, *, every: bool = False) -> dict[str, int]:
    """Return a page's counts of excluded links by reason from the stored text (see `encoded`).

    `every`: return also its number of links that are not in its outlinks record, as UNLISTED, and SCOPE.
    """
    counts: dict[str, int] = {}
    for entry in (row or "").split(";"):
        reason, _, n = entry.partition(" ")
        if n.isdigit() and (every or reason not in _NO_REASONS):
            counts[reason] = int(n)
    return counts
