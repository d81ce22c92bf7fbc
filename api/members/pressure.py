"""React to resource pressure: of this master, which then dispatches nothing, and of workers, by their statuses.

Work in progress continues: reports are applied, which empties the streams; grants run and are extended.
"""

from collections.abc import Callable

import structlog

from api.frontier.capacity import PoolCapacity
from shared.domain.ops.watermarks import FillLevel, Resource
from shared.runtime.pressure_monitor import PressureMonitor
from shared.wire.messages import WorkerStatus

log = structlog.get_logger("orb.control")

Heard = Callable[[str, str, str | None], None]
"""Called with a member, a resource, and why the resource is under pressure (None: it no longer is).

It neither waits nor raises.
"""


def log_only(member: str, resource: str, reason: str | None) -> None:
    """Do nothing: the change is in the log already."""


class MasterPressure:
    """`shared.runtime.pressure_monitor.PressureListener` of the master `member`: stops and resumes its dispatch.

    `news` is called when the master's status has changed.
    """

    def __init__(
        self,
        member: str,
        room: PoolCapacity,
        rationing: Callable[[], PressureMonitor],
        heard: Heard,
        news: Callable[[], None],
    ) -> None:
        self._member = member
        self._room = room
        self._rationing = rationing
        self._heard = heard
        self._news = news

    def __repr__(self) -> str:
        return f"<MasterPressure {self._member} held={self._room.held}>"

    def pressure_started(self, place: Resource, level: FillLevel, reason: str) -> None:
        log.warning(
            "resource_pressure.started", resource=place, used_bytes=level.used, max_bytes=level.capacity, reason=reason
        )
        self._update()
        self._heard(self._member, place, reason)

    def pressure_ended(self, place: Resource, level: FillLevel) -> None:
        log.info(
            "resource_pressure.ended",
            resource=place,
            used_bytes=level.used,
            max_bytes=level.capacity,
            remaining_reason=self._rationing().reason,
        )
        self._update()
        self._heard(self._member, place, None)

    def gauge_failed(self, place: Resource, error: Exception) -> None:
        log.warning("resource_check.failed", resource=place, error=str(error))

    def _update(self) -> None:
        self._room.held = self._rationing().reason
        self._news()


class WorkerPressureEvents:
    """Reports when resource pressure of a worker starts or ends. Only the leader reports, so that each change is
    reported once."""

    def __init__(self, leading: Callable[[], bool], heard: Heard) -> None:
        self._leading = leading
        self._heard = heard

    def status_received(self, before: WorkerStatus | None, status: WorkerStatus) -> None:
        """Compare a worker's status with the one `before`, None if there was no recent one."""
        if not self._leading():
            return
        earlier = set() if before is None else {pressure.resource for pressure in before.pressure}
        for pressure in status.pressure:
            if pressure.resource not in earlier:
                self._heard(status.worker, pressure.resource, pressure.detail)
        for resource in sorted(earlier - {pressure.resource for pressure in status.pressure}):
            self._heard(status.worker, resource, None)
