"""The counts of a worker process since its start. Metrics and the worker's status are read from them."""

from collections import Counter
from typing import Final

from msgspec import Struct, field

from shared.domain.frontier.states import UrlEnd
from shared.domain.ops.counts import OTHER, CrawlCounts, Histogram, Key, status_class
from shared.domain.web.fetch import FailureKind
from shared.wire.messages import UrlOutcome

FAILED: Final = "failed"
"""The key under which fetches without an answer are counted, in place of the class of their HTTP status."""

_WAITS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_KINDS: Final = frozenset(map(str, FailureKind))


class WorkerStats(Struct):
    """The counts of a worker process since its start.

    - `pages`: responses to requests for URLs of shards, with any HTTP status, stored or not. Responses to requests for
      robots.txt do not count. `bytes`: the bytes of the bodies of these `pages`.
    - `malformed`: shards that could not be decoded.
    - `in_flight`: requests under way.
    - `crawls`: for each crawl, the counts `status` (fetches by class of status), `denied` (URLs by rule), `bytes`,
      `items` and `refused_items` (by reason).
    - `fetches`: the durations of fetches in seconds.
    - `failures`: failed fetches by failure kind.
    - `waits`: durations in seconds of the waits for a host's delay and a request slot.
    - `visits`: ended visits by their result (the name of a class of `runtime`, such as VisitSettled).
    - `reports`, `links`: messages by kind, and discovered links, that the broker has acknowledged.
    - `flushes`: the durations of flushes in seconds.
    """

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
        """Add the outcome of a URL to the counts of the worker, and to `counts`, which are those of its crawl."""
        if outcome.end == UrlEnd.DENIED:
            counts["denied", outcome.reason] += 1
            return
        self.fetches.observe(outcome.latency_ms / 1000)
        if outcome.end == UrlEnd.ANSWERED:
            counts["status", status_class(outcome.status)] += 1
            counts["bytes", ""] += outcome.size
        else:
            counts["status", FAILED] += 1
            self.failures[outcome.reason if outcome.reason in _KINDS else OTHER] += 1
