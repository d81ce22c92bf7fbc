"""Divide a crawl's budget of requests a day among its partitions.

In this module, a slot is the right to one request. (The slots of a host are something else.)

Each day is divided into as many slots as the budget has requests. A formula gives each slot to one partition, so
owners need no messages. A partition with a tenth of the crawl's pages gets about a tenth of the slots.

A slot begins at its time of day, and can be used for about a hundredth of a day (14 minutes). So a few requests of one
day may be started on the next day. With 1000 requests a day, up to 11 unused slots can be left from before. So at most
1000 + 11 requests are started in any 24 hours. Nothing is stored: a new owner begins with the slots after its start.

Points in time are in Unix ms.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

_DAY_MS: Final = 86_400_000
_KEPT_PART: Final = 100
"""An unused slot expires 1/_KEPT_PART of a day after it began."""

_ONE: Final = 1 << 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
_EXACT: Final = 4096
"""`RecrawlBudget.spent` counts exactly how many of the newest _EXACT slots belong to the partition.

Of the older slots, it only estimates how many belong to the partition."""


class Share(Struct, frozen=True):
    """A partition's share of the slots of a crawl. A slot is the right to one request.

    A formula maps each slot to a number from 0 to 2^64 - 1. If `low` <= number < `high`, the slot belongs to the
    partition.
    """

    low: int
    high: int

    @property
    def part(self) -> float:
        """The fraction of the crawl's slots that belong to the partition, from 0 to 1."""
        return (self.high - self.low) / _ONE


def share(pages_before: int, pages: int, pages_all: int) -> Share:
    """Return the Share of a partition: which part of the crawl's slots belongs to the partition.

    The part is in proportion to the pages: the partition has `pages` of the `pages_all` pages of the crawl.
    `pages_before`: the number of pages in all partitions with a lower partition number.

    A formula gives each slot a number in a fixed range. The partitions divide this range in the order of the partition
    numbers. A slot belongs to the partition whose interval contains the slot's number.

    For example, in `share(10, 20, 100)` the lower partitions have the first 10 % of the range. The result is the
    interval from 10 % to 30 %. So about 20 % of the slots belong to the partition.
    """
    every = max(pages_all, pages_before + pages, 1)
    return Share((pages_before << 64) // every, (pages_before + pages << 64) // every)


class RecrawlBudget(Struct, frozen=True):
    """The requests that one partition may still start under a crawl's budget of requests a day. Immutable.

    A slot is the right to one request. The slots of a crawl are numbered in the order of time. `used` is the number of
    the last slot that this partition has used or passed over.
    """

    requests_per_day: int
    used: int

    @classmethod
    def starting(cls, requests_per_day: int, now_ms: int) -> "RecrawlBudget":
        """Return a budget whose first slot is the next one after `now_ms`."""
        return cls(requests_per_day, _slot(requests_per_day, now_ms))

    def available(self, now_ms: int, share: Share, wanted: int) -> int:
        """Return how many of `wanted` requests the partition may start now.

        `share`: the partition's share of the crawl's slots.
        """
        return self.spent(now_ms, share, wanted)[0]

    def spent(self, now_ms: int, share: Share, wanted: int) -> tuple[int, "RecrawlBudget"]:
        """Return how many of `wanted` requests the partition may start now, and the budget after they have started.

        `share`: the partition's share of the crawl's slots.
        """
        newest = _slot(self.requests_per_day, now_ms)
        kept = self.requests_per_day // _KEPT_PART
        used = self.used
        if used > newest + kept:  # The clock was set back.
            used = newest
        used = max(used, newest - kept - 1)
        granted, width = 0, share.high - share.low
        if wanted <= 0 or width <= 0:
            return 0, replace(self, used=used)
        if (many := newest - used - _EXACT) > 0:
            granted = min(wanted, many * width // _ONE)
            used += many if granted < wanted else -(-granted * _ONE // width)
        while used < newest and granted < wanted:
            used += 1
            # The number of a slot is a point of Weyl's sequence of the golden ratio.
            granted += share.low <= used * _GOLDEN % _ONE < share.high
        return granted, replace(self, used=used)


def _slot(requests_per_day: int, now_ms: int) -> int:
    """Return the number of the newest slot that has begun at `now_ms`."""
    return now_ms * requests_per_day // _DAY_MS
