"""Token buckets: how many requests a name may send, by its own bucket, in bounded memory."""

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import Final

BURST_S: Final = 10
"""The seconds of permits that may be used at once."""

MAX_BUCKETS: Final = 10_000
"""Buckets in memory. Of a further one the least recently used is dropped, which is the same as refilling it."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether a request may go on, and what is left.

    `quota` permits are allowed at once, `left` of them remain, and after `full_s` seconds all are there again. After a
    refusal the next one is there in `wait_s` seconds.
    """

    allowed: bool
    quota: int
    left: int
    full_s: int
    wait_s: int


class Buckets:
    """A token bucket for each name, which holds `quota` permits and gets `per_s` a second. At 0 there is no limit."""

    def __init__(self, per_s: float, quota: int, max_count: int = MAX_BUCKETS) -> None:
        self.per_s = per_s
        self.quota = quota
        self._max_count = max_count
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of buckets in memory."""
        return len(self._buckets)

    def __repr__(self) -> str:
        return f"<Buckets {len(self)}, {self.per_s:g} a second>"

    def take(self, name: str, now: float) -> Permit | None:
        """Take a permit of `name` at `now` (seconds that never go back). Return None without a limit."""
        if not self.per_s:
            return None
        left = self._left(name, now)
        allowed = left >= 1
        if allowed:
            left -= 1
        self._buckets[name] = (now, left)
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._max_count:
            self._buckets.popitem(last=False)
        return self._permit(allowed, left)

    def look(self, name: str, now: float) -> Permit | None:
        """Return what `take` would, and take nothing."""
        if not self.per_s:
            return None
        left = self._left(name, now)
        return self._permit(left >= 1, left)

    def _left(self, name: str, now: float) -> float:
        at, left = self._buckets.get(name, (now, float(self.quota)))
        return min(float(self.quota), left + (now - at) * self.per_s)

    def _permit(self, allowed: bool, left: float) -> Permit:
        full_s = ceil((self.quota - left) / self.per_s)
        wait_s = 0 if allowed else max(1, ceil((1 - left) / self.per_s))
        return Permit(allowed, self.quota, int(left), full_s, wait_s)
