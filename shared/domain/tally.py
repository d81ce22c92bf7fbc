"""Counts that a process keeps of what it does, cheap enough for hot paths: metrics are read from them, later.

Pure: nothing here knows a clock, or who reads. Counts only grow, from the start of the process, and their number is
bounded.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.domain.ids import CrawlId

OTHER: Final = "_other"
"""Stands for everything that has no name of its own in a metric; no crawl can be called so."""

DURATIONS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

MOST_CRAWLS: Final = 50
_IDLE_S: Final = 600.0


class Histogram:
    """How many values fell up to each bound (`bounds` grow); what is above the last has a bucket of its own."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float] = DURATIONS_S) -> None:
        self.bounds: Final = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times over."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """How many values were at most each bound; the last: how many there were at all."""
        seen, counts = 0, []
        for n in self._counts:
            seen += n
            counts.append(seen)
        return counts

    def __repr__(self) -> str:
        return f"<Histogram {self.count} values, {self.total:g} together>"


Key = tuple[str, str]
"""What is counted of a crawl: a kind and a key of it, as ("status", "2xx")."""


@dataclass(slots=True)
class _Counted:
    name: str
    used_at: float
    counts: Counter[Key] = field(default_factory=Counter)


class CrawlCounts:
    """Counts by crawl. At most `most` crawls at once are counted under their own names, the others together as OTHER.

    Who came first keeps its place until it was idle for ten minutes, so that no count moves from one name to another.
    Times are monotonic seconds.
    """

    def __init__(self, most: int = MOST_CRAWLS, *, idle_s: float = _IDLE_S) -> None:
        self._most = most
        self._idle_s = idle_s
        self._crawls: dict[CrawlId, _Counted] = {}
        self._others: Counter[Key] = Counter()

    def of(self, crawl_id: CrawlId, name: str, now: float) -> Counter[Key]:
        """Where to count what is done for a crawl, for some minutes: then ask again."""
        counted = self._crawls.get(crawl_id)
        if counted is None:
            if len(self._crawls) >= self._most:
                self.forget_idle(now)
            if len(self._crawls) >= self._most:
                return self._others
            counted = self._crawls[crawl_id] = _Counted(name, now)
        counted.used_at = now
        return counted.counts

    def others(self) -> Counter[Key]:
        """Where to count what is done for a crawl that nobody knows any more."""
        return self._others

    def name(self, crawl_id: CrawlId) -> str:
        """The name that a crawl is counted under."""
        counted = self._crawls.get(crawl_id)
        return OTHER if counted is None else counted.name

    def forget_idle(self, now: float) -> None:
        """Drop crawls of which nothing was heard for long, with their counts."""
        for crawl_id, counted in list(self._crawls.items()):
            if now - counted.used_at > self._idle_s:
                del self._crawls[crawl_id]

    def named(self) -> dict[str, Counter[Key]]:
        """The counts by name. A crawl that was deleted and made anew goes on under its name."""
        found: dict[str, Counter[Key]] = {OTHER: Counter(self._others)}
        for counted in self._crawls.values():
            found.setdefault(counted.name, Counter()).update(counted.counts)
        return found

    def __iter__(self) -> Iterator[CrawlId]:
        """The crawls that are counted under their own names."""
        return iter(list(self._crawls))

    def __repr__(self) -> str:
        return f"<CrawlCounts {len(self._crawls)} of {self._most}>"


def status_class(status: int) -> str:
    """`2xx` for 204; OTHER outside 100..599."""
    return f"{status // 100}xx" if 100 <= status < 600 else OTHER
