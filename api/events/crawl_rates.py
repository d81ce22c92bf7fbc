"""Compute how fast a crawl runs: the recent growth of its counters, from samples taken about every second."""

from collections import deque
from dataclasses import dataclass
from typing import Final

WINDOWS_S: Final = (10, 60)


@dataclass(frozen=True, slots=True)
class CrawlRate:
    """Growth a second over the last `measured_s` seconds: the requested window, or as much of it as has samples."""

    measured_s: float
    pages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    pages: int
    bytes: int


class CrawlRates:
    """The samples of one crawl. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def sample(self, at_s: float, pages: int, size: int) -> None:
        """Add the current counters."""
        self._samples.append(_Sample(at_s, pages, size))
        # The longest window begins at the newest sample that is older than the window.
        while len(self._samples) > 2 and self._samples[1].at_s <= at_s - max(WINDOWS_S):
            self._samples.popleft()

    def over(self, window_s: float) -> CrawlRate | None:
        """Return the rate over a window that ends with the newest sample; None with fewer than two samples."""
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
        return CrawlRate(round(span_s, 1), round(pages / span_s, 2), round(size / span_s, 1))
