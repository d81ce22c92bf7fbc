"""Resource pressure of a worker: while its archive's disk or its memory is nearly full, it takes no further shard.

A request under way is finished, because its disk space is reserved (`workers.disk_reservations`). If no space can be
reserved, a visit hands back its remaining URLs.
"""

from collections.abc import Callable, Mapping, Sequence

from shared.adapters.local.resources import disk_of, memory_of_process
from shared.domain.ops.watermarks import Pressure, Resource, Watermarks
from shared.runtime.pressure_monitor import Gauge, PressureMonitor
from shared.settings import ClusterWorkerSettings, WorkerSettings
from workers.disk_reservations import DiskReservations


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
    set_pressure: Callable[[Sequence[Pressure]], None],
) -> PressureMonitor:
    """Return the monitor of the worker's resources. It passes the resources under pressure to `set_pressure`."""
    return PressureMonitor(gauges_of(settings, reservations), marks, lambda state, _: set_pressure(state.pressure))
