"""Token buckets: how many requests each name (such as a key's id) may send, in bounded memory."""

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import Final

BURST_S: Final = 10
"""A full bucket has as many permits as it gains in this many seconds. A client may use them all at once."""

MAX_BUCKETS: Final = 10_000
"""The maximum number of buckets in memory. A further bucket replaces the least recently used one. A name whose bucket
was replaced has a full bucket again."""


@dataclass(frozen=True, slots=True)
class Permit:
    """The decision whether one request is allowed, and the state of its bucket.

    - `quota`: the permits in a full bucket. `left`: the permits that remain.
    - `full_s`: the seconds until the bucket is full again.
    - `wait_s`: the seconds until the next permit, if the request is refused; else 0.
    """

    allowed: bool
    quota: int
    left: int
    full_s: int
    wait_s: int


class Buckets:
    """A token bucket for each name. It has at most `quota` permits and gains `per_s` permits a second.

    If `per_s` is 0, requests are not limited. At most `max_count` buckets are in memory. When a further name needs a
    bucket, the least recently used bucket is forgotten, so its name has a full bucket again.
    """

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
        """Take a permit from the bucket of `name`, if one is left. Return the decision, or None if there is no limit.

        `now` is in monotonic seconds.
        """
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
        """Return the state of the bucket of `name` without taking a permit. Return None if there is no limit.

        The field `allowed` of the result says if `take` would take a permit now. `now` is in monotonic seconds.
        """
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
