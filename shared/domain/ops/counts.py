"""Counters of a process, cheap enough for hot paths. Metrics are read from them later.

They are pure: they use no clock, and do not depend on the reader. Counts only grow, from the start of the process, and
their number is bounded.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.domain.ids import CrawlId

OTHER: Final = "_other"
"""The metric label for everything without a name of its own. No crawl can have this name."""

DURATIONS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

MAX_CRAWLS: Final = 50
_IDLE_S: Final = 600.0


class Histogram:
    """The number of values up to each bound (`bounds` ascend).

    Values above the last bound have a bucket of their own.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float] = DURATIONS_S) -> None:
        self.bounds: Final = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """The number of counted values."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """Return how many values were at most each bound. The last entry is the number of all values."""
        seen, counts = 0, []
        for n in self._counts:
            seen += n
            counts.append(seen)
        return counts

    def __repr__(self) -> str:
        return f"<Histogram {self.count} values, {self.total:g} together>"


Key = tuple[str, str]
"""What is counted for a crawl: a kind and a key of it, such as ("status", "2xx")."""


@dataclass(slots=True)
class _Counted:
    name: str
    used_at: float
    counts: Counter[Key] = field(default_factory=Counter)


class CrawlCounts:
    """Counts by crawl. At most `max_count` crawls at once are counted under their own names, the others together as
    OTHER.

    A crawl that has a name keeps it until it was idle for ten minutes, so that no count moves from one name to another.
    Times are monotonic seconds.
    """

    def __init__(self, max_count: int = MAX_CRAWLS, *, idle_s: float = _IDLE_S) -> None:
        self._max_crawls = max_count
        self._idle_s = idle_s
        self._crawls: dict[CrawlId, _Counted] = {}
        self._others: Counter[Key] = Counter()

    def of(self, crawl_id: CrawlId, name: str, now: float) -> Counter[Key]:
        """Return the counter of a crawl. The caller may use it for some minutes, and must then ask again."""
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
        """Return the counter for crawls that are not known any more."""
        return self._others

    def name(self, crawl_id: CrawlId) -> str:
        """Return the name under which a crawl is counted."""
        counted = self._crawls.get(crawl_id)
        return OTHER if counted is None else counted.name

    def forget_idle(self, now: float) -> None:
        """Drop crawls that were idle for long, with their counts."""
        for crawl_id, counted in list(self._crawls.items()):
            if now - counted.used_at > self._idle_s:
                del self._crawls[crawl_id]

    def named(self) -> dict[str, Counter[Key]]:
        """Return the counts by name. A crawl that was deleted and created again continues under its name."""
        counts: dict[str, Counter[Key]] = {OTHER: Counter(self._others)}
        for counted in self._crawls.values():
            counts.setdefault(counted.name, Counter()).update(counted.counts)
        return counts

    def __iter__(self) -> Iterator[CrawlId]:
        """Iterate over the crawls that are counted under their own names."""
        return iter(list(self._crawls))

    def __repr__(self) -> str:
        return f"<CrawlCounts {len(self._crawls)} of {self._max_crawls}>"


def status_class(status: int) -> str:
    """Return the class of a status, such as `2xx` for 204, or OTHER outside 100..599."""
    return f"{status // 100}xx" if 100 <= status < 600 else OTHER
