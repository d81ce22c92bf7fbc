"""What a crawl's rules left out of the links of its pages: counts by reason, and a bounded number of examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.ids import CrawlId, Fingerprint, HostId

NOFOLLOW: Final = "nofollow"
LINKS_PER_PAGE: Final = "max_links_per_page"
"""Reasons beside those of the scope (shared.domain.scope.ExclusionReason)."""

MAX_EXAMPLES: Final = 20
"""Links that a crawl keeps of each reason in each partition, that a page reports and that a reader shows."""

MAX_URL: Final = 300
"""Characters of an example that are kept; CUT stands behind one that was longer."""

_SHOWN: Final = 100

CUT: Final = "\u2026"


@dataclass(frozen=True, slots=True)
class LeftOutLink:
    """An example to store: a link of the page (`host_id`, `fingerprint`) that was left out for this reason."""

    crawl_id: CrawlId
    reason: str
    url: str
    host_id: HostId
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class LeftOutExample:
    """An example as it is shown; `page` has the link."""

    url: str
    page: str

    def is_of(self, url: str) -> bool:
        """Return True if this is an example of the link `url`. Of long URLs only the beginning is compared."""
        return self.url == kept(url)


def kept(url: str) -> str:
    """Return a URL as an example keeps it."""
    return url if len(url) <= MAX_URL else url[:MAX_URL] + CUT


def shown(url: str) -> str:
    """Return a URL as a line of text shows it."""
    return url if len(url) <= _SHOWN else url[:_SHOWN] + CUT


def encoded(counts: Mapping[str, int]) -> str | None:
    """Return the counts of a page as its row keeps them, None if there are none."""
    return ";".join([f"{reason} {n}" for reason, n in counts.items()]) or None


def losses(page: bool, truncated: str | None, left_out: str | None) -> Sequence[tuple[str, str, int]]:
    """Return what a fetch adds to the tallies: kind, key and number. A body in part counts only of a page."""
    counts = [("left_out", reason, n) for reason, n in decoded(left_out).items()] if left_out else []
    if page and truncated:
        counts.append(("truncated", truncated, 1))
    return counts


def decoded(row: str | None) -> dict[str, int]:
    """Return the counts that a page's row keeps."""
    counts: dict[str, int] = {}
    for entry in (row or "").split(";"):
        reason, _, n = entry.partition(" ")
        if n.isdigit():
            counts[reason] = int(n)
    return counts
