"""Rationing: looks at everything that may fill up, and says when nothing new should be taken on.

A member of a cluster decides for itself, by what it sees: a master sends nothing out of the partitions it owns, a
worker takes no further visit. Who is cut off from a gauge keeps its last verdict.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

from shared.domain.errors import Permanent, Transient
from shared.domain.watermarks import OF_MEMORY, Level, Place, Shortages, Watermarks

EVERY_S: Final = 2.0

Gauge = Callable[[], Awaitable[Level | None]]
"""Reads how full something is; None where that cannot be known. Transient: not now."""

NO_GAUGES: Final[Mapping[Place, Gauge]] = MappingProxyType({})


def refusing(gauge: Gauge, refused: Callable[[], bool]) -> Gauge:
    """What the gauge reads; and that it takes no more, whatever the numbers are, while `refused` says so."""

    async def told() -> Level | None:
        level = await gauge()
        return level if level is None else replace(level, refused=refused())

    return told


class Watcher(Protocol):
    """Hears what is found. Neither waits nor raises."""

    def short(self, place: Place, level: Level, reason: str) -> None:
        """The place became full: why nothing new is taken on."""
        ...

    def enough(self, place: Place, level: Level) -> None:
        """It has room again."""
        ...

    def unread(self, place: Place, error: Exception) -> None:
        """Its gauge did not answer."""
        ...


class Rationing:
    """Keeps `shortages` as the gauges are. `marks` are those that hold now; memory has its own."""

    def __init__(
        self,
        gauges: Mapping[Place, Gauge],
        marks: Callable[[], Watermarks],
        watcher: Watcher,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self.shortages = Shortages()
        self._gauges = gauges
        self._marks = marks
        self._watcher = watcher
        self._every_s = every_s

    def __repr__(self) -> str:
        return f"<Rationing {self.shortages!r}>"

    @property
    def reason(self) -> str | None:
        """Why nothing new should be taken on now; None while there is room."""
        return self.shortages.reason

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(self._every_s)

    async def once(self) -> None:
        """Look at everything once."""
        for place, gauge in self._gauges.items():
            try:
                level = await gauge()
            except (Transient, Permanent) as error:
                self._watcher.unread(place, error)
                continue
            if level is None:
                continue
            marks = OF_MEMORY if place is Place.MEMORY else self._marks()
            if not self.shortages.observe(place, level, marks):
                continue
            if self.shortages.full(place):
                self._watcher.short(place, level, self.shortages.reason or "")
            else:
                self._watcher.enough(place, level)
