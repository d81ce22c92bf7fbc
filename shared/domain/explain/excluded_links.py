"""Links of pages that a crawl's rules excluded: counts by reason, and a bounded number of examples."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.ids import CrawlId, Fingerprint, HostId

NOFOLLOW: Final = "nofollow"
LINKS_PER_PAGE: Final = "max_links_per_page"
INVALID: Final = "invalid"
"""Reasons besides those of the scope (shared.domain.crawl.scope.ExclusionReason)."""

MAX_EXAMPLES: Final = 20
"""The most links that a crawl keeps per reason and partition, that a page reports, and that are shown."""

MAX_URL: Final = 300
"""Characters of an example that are kept. CUT marks a longer one."""

_SHOWN: Final = 100

CUT: Final = "\u2026"

_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal or that cannot be sent."""


@dataclass(frozen=True, slots=True)
class ExcludedLink:
    """An example to store: a link of the page (`host_id`, `fingerprint`) that was excluded for this reason."""

    crawl_id: CrawlId
    reason: str
    url: str
    host_id: HostId
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class ExcludedLinkExample:
    """An example for display. `page` has the link."""

    url: str
    page: str

    def is_of(self, url: str) -> bool:
        """Return True if this is an example of the link `url`. Of long URLs only the beginning is compared."""
        return self.url == kept(url)


def kept(url: str) -> str:
    """Return a URL in the form in which an example stores it."""
    return url if len(url) <= MAX_URL else url[:MAX_URL] + CUT


def written(reference: str) -> str:
    """Return a reference as an example, without characters that control a terminal."""
    return kept(_UNSEEN.sub(" ", reference[: MAX_URL + 1]).strip())


def shown(url: str) -> str:
    """Return a URL in the form in which a line of text shows it."""
    return url if len(url) <= _SHOWN else url[:_SHOWN] + CUT


def encoded(counts: Mapping[str, int]) -> str | None:
    """Return the counts of a page in the form in which its row stores them, or None if there are none."""
    return ";".join([f"{reason} {n}" for reason, n in counts.items()]) or None


def losses(page: bool, truncated: str | None, left_out: str | None) -> Sequence[tuple[str, str, int]]:
    """Return what a fetch adds to the tallies: kind, key and number. An incomplete body counts only for a page."""
    counts = [("left_out", reason, n) for reason, n in decoded(left_out).items()] if left_out else []
    if page and truncated:
        counts.append(("truncated", truncated, 1))
    return counts


def decoded(row: str | None) -> dict[str, int]:
    """Return the counts stored in a page's row."""
    counts: dict[str, int] = {}
    for entry in (row or "").split(";"):
        reason, _, n = entry.partition(" ")
        if n.isdigit():
            counts[reason] = int(n)
    return counts
