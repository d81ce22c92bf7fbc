"""Counters of a process for its metrics, cheap enough to be used for every page.

They use no clock. Counts start at 0 with the process and only grow, and reading them changes nothing. The number of
counters is bounded.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from shared.domain.ids import CrawlId

OTHER: Final = "_other"
"""The metric label for crawls and statuses that have no label of their own. No crawl can have this name."""

DURATIONS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

MAX_CRAWLS: Final = 50
_IDLE_S: Final = 600.0


class Histogram:
    """Counts values in buckets, as a Prometheus histogram.

    `bounds` are the upper bounds of the buckets, ascending. A further bucket has the values above the last bound.
    `total` is the sum of all values.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float] = DURATIONS_S) -> None:
        self.bounds: Final = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """The number of values that were counted."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """Return, for each bound, how many values were at most the bound. The last entry counts all values."""
        seen, counts = 0, []
        for n in self._counts:
            seen += n
            counts.append(seen)
        return counts

    def __repr__(self) -> str:
        return f"<Histogram {self.count} values, {self.total:g} together>"


Key = tuple[str, str]
"""The name of one of a crawl's counts: its kind, and a key within the kind, such as ("status", "2xx")."""


class _Counted(Struct):
    name: str
    used_at: float
    counts: Counter[Key] = field(default_factory=Counter)


class CrawlCounts:
    """Counts by crawl, for metrics. At most `max_count` crawls have a counter; all others share one, with label OTHER.

    A crawl loses its counter, and the counts in it, only if the counter was not used for `idle_s`. Times are monotonic
    seconds.
    """

    def __init__(self, max_count: int = MAX_CRAWLS, *, idle_s: float = _IDLE_S) -> None:
        self._max_crawls = max_count
        self._idle_s = idle_s
        self._crawls: dict[CrawlId, _Counted] = {}
        self._others: Counter[Key] = Counter()

    def of(self, crawl_id: CrawlId, name: str, now: float) -> Counter[Key]:
        """Return the counter of a crawl, to which the caller adds. Create it if the crawl has none.

        Return the shared counter instead if `max_count` other crawls have counters. The caller must not keep the result
        for more than a few minutes, because an idle crawl loses its counter.
        """
        counted = self._crawls.get(crawl_id)
        if counted is None:
            if len(self._crawls) >= self._max_crawls:
                self.forget_idle(now)
            if len(self._crawls) >= self._max_crawls:
                return self._others
            counted = self._crawls[crawl_id] = _Counted(name, now)
        counted.used_at = now
        return counted.counts

    def others(self) -> Counter[Key]:
        """Return the shared counter. The caller counts in it for crawls that have no counter, such as deleted ones."""
        return self._others

    def name(self, crawl_id: CrawlId) -> str:
        """Return the metric label of a crawl: its name, or OTHER."""
        counted = self._crawls.get(crawl_id)
        return OTHER if counted is None else counted.name

    def forget_idle(self, now: float) -> None:
        """Delete the counters of crawls that were idle for longer than `idle_s`."""
        for crawl_id, counted in list(self._crawls.items()):
            if now - counted.used_at > self._idle_s:
                del self._crawls[crawl_id]

    def is_full(self) -> bool:
        """Return True if `max_count` crawls have a counter. A further crawl then gets the shared counter."""
        return len(self._crawls) >= self._max_crawls

    def named(self) -> dict[str, Counter[Key]]:
        """Return the counts by crawl name, and the shared counts under OTHER.

        If a crawl was deleted and created again, the counts of both are added.
        """
        counts: dict[str, Counter[Key]] = {OTHER: Counter(self._others)}
        for counted in self._crawls.values():
            counts.setdefault(counted.name, Counter()).update(counted.counts)
        return counts

    def __iter__(self) -> Iterator[CrawlId]:
        """Iterate over the ids of the crawls that are counted under their own names."""
        return iter(list(self._crawls))

    def __repr__(self) -> str:
        return f"<CrawlCounts {len(self._crawls)} of {self._max_crawls}>"


def status_class(status: int) -> str:
    """Return the class of an HTTP status, such as `2xx` for 204, or OTHER outside 100..599."""
    return f"{status // 100}xx" if 100 <= status < 600 else OTHER
