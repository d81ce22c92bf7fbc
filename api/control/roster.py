"""How the members are loaded, as they say about every second. No promise rests on it; times are monotonic seconds."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from shared.wire.messages import MasterStatus, WorkerStatus

STALE_AFTER_S: Final = 5.0
"""Of a member that has been silent for so long nothing is known."""

RATE_S: Final = 10.0
"""Over how long rates are taken."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's last status, and its pages a second lately (None until two statuses of its process came)."""

    status: WorkerStatus
    pages_per_s: float | None


@dataclass(slots=True)
class _Worker:
    status: WorkerStatus
    heard_at: float
    samples: deque[tuple[float, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Master:
    status: MasterStatus
    heard_at: float


class Roster:
    """What this replica heard last of every member, by id."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._masters: dict[str, _Master] = {}

    def __repr__(self) -> str:
        return f"<Roster masters={len(self._masters)} workers={len(self._workers)}>"

    def heard_worker(self, status: WorkerStatus, now: float) -> None:
        """A worker told its status. A process started anew begins to count anew."""
        known = self._workers.get(status.worker)
        same = known is not None and known.status.pid == status.pid and known.status.pages <= status.pages
        samples: deque[tuple[float, int]] = known.samples if known is not None and same else deque()
        samples.append((now, status.pages))
        while len(samples) > 2 and now - samples[1][0] >= RATE_S:
            samples.popleft()
        self._workers[status.worker] = _Worker(status, now, samples)
        self._forget(now)

    def heard_master(self, status: MasterStatus, now: float) -> None:
        """A master told its status."""
        self._masters[status.master] = _Master(status, now)
        self._forget(now)

    def worker(self, member: str, now: float) -> WorkerLoad | None:
        """A worker's load, if it was heard of lately."""
        known = self._workers.get(member)
        if known is None or now - known.heard_at > STALE_AFTER_S:
            return None
        (first_at, first), (last_at, last) = known.samples[0], known.samples[-1]
        rate = (last - first) / (last_at - first_at) if last_at > first_at else None
        return WorkerLoad(known.status, rate)

    def master(self, member: str, now: float) -> MasterStatus | None:
        """A master's status, if it was heard of lately."""
        known = self._masters.get(member)
        return None if known is None or now - known.heard_at > STALE_AFTER_S else known.status

    def visits(self, pool: str, now: float) -> tuple[int, int]:
        """Return how many visits the pool's workers can hold, and how many they hold."""
        live = [each.status for each in self._workers.values() if now - each.heard_at <= STALE_AFTER_S]
        taking = [status for status in live if status.pool == pool and status.pulling]
        return sum(status.visits for status in taking), sum(status.busy for status in taking)

    def held(self, pool: str, now: float) -> str | None:
        """Why nothing is sent out for a pool: what masters say that own something and send nothing, or its workers if
        none takes any for want of room. None while somebody works on it, or nobody was heard of lately."""
        masters = [each.status for each in self._masters.values() if now - each.heard_at <= STALE_AFTER_S]
        for status in sorted(masters, key=lambda status: status.master):
            if status.held and status.partitions:
                return f"master {status.master}: {status.held}"
        workers = [each.status for each in self._workers.values() if now - each.heard_at <= STALE_AFTER_S]
        of_pool = sorted((status for status in workers if status.pool == pool), key=lambda status: status.worker)
        if of_pool and all(status.short for status in of_pool):
            return f"worker {of_pool[0].worker}: {of_pool[0].short}"
        return None

    def stands_still(self, pool: str, now: float) -> bool:
        """Whether nothing of a pool is worked on for want of room: no master that owns something sends anything out, or
        no worker of it takes a visit. Where nobody was heard of lately, it does not count as still."""
        masters = [each.status for each in self._masters.values() if now - each.heard_at <= STALE_AFTER_S]
        owning = [bool(status.held) for status in masters if status.partitions]
        workers = [each.status for each in self._workers.values() if now - each.heard_at <= STALE_AFTER_S]
        of_pool = [bool(status.short) for status in workers if status.pool == pool]
        return any(found and all(found) for found in (owning, of_pool))

    def _forget(self, now: float) -> None:
        """Members come and go: who has been silent for long takes no room."""
        for known in (self._workers, self._masters):
            for member in [name for name, each in known.items() if now - each.heard_at > 12 * STALE_AFTER_S]:
                del known[member]
