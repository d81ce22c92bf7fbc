"""React to resource pressure. A master under pressure dispatches nothing. Pressure on workers is reported as events.

Work in progress continues: owners still apply reports and extend grants.
"""

from collections.abc import Callable

from api.frontier.capacity import PoolCapacity
from shared.domain.ops.watermarks import PressureState, Resource
from shared.wire.messages import WorkerStatus

PressureCallback = Callable[[str, str, str | None], None]
"""Called with a member's id, the name of a resource, and the reason for its pressure. None: the pressure has ended.

The callback must not wait or raise.
"""


def log_only(member: str, resource: str, reason: str | None) -> None:
    """Do nothing: the callback (`PressureCallback`) of a standalone master, which publishes no events.

    Each change of pressure is only logged. The pressure monitor writes the log entry itself.
    """


class MasterPressure:
    """Stops the dispatch of the master `member` while one of its resources is under pressure.

    After each change it calls `notify`, which publishes the master's new status, and then `on_pressure`.
    """

    def __init__(
        self, member: str, capacity: PoolCapacity, on_pressure: PressureCallback, notify: Callable[[], None]
    ) -> None:
        self._member = member
        self._capacity = capacity
        self._on_pressure = on_pressure
        self._notify = notify

    def __repr__(self) -> str:
        return f"<MasterPressure {self._member} held={self._capacity.held}>"

    def changed(self, state: PressureState, resource: Resource) -> None:
        """Stop or resume dispatch after the pressure on `resource` started or ended.

        `state`: which resources of this master are under pressure now.
        """
        self._capacity.held = state.reason
        self._notify()
        self._on_pressure(self._member, resource, state.reason if state.full(resource) else None)


class WorkerPressureEvents:
    """Calls `on_pressure` when resource pressure on a worker starts or ends.

    It does so only while this master leads, so that each change is reported once.
    """

    def __init__(self, leading: Callable[[], bool], on_pressure: PressureCallback) -> None:
        self._leading = leading
        self._on_pressure = on_pressure

    def status_received(self, before: WorkerStatus | None, status: WorkerStatus) -> None:
        """Report each resource whose pressure started or ended between two statuses of a worker.

        `before`: the worker's previous status, None if it is not recent. `status`: the present one.
        """
        if not self._leading():
            return
        earlier = set() if before is None else {pressure.resource for pressure in before.pressure}
        for pressure in status.pressure:
            if pressure.resource not in earlier:
                self._on_pressure(status.worker, pressure.resource, pressure.detail)
        for resource in sorted(earlier - {pressure.resource for pressure in status.pressure}):
            self._on_pressure(status.worker, resource, None)
