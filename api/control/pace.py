"""How fast a crawl goes: the growth of its counters over the last seconds, from samples taken about every second."""

from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOWS_S: Final = (10, 60)


@dataclass(frozen=True, slots=True)
class Rate:
    """Growth a second over the last `over_s` seconds: those asked for, or as many as were looked at."""

    over_s: float
    pages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    pages: int
    bytes: int


class Pace:
    """One crawl's. Times are seconds of a clock that is never set; they only grow."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def sample(self, at_s: float, pages: int, size: int) -> None:
        """The counters as they stand now."""
        self._samples.append(_Sample(at_s, pages, size))
        # The newest sample that is older than the longest window is where that window begins.
        while len(self._samples) > 2 and self._samples[1].at_s <= at_s - max(WINDOWS_S):
            self._samples.popleft()

    def over(self, window_s: float) -> Rate | None:
        """The rate over a window that ends with the newest sample; None before there are two."""
        if len(self._samples) < 2:
            return None
        last = self._samples[-1]
        first = self._samples[0]
        for sample in self._samples:
            if sample.at_s > last.at_s - window_s:
                break
            first = sample
        span_s = last.at_s - first.at_s
        if span_s <= 0:
            return None
        pages, size = max(0, last.pages - first.pages), max(0, last.bytes - first.bytes)
        return Rate(round(span_s, 1), round(pages / span_s, 2), round(size / span_s, 1))
