"""Ends late members of a set, with one timer for any number of limits."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol


class Timed(Protocol):
    """An object with time limits."""

    def check(self, now: float) -> float:
        """End itself if it is late. Return the loop time of the next check (`inf`: never)."""


class Deadlines:
    """Checks every member at its due time, by one timer set to the earliest.

    Members need no timers of their own. Nearly all end before they are due and are removed by `discard`. When the timer
    fires, it is set anew from the remaining members.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: set[Timed] = set()
        self._armed_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, member: Timed, due: float) -> None:
        self._members.add(member)
        if due < self._armed_at:
            self._arm(due)

    def discard(self, member: Timed) -> None:
        self._members.discard(member)

    def close(self) -> None:
        self._members.clear()
        self._arm(inf)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._sweep) if due < inf else None

    def _sweep(self) -> None:
        now = self._clock()
        self._timer = None
        self._arm(min((member.check(now) for member in tuple(self._members)), default=inf))
