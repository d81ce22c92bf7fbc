"""Reserves space on the archive's disk for answers that visits may still write.

Before a request, a visit reserves space for the largest answer that its crawl accepts. The visit releases the space
when the answer is appended to the archive. So the fetches of one worker together do not need more space than is free.

Other workers may write to the same disk, and their reservations are unknown here. Therefore a worker leaves half of the
free space to them: its reservations together use at most the other half. Only a worker without any reservation may
exceed this half. Its first reservation must be smaller than the whole free space.

Example: 10 GB are free. A first fetch that may need 8 GB starts. A second fetch waits, because the reservations of both
would exceed 5 GB.

While a worker has reservations, it measures the free space several times a second.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from shared.adapters.local.resources import disk_of, memory_of_process
from shared.domain.errors import Transient
from shared.domain.ops.watermarks import FillLevel, Pressure, Resource, Watermarks
from shared.domain.web.fetch import FetchLimits
from shared.runtime.pressure_monitor import Gauge, PressureMonitor
from shared.settings import ClusterWorkerSettings, WorkerSettings
from workers.archive import WarcArchive

RECORD_BYTES: Final = 256 << 10
"""The space, in bytes, that is assumed for all of a page's WARC records except the body itself.

This includes the HTTP headers, the metadata, and the bytes that gzip adds to a body that cannot be compressed."""

_LOOK_S: Final = 0.25
_PATIENCE_S: Final = 2.0
"""After this many seconds, a visit gives up its wait for disk space if no visit of this process has a reservation.

In that case no other visit can release space. If another visit has a reservation, the wait continues until there is
space. A visit that gives up does not send its request.
"""


class DiskReservations:
    """The disk space that one worker process has reserved for responses that are not in the archive yet.

    - `gauge` measures the disk. None: every fetch fits, because another process watches the disk.
    - `marks` returns the present watermarks: the fill levels at which the disk counts as full and as free again. The
      attribute may be set to another function.
    """

    def __init__(self, gauge: Gauge | None, marks: Callable[[], Watermarks], archive: WarcArchive) -> None:
        self._gauge = gauge
        self.marks = marks
        self._archive = archive
        self._level: FillLevel | None = None
        self._durable = 0
        self._reserved = 0
        self._largest = FetchLimits().body_bytes + RECORD_BYTES
        self._freed = asyncio.Event()
        self._in_use = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Reservations {self._reserved} of {self._level!r}>"

    async def level(self) -> FillLevel | None:
        """Measure the disk and return its fill level. Return None if the level is unknown.

        The free space of the result is the disk's free space minus the space for one answer of the largest size. It
        ignores what running visits have reserved. Example: 10 GB of the disk are free, visits have reserved 3 GB, and
        the largest answer may need 1 GB. Then the result has 9 GB free.
        """
        if self._gauge is None:
            return None
        durable = self._archive.stats.bytes - self._archive.buffered()
        level = await self._gauge()
        if level is None:
            return None
        self._level, self._durable = level, durable
        return level.claiming(self._need(self._largest))

    async def run(self) -> None:
        """Measure the disk several times a second while any space is reserved, until cancelled."""
        while True:
            await self._in_use.wait()
            await asyncio.sleep(_LOOK_S)
            with suppress(Transient):  # the watermarks log it
                await self.level()

    async def reserve(self, body_bytes: int, ending: asyncio.Event) -> int | None:
        """Wait until there is space for a response body of `body_bytes`, and reserve it.

        Return the reserved bytes, which the caller passes to `give_back`. Return None in these cases:

        - `ending` was set before there was space.
        - There was no space for _PATIENCE_S seconds, and this process had no other reservation.
        """
        self._largest = max(self._largest, body_bytes + RECORD_BYTES)
        need = self._need(body_bytes + RECORD_BYTES)
        if not await self._admitted(need, ending):
            return None
        self._reserved += need
        self._in_use.set()
        return need

    def give_back(self, reserved: int) -> None:
        """Release the bytes that `reserve` returned."""
        self._reserved -= reserved
        self._freed.set()
        if self._reserved == 0:
            self._in_use.clear()

    def fits(self, need: int) -> bool:
        """Return True if a fetch that may write `need` bytes may start now."""
        if self._level is None:
            return True
        unseen = self._archive.stats.bytes - self._durable
        free = self._level.free - self.marks().stops_at(self._level.capacity) - unseen
        return need < free if self._reserved == 0 else self._reserved + need <= free / 2

    async def _admitted(self, need: int, ending: asyncio.Event) -> bool:
        while not self.fits(need):
            alone = self._reserved == 0
            self._freed.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._freed, ending)]
            try:
                done, _ = await asyncio.wait(waits, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if ending.is_set() or (alone and not done):
                return False
        return True

    def _need(self, size: int) -> int:
        """Return the bytes to reserve: `size`, but at most a quarter of the disk."""
        return size if self._level is None else min(size, self._level.capacity // 4)


def archive_disk(settings: WorkerSettings) -> Gauge | None:
    """Return the gauge of the archive's disk; None in a local crawl, where the command `orb crawl` watches the disk."""
    return disk_of(settings.dir / "archive") if isinstance(settings, ClusterWorkerSettings) else None


def pressure_monitor_of(
    settings: WorkerSettings, reservations: DiskReservations, set_pressure: Callable[[Sequence[Pressure]], None]
) -> PressureMonitor:
    """Return the monitor that watches the worker's memory and archive disk.

    It passes the resources under pressure to `set_pressure`: the worker then takes no further shard. A request under
    way is finished, because its disk space is reserved.
    """
    gauges: dict[Resource, Gauge] = {Resource.MEMORY: memory_of_process(settings.memory_bytes)}
    if isinstance(settings, ClusterWorkerSettings):
        gauges[Resource.ARCHIVE] = reservations.level
    return PressureMonitor(gauges, reservations.marks, lambda state, _: set_pressure(state.pressure))
