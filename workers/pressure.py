"""Resource pressure of a worker: while its archive's disk or its memory is nearly full, it takes no further shard.

A request under way is finished, because its disk space is reserved (`workers.disk_reservations`). If no space can be
reserved, a visit hands back its remaining URLs.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog

from shared.adapters.local.resources import disk_of, memory_of_process
from shared.domain.ops.watermarks import FillLevel, Pressure, Resource, Watermarks
from shared.runtime.pressure_monitor import Gauge, PressureMonitor
from shared.settings import ClusterWorkerSettings, WorkerSettings
from workers.disk_reservations import DiskReservations

log = structlog.get_logger(__name__)


class WorkerPressure:
    """A `PressureListener` that logs each change, and calls `ration` with the resources under pressure."""

    def __init__(self, rationing: Callable[[], PressureMonitor], ration: Callable[[Sequence[Pressure]], None]) -> None:
        self._rationing = rationing
        self._ration = ration

    def __repr__(self) -> str:
        return f"<WorkerPressure {self._rationing()!r}>"

    def pressure_started(self, place: Resource, level: FillLevel, reason: str) -> None:
        log.warning(
            "resource_pressure.started", resource=place, used_bytes=level.used, max_bytes=level.capacity, reason=reason
        )
        self._ration(self._rationing().pressure)

    def pressure_ended(self, place: Resource, level: FillLevel) -> None:
        log.info(
            "resource_pressure.ended",
            resource=place,
            used_bytes=level.used,
            max_bytes=level.capacity,
            remaining_reason=self._rationing().reason,
        )
        self._ration(self._rationing().pressure)

    def gauge_failed(self, place: Resource, error: Exception) -> None:
        log.warning("resource_check.failed", resource=place, error=str(error))


def gauges_of(settings: WorkerSettings, reservations: DiskReservations) -> Mapping[Resource, Gauge]:
    """Return the gauges of a worker. In a local crawl the command watches the disk."""
    gauges: dict[Resource, Gauge] = {Resource.MEMORY: memory_of_process(settings.memory_bytes)}
    if isinstance(settings, ClusterWorkerSettings):
        gauges[Resource.ARCHIVE] = reservations.level
    return gauges


def archive_disk(settings: WorkerSettings) -> Gauge | None:
    """Return the gauge of the archive's disk, None if another process watches it."""
    return disk_of(settings.dir / "archive") if isinstance(settings, ClusterWorkerSettings) else None


def pressure_monitor_of(
    settings: WorkerSettings,
    reservations: DiskReservations,
    marks: Callable[[], Watermarks],
    ration: Callable[[Sequence[Pressure]], None],
) -> PressureMonitor:
    """Return the monitor of the worker's resources. It passes the resources under pressure to `ration`."""
    rationing: PressureMonitor = PressureMonitor(
        gauges_of(settings, reservations), marks, WorkerPressure(lambda: rationing, ration)
    )
    return rationing
