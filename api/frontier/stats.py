"""Counts of the work of one master's owners since the process started. Work is counted after its commit.

The sum over all masters is the count of the cluster, wherever partitions are owned.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from api.frontier.dispatch_crawls import DispatchCrawls
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.frontier.store_model import Changes, DeadLetterRow, DiscoveryResult
from shared.domain.ops.counts import OTHER, CrawlCounts, Histogram, Key, status_class
from shared.domain.web.fetch import FailureKind
from shared.ports.broker import Delivered

_LAGS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_KNOWN: Final = {str(kind) for kind in (*FailureKind, *ExclusionReason)} | {
    "host_unreachable", "max_pages_per_host", "poison", "depth", "denied", "other",
}  # fmt: skip


class TransactionKind(StrEnum):
    """What an owner's transaction is for, as a label of metrics."""

    OUTCOMES = "outcomes"
    DISCOVERIES = "discoveries"
    DISPATCH = "dispatch"
    GRANT = "grant"
    COMMAND = "command"
    UPKEEP = "upkeep"


class OwnerStats(Struct):
    """What the owners of one master have done since its start, for metrics.

    - `crawls`: numbers of responses by class of status, per crawl.
    - `reasons`: why URLs failed, were retried or excluded, and why hosts could not be visited, over all crawls.
    - `links`: numbers of discovered links by result.
    - `answers`: numbers of answers to workers' questions by type; `none` if no answer was sent.
    - `refused`: times that the broker refused a shard, because an earlier one was in the same slot.
    - `unpublished`: times that a shard was not published, because the broker was unavailable.
    - `replaced`: shards that the sweep dropped and published again.
    - `called_back`: leases that were ended when a worker asked to begin, because the worker would have had to wait for
      long. Their URLs went back to the queue.
    - `items_missed`: messages of items that were deleted before they were read.
    - `item_lag`: how long messages of items waited in the broker until their items were in the table.
    - `firings`: due times of schedules, by outcome. `firing_delay`: how late they fired.
    - `discarded`: fetches that changed nothing, by reason (`late` or `deleted`).
    """

    crawls: CrawlCounts = field(default_factory=CrawlCounts)
    reasons: Counter[Key] = field(default_factory=Counter)
    transactions: dict[TransactionKind, Histogram] = field(
        default_factory=lambda: {work: Histogram() for work in TransactionKind}
    )
    report_lag: dict[str, Histogram] = field(
        default_factory=lambda: {kind: Histogram(_LAGS_S) for kind in ("outcome", "discovery")}
    )
    links: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    firings: Counter[str] = field(default_factory=Counter)
    firing_delay: Histogram = field(default_factory=lambda: Histogram(_LAGS_S))
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
    items_dropped: Counter[str] = field(default_factory=Counter)
    items_missed: int = 0
    item_lag: Histogram = field(default_factory=lambda: Histogram(_LAGS_S))

    def applied(self, kind: str, reports: Sequence[Delivered], now_ns: int) -> None:
        """Record how long the reports waited in the broker until they were applied.

        `now_ns`: this process's Unix time in ns.
        """
        lag = self.report_lag[kind]
        for report in reports:
            lag.observe(max(0, now_ns - report.at_ns) / 1e9)

    def changed(self, changes: Changes, crawls: DispatchCrawls, now: float) -> None:
        """Count a committed transaction: HTTP statuses, reasons of URLs, stale outcomes and dead letters."""
        for (crawl_id, kind, key), n in changes.tallies.items():
            if kind != "status":
                self.reasons[kind, bounded_reason(key)] += n
                continue
            crawl = crawls.find(crawl_id)
            counts = self.crawls.others() if crawl is None else self.crawls.of(crawl_id, crawl.name, now)
            counts[kind, status_class(int(key))] += n
        self.stale += sum(counters.get("stale", 0) for counters in changes.counters.values())
        self.dead_lettered(changes.dead_letters)

    def discovered(self, result: DiscoveryResult, letters: Sequence[DeadLetterRow]) -> None:
        """Count committed discoveries: their links by result, and their dead letters."""
        self.links.update(new=result.new, known=result.known, refused=result.refused, repeated=result.repeats)
        self.gaps += result.gaps
        self.dead_lettered(letters)

    def dead_lettered(self, letters: Sequence[DeadLetterRow]) -> None:
        """Count stored dead letters by kind."""
        self.dead_letters.update(letter.kind for letter in letters)


def bounded_reason(reason: str) -> str:
    """Return a reason as a label of metrics, with a bounded number of values.

    An HTTP status becomes its class, such as `http_4xx`. An unknown text becomes OTHER.
    """
    about, http, status = reason.partition("http_")
    if http and status.isdigit():
        return f"{about}http_{status_class(int(status))}" if about in ("", "robots_") else OTHER
    return reason if reason.removeprefix("robots_") in _KNOWN else OTHER
