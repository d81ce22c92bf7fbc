"""What a worker process did since it started: counted as it happens, read when somebody asks."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from shared.domain.fetch import FailureKind
from shared.domain.frontier import End
from shared.domain.tally import OTHER, CrawlCounts, Histogram, Key, status_class
from shared.wire.messages import UrlOutcome

FAILED: Final = "failed"
"""Stands for the status of a fetch that got no answer."""

_WAITS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_KINDS: Final = frozenset(map(str, FailureKind))


@dataclass(slots=True)
class Tally:
    """`pages` and `bytes`: answers archived and their payload; `malformed`: shards that could not be read;
    `in_flight`: requests under way. `crawls`, by
    kind: `status` of fetches, `denied` by which rule, `bytes`, `items`, `refused_items` by the reason. `failures` by
    kind; `waits`: for hosts' rest, seconds. `visits` by how they ended; `reports` and `links`: acknowledged by the
    broker; `flushes` in seconds."""

    pages: int = 0
    bytes: int = 0
    malformed: int = 0
    in_flight: int = 0
    crawls: CrawlCounts = field(default_factory=CrawlCounts)
    fetches: Histogram = field(default_factory=Histogram)
    failures: Counter[str] = field(default_factory=Counter)
    waits: Histogram = field(default_factory=lambda: Histogram(_WAITS_S))
    visits: Counter[str] = field(default_factory=Counter)
    reports: Counter[str] = field(default_factory=Counter)
    links: int = 0
    flushes: Histogram = field(default_factory=Histogram)

    def settled(self, counts: Counter[Key], outcome: UrlOutcome) -> None:
        """A URL has its outcome; `counts` are its crawl's."""
        if outcome.end == End.DENIED:
            counts["denied", outcome.reason] += 1
            return
        self.fetches.observe(outcome.latency_ms / 1000)
        if outcome.end == End.ANSWERED:
            counts["status", status_class(outcome.status)] += 1
            counts["bytes", ""] += outcome.size
        else:
            counts["status", FAILED] += 1
            self.failures[outcome.reason if outcome.reason in _KINDS else OTHER] += 1
