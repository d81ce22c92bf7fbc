"""The speed of a run and its remaining time, computed from the master's counters.

The functions do not read a clock: the time is an argument.
"""

import math
from typing import Final

from msgspec import Struct, field

from shared.domain.crawl.spec import Budget
from shared.domain.frontier.states import CrawlState
from shared.wire.messages import Progress

MEMORY_S: Final = 10.0
"""The time constant of a rate in seconds: an event of this age has 1/e of the weight of a new event."""

LEAST_EVENTS: Final = 1.0
"""A rate is good enough for an estimate if its events have at least this weight in total.

A new event has the weight 1. The weight becomes smaller with the age of the event.
"""

_SETTLED: Final = ("done", "failed", "excluded")


class DisplayRate(Struct):
    """Measures how fast a count grows: a moving average per second, in which older events weigh exponentially less."""

    _events: float = 0.0
    _elapsed_s: float = 0.0
    _count: int = 0
    _at: float | None = None

    @property
    def per_s(self) -> float | None:
        """The recent number of events per second. Newer events weigh more. None before two counts are recorded."""
        return self._events / self._elapsed_s if self._elapsed_s > 0 else None

    @property
    def steady(self) -> float | None:
        """The same as `per_s`, but None if there were too few recent events for an estimate (LEAST_EVENTS)."""
        return self.per_s if self._events >= LEAST_EVENTS else None

    def seen(self, count: int, now: float) -> None:
        """Record the count at `now` (monotonic seconds). If the count has become smaller, start a new measurement."""
        if self._at is None or count < self._count:
            self._count, self._at, self._events, self._elapsed_s = count, now, 0.0, 0.0
            return
        elapsed = now - self._at
        if elapsed <= 0:
            return
        kept = math.exp(-elapsed / MEMORY_S)
        self._events = self._events * kept + (count - self._count)
        self._elapsed_s = self._elapsed_s * kept + elapsed
        self._count, self._at = count, now


class ProgressRates(Struct):
    """The rates of one run, and estimates of its remaining time. Pages of earlier runs of the crawl are left out.

    - `started`: when the run began. All times here are monotonic seconds.
    - `budget`: the budget of the crawl.
    - `pages`: the rate of stored pages.
    - `settled`: the rate of URLs that became done, failed or excluded.
    """

    started: float
    budget: Budget
    pages: DisplayRate = field(default_factory=DisplayRate)
    settled: DisplayRate = field(default_factory=DisplayRate)
    _first_pages: int | None = None
    _pages: int = 0

    def seen(self, progress: Progress, now: float) -> None:
        """Record the counters of a progress update from the master. `now` is in monotonic seconds."""
        counters = progress.counters
        self._pages = counters.get("pages", 0)
        if self._first_pages is None:
            # The first progress of a run counts the pages of earlier runs, if there were any.
            self._first_pages = self._pages if progress.active_ms > 1000 * (now - self.started) + 1000 else 0
        self.pages.seen(self._pages, now)
        self.settled.seen(sum(counters.get(name, 0) for name in _SETTLED), now)

    def average(self, now: float) -> float:
        """Return the average number of pages per second from the start of this run to `now`."""
        elapsed = now - self.started
        return (self._pages - (self._first_pages or 0)) / elapsed if elapsed > 0 else 0.0

    def left_s(self, progress: Progress) -> float | None:
        """Return an estimate of the seconds until the queue is empty or a budget is used up.

        Return None if the crawl is not running or no estimate is possible. While the queue still grows, the estimate is
        too low.
        """
        if progress.state != CrawlState.RUNNING:
            return None
        counters = progress.counters
        open_urls = counters.get("queued", 0) + counters.get("leased", 0)
        ends = []
        settled = None if progress.standing else self.settled.steady
        if settled is not None or progress.hosts_left_ms >= 0:
            # The queue cannot be empty before its slowest host is done, with all waits and delays.
            ends.append(max(open_urls / settled if settled else 0.0, progress.hosts_left_ms / 1000))
        if self.budget.max_pages is not None:
            ends += self._pages_left_s(progress, max(0, self.budget.max_pages - counters.get("pages", 0)), open_urls)
        if self.budget.max_seconds is not None:
            ends.append(max(0.0, self.budget.max_seconds - progress.active_ms / 1000))
        return min(ends) if ends else None

    def _pages_left_s(self, progress: Progress, pages: int, open_urls: int) -> list[float]:
        """Estimate the seconds until `pages` more pages are stored. Return the number in a list.

        The list is empty if no estimate is possible. `open_urls` is the number of URLs that are queued or leased.
        """
        rate = None if progress.standing else self.pages.steady
        if rate is not None:
            return [pages / rate]
        if progress.hosts_left_ms < 0 or pages >= open_urls or progress.hosts_known != 1:
            return []
        wait_s = progress.waiting[0].wait_ms / 1000 if progress.waiting else 0.0
        return [wait_s + (progress.hosts_left_ms / 1000 - wait_s) * pages / open_urls]


def clock(seconds: float) -> str:
    """Format seconds as `0:07`, `12:34`, `1:02:03` or `3 d 04:05`."""
    whole = int(seconds)
    minutes, secs = divmod(whole, 60)
    hours, mins = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24:02d}:{mins:02d}"
    return f"{hours}:{mins:02d}:{secs:02d}" if hours else f"{mins}:{secs:02d}"


def amount(size: float) -> str:
    """Format a number of bytes in decimal units, such as `812 B` or `4.2 MB`."""
    if size < 1000:
        return f"{size:.0f} B"
    power = next((power for power in (1, 2, 3) if size < 999.5 * 1000**power), 4)
    scaled = size / 1000**power
    return f"{scaled:.{1 if scaled < 100 else 0}f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def count(number: int) -> str:
    """Format a number with thousands separators, such as `1,234,567`."""
    return f"{number:,}"


def rate(per_s: float | None) -> str:
    """Format a rate per second, such as `31.2/s`. Return `-` for None, before the first measurement."""
    if per_s is None:
        return "-"
    return f"{per_s:.0f}/s" if per_s >= 100 else f"{per_s:.1f}/s" if per_s >= 0.1 or per_s == 0 else f"{per_s:.2f}/s"
