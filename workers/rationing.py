"""A worker's room: while its archive's disk or its memory is nearly used up it takes no further visit, and says why.

A fetch that was begun is finished: its room is reserved (`workers.reservations`). The rest of a visit is handed back.
"""

from collections.abc import Callable, Mapping

import structlog

from shared.adapters.local.room import disk_of, memory_of_process
from shared.domain.watermarks import Level, Place, Watermarks
from shared.ports.rationing import Gauge, Rationing
from shared.settings import ClusterWorkerSettings, WorkerSettings
from workers.reservations import Reservations

log = structlog.get_logger(__name__)


class WorkerRoom:
    """`shared.ports.rationing.Watcher`; `ration` is told why no visit may be taken, or (None) that one may."""

    def __init__(self, rationing: Callable[[], Rationing], ration: Callable[[str | None], None]) -> None:
        self._rationing = rationing
        self._ration = ration

    def __repr__(self) -> str:
        return f"<WorkerRoom {self._rationing()!r}>"

    def short(self, place: Place, level: Level, reason: str) -> None:
        log.warning("visits.held", place=place, used=level.used, most=level.most, reason=reason)
        self._ration(self._rationing().reason)

    def enough(self, place: Place, level: Level) -> None:
        log.info("visits.room", place=place, used=level.used, most=level.most, still=self._rationing().reason)
        self._ration(self._rationing().reason)

    def unread(self, place: Place, error: Exception) -> None:
        log.warning("room.unread", place=place, error=str(error))


def gauges_of(settings: WorkerSettings, reservations: Reservations) -> Mapping[Place, Gauge]:
    """What a worker looks at. The disk of a local crawl is looked after by the command, which ends with it."""
    found: dict[Place, Gauge] = {Place.MEMORY: memory_of_process(settings.memory_bytes)}
    if isinstance(settings, ClusterWorkerSettings):
        found[Place.ARCHIVE] = reservations.level
    return found


def archive_disk(settings: WorkerSettings) -> Gauge | None:
    """The disk of a worker's archive; None where another process looks after it."""
    return disk_of(settings.dir / "archive") if isinstance(settings, ClusterWorkerSettings) else None


def rationing_of(
    settings: WorkerSettings,
    reservations: Reservations,
    marks: Callable[[], Watermarks],
    ration: Callable[[str | None], None],
) -> Rationing:
    """What keeps a worker within its room."""
    rationing: Rationing = Rationing(gauges_of(settings, reservations), marks, WorkerRoom(lambda: rationing, ration))
    return rationing
