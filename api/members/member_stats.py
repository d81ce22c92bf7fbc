"""The load that members report about every second, as this master received it. No guarantee depends on it.

Times are monotonic seconds.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from shared.domain.ops.config import MemberRole
from shared.domain.ops.watermarks import Pressure, reason_of
from shared.wire.messages import MasterStatus, WorkerStatus

STALE_AFTER_S: Final = 5.0
"""A status older than this many seconds is ignored."""

RATE_S: Final = 10.0
"""The window, in seconds, over which a worker's rate of stored pages is measured."""


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """A worker's last status, and how many pages a second it stored recently.

    `pages_per_s` is None until the worker has sent two statuses since its start.
    """

    status: WorkerStatus
    pages_per_s: float | None


@dataclass(frozen=True, slots=True)
class PressureAt:
    """The resource pressure that stops dispatch, and the member where it is."""

    role: MemberRole
    member: str
    pressure: tuple[Pressure, ...]

    @property
    def reason(self) -> str:
        """A sentence that names the member and describes its resource pressure."""
        return f"{self.role} {self.member}: {reason_of(self.pressure)}"


@dataclass(slots=True)
class _WorkerStats:
    status: WorkerStatus
    received_at: float
    samples: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _MasterStats:
    status: MasterStatus
    received_at: float


class MemberStats:
    """The last status that this master received from each member, by member id. Times are `Clock.elapsed` seconds."""

    def __init__(self) -> None:
        self._workers: dict[str, _WorkerStats] = {}
        self._masters: dict[str, _MasterStats] = {}

    def __repr__(self) -> str:
        return f"<MemberStats masters={len(self._masters)} workers={len(self._workers)}>"

    def worker_reported(self, status: WorkerStatus, now: float) -> None:
        """Store a worker's status, received at `now`. If its process is new, its rate of pages is measured anew."""
        known = self._workers.get(status.worker)
        same = known is not None and known.status.pid == status.pid and known.status.pages <= status.pages
        samples: deque[tuple[float, int]] = known.samples if known is not None and same else deque()
        samples.append((now, status.pages))
        while len(samples) > 2 and now - samples[1][0] >= RATE_S:
            samples.popleft()
        self._workers[status.worker] = _WorkerStats(status, now, samples)
        self._forget(now)

    def master_reported(self, status: MasterStatus, now: float) -> None:
        """Replace a master's last status by `status`, received at `now`."""
        self._masters[status.master] = _MasterStats(status, now)
        self._forget(now)

    def worker(self, member: str, now: float) -> WorkerActivity | None:
        """Return a worker's last status and rate; None if it reported nothing for STALE_AFTER_S seconds."""
        known = self._workers.get(member)
        if known is None or now - known.received_at > STALE_AFTER_S:
            return None
        (first_at, first), (last_at, last) = known.samples[0], known.samples[-1]
        rate = (last - first) / (last_at - first_at) if last_at > first_at else None
        return WorkerActivity(known.status, rate)

    def master(self, member: str, now: float) -> MasterStatus | None:
        """Return a master's last status; None if it reported nothing for STALE_AFTER_S seconds."""
        known = self._masters.get(member)
        return None if known is None or now - known.received_at > STALE_AFTER_S else known.status

    def visits(self, pool: str, now: float) -> tuple[int, int]:
        """Return (capacity, used): how many visits the pool's workers can run at once, and how many they run now.

        Count only workers that take further shards (`WorkerStatus.pulling`) and reported within the last STALE_AFTER_S
        seconds.
        """
        live = [each.status for each in self._workers.values() if now - each.received_at <= STALE_AFTER_S]
        taking = [status for status in live if status.pool == pool and status.pulling]
        return sum(status.visits for status in taking), sum(status.visits - status.free for status in taking)

    def pressure(self, pool: str, now: float) -> PressureAt | None:
        """Return the resource pressure that stops dispatch for a pool; None if none does, or no status is recent.

        - If at least one master that owns partitions is under pressure, return the pressure at this master. If there
          are several, the master with the lowest id is taken.
        - Otherwise, if all workers of the pool are under pressure, return the pressure at the one with the lowest id.
        """
        masters = [each.status for each in self._masters.values() if now - each.received_at <= STALE_AFTER_S]
        for status in sorted(masters, key=lambda status: status.master):
            if status.pressure and status.partitions:
                return PressureAt(MemberRole.MASTER, status.master, status.pressure)
        workers = [each.status for each in self._workers.values() if now - each.received_at <= STALE_AFTER_S]
        of_pool = sorted((status for status in workers if status.pool == pool), key=lambda status: status.worker)
        if of_pool and all(status.pressure for status in of_pool):
            return PressureAt(MemberRole.WORKER, of_pool[0].worker, of_pool[0].pressure)
        return None

    def stands_still(self, pool: str, now: float) -> bool:
        """Return True if resource pressure stops all work of a pool.

        That is so if all masters that own partitions, or all workers of the pool, are under pressure. Without recent
        statuses the result is False.
        """
        masters = [each.status for each in self._masters.values() if now - each.received_at <= STALE_AFTER_S]
        owning = [bool(status.pressure) for status in masters if status.partitions]
        workers = [each.status for each in self._workers.values() if now - each.received_at <= STALE_AFTER_S]
        of_pool = [bool(status.pressure) for status in workers if status.pool == pool]
        return any(pressures and all(pressures) for pressures in (owning, of_pool))

    def _forget(self, now: float) -> None:
        """Drop members whose last status is older than 12 times STALE_AFTER_S, to free their memory."""
        for known in (self._workers, self._masters):
            for member in [name for name, each in known.items() if now - each.received_at > 12 * STALE_AFTER_S]:
                del known[member]
