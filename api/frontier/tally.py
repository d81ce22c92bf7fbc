"""What the owners of one master did since it started: counted where it is committed, read when somebody asks.

Everything here is this process's own work, so the sum over masters is the cluster's, whoever owns what.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from api.frontier.crawls import Crawls
from shared.domain.fetch import FailureKind
from shared.domain.ledger import Changes, DeadLetter, Found
from shared.domain.scope import ExclusionReason
from shared.domain.tally import OTHER, CrawlCounts, Histogram, Key, status_class
from shared.ports.broker import Delivered

_LAGS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_KNOWN: Final = {str(kind) for kind in (*FailureKind, *ExclusionReason)} | {
    "host_unreachable", "max_pages_per_host", "poison", "depth", "denied", "other",
}  # fmt: skip


class Work(StrEnum):
    """What a transaction of an owner is for."""

    OUTCOMES = "outcomes"
    DISCOVERIES = "discoveries"
    DISPATCH = "dispatch"
    GRANT = "grant"
    COMMAND = "command"
    UPKEEP = "upkeep"


@dataclass(slots=True)
class FrontierTally:
    """The counts. `crawls`: statuses of answers, per crawl; `reasons`: why URLs failed, were tried again or excluded
    and hosts could not be visited, of all crawls; `links`: what became of them. `items_missed`: messages of items that
    were gone before they were read; `item_lag`: from when the broker stored one until its items were in the table.
    `discarded`: fetches that changed nothing, by reason (see `Draft`)."""

    crawls: CrawlCounts = field(default_factory=CrawlCounts)
    reasons: Counter[Key] = field(default_factory=Counter)
    transactions: dict[Work, Histogram] = field(default_factory=lambda: {work: Histogram() for work in Work})
    report_lag: dict[str, Histogram] = field(
        default_factory=lambda: {kind: Histogram(_LAGS_S) for kind in ("outcome", "discovery")}
    )
    links: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    shards: int = 0
    urls: int = 0
    refused: int = 0
    unpublished: int = 0
    replaced: int = 0
    called_back: int = 0
    expired: int = 0
    stale: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    reloads: int = 0
    new_streams: int = 0
    items_stored: int = 0
    items_missed: int = 0
    item_lag: Histogram = field(default_factory=lambda: Histogram(_LAGS_S))

    def applied(self, kind: str, reports: Sequence[Delivered], now_ns: int) -> None:
        """Reports are in; `now_ns` and their times are Unix, ours and the broker's."""
        lag = self.report_lag[kind]
        for report in reports:
            lag.observe(max(0, now_ns - report.at_ns) / 1e9)

    def changed(self, changes: Changes, crawls: Crawls, now: float) -> None:
        """An owner's decisions are in."""
        for (crawl_id, kind, key), n in changes.tallies.items():
            if kind != "status":
                self.reasons[kind, bounded_reason(key)] += n
                continue
            crawl = crawls.find(crawl_id)
            counts = self.crawls.others() if crawl is None else self.crawls.of(crawl_id, crawl.name, now)
            counts[kind, status_class(int(key))] += n
        self.stale += sum(counters.get("stale", 0) for counters in changes.counters.values())
        self.buried(changes.dead_letters)

    def found(self, found: Found, letters: Sequence[DeadLetter]) -> None:
        """Discoveries are in."""
        self.links.update(new=found.new, known=found.known, refused=found.refused, repeated=found.repeats)
        self.gaps += found.gaps
        self.buried(letters)

    def buried(self, letters: Sequence[DeadLetter]) -> None:
        """Dead letters were kept."""
        self.dead_letters.update(letter.kind for letter in letters)


def bounded_reason(reason: str) -> str:
    """The reason, if it is one of ours, its status by class; OTHER for what servers or workers made up."""
    about, http, status = reason.partition("http_")
    if http and status.isdigit():
        return f"{about}http_{status_class(int(status))}" if about in ("", "robots_") else OTHER
    return reason if reason.removeprefix("robots_") in _KNOWN else OTHER
