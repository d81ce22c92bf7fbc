"""Checks every resource that may fill up, and reports when a member must take on no new work (resource pressure).

Each member decides for itself by its own gauges. Under pressure a master dispatches no URL shards from its partitions,
and a worker takes no further visit. If a gauge cannot be read, the last result stays.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

import structlog
from msgspec.structs import replace

from shared.domain.errors import Permanent, Transient
from shared.domain.ops.watermarks import OF_MEMORY, FillLevel, Pressure, PressureState, Resource, Watermarks

log = structlog.get_logger(__name__)

EVERY_S: Final = 2.0

Gauge = Callable[[], Awaitable[FillLevel | None]]
"""A function that reads how full a resource is.

It returns None if the resource can never be measured, and raises Transient if it cannot be measured now.
"""

NO_GAUGES: Final[Mapping[Resource, Gauge]] = MappingProxyType({})


def refusing(gauge: Gauge, refused: Callable[[], bool]) -> Gauge:
    """Return a gauge that reads `gauge`, and marks the resource as refusing writes if `refused()` is True."""

    async def read() -> FillLevel | None:
        level = await gauge()
        return level if level is None else replace(level, refused=refused())

    return read


class PressureMonitor:
    """Reads the gauges of a member's resources, and logs when the pressure of a resource starts or ends.

    `shortages` is the present result for all resources.

    - `marks` returns the present watermarks: the fill levels at which pressure starts and ends. Memory
      has fixed watermarks instead.
    - `on_change(shortages, resource)` is called when the pressure of `resource` has started or ended. It must not block
      or raise.
    - `every_s`: the seconds between two checks.
    """

    def __init__(
        self,
        gauges: Mapping[Resource, Gauge],
        marks: Callable[[], Watermarks],
        on_change: Callable[[PressureState, Resource], None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self.shortages = PressureState()
        self._gauges = gauges
        self._marks = marks
        self._on_change = on_change
        self._every_s = every_s

    def __repr__(self) -> str:
        return f"<PressureMonitor {self.shortages!r}>"

    @property
    def reason(self) -> str | None:
        """A sentence on why the member must take on no new work now. None if there is no pressure."""
        return self.shortages.reason

    @property
    def pressure(self) -> tuple[Pressure, ...]:
        """The resources that are nearly full now, each with a sentence about it. Empty without pressure."""
        return self.shortages.pressure

    async def run(self) -> None:
        """Check all gauges every `every_s` seconds, until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(self._every_s)

    async def once(self) -> None:
        """Read every gauge once, and update `shortages`."""
        for place, gauge in self._gauges.items():
            try:
                level = await gauge()
            except (Transient, Permanent) as error:
                log.warning("resource_check.failed", resource=place, error=str(error))
                continue
            if level is None:
                continue
            marks = OF_MEMORY if place is Resource.MEMORY else self._marks()
            if self.shortages.observe(place, level, marks):
                self._changed(place, level)

    def _changed(self, place: Resource, level: FillLevel) -> None:
        used, capacity, reason = level.used, level.capacity, self.shortages.reason
        if self.shortages.full(place):
            log.warning("resource_pressure.started", resource=place, used_bytes=used, max_bytes=capacity, reason=reason)
        else:
            log.info(
                "resource_pressure.ended", resource=place, used_bytes=used, max_bytes=capacity, remaining_reason=reason
            )
        self._on_change(self.shortages, place)
