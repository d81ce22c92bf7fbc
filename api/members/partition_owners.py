"""Start and stop the owners of this master: one for each partition that the leader has assigned to it in etcd.

Each assignment has a term, a number that grows with each new owner of the partition. A master follows only an
assignment whose term is greater than the last known one. Once another master has claimed a partition, SQL refuses the
writes of the earlier owner.

An owner keeps running in these cases:

- etcd does not answer.
- etcd loses the assignments, or is restored from a backup.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from api.frontier.owner import Alarm, Owner, ignore_alarm
from api.members.membership import assignments_in
from shared.domain.errors import Unusable
from shared.domain.ids import Partition, Term
from shared.ports.coordinator import Entry, Snapshot, View
from shared.runtime.supervise import Tasks
from shared.wire.keys import Keys, MemberRecord, PartitionRecord

log = structlog.get_logger("orb.control")

_RESYNC_S = 5.0
_AGAIN_S = 1.0
_LONGEST_REST_S = 30.0

MakeOwner = Callable[[Partition, Term, bool], Owner]
"""Makes an owner from a partition, a term and a flag. The flag is True if an earlier owner of this term has failed."""


@dataclass(frozen=True, slots=True)
class StartOwner:
    """Change: start an owner of the partition under `term`. It replaces this master's present owner, if any."""

    partition: Partition
    term: Term


@dataclass(frozen=True, slots=True)
class StopOwner:
    """Change: stop this master's owner of the partition, if any. Another process owns the partition under `term`."""

    partition: Partition
    term: Term


def owner_changes(
    assigned: Mapping[Partition, tuple[PartitionRecord, Entry]],
    seen: Mapping[Partition, Term],
    member: MemberRecord,
    partitions: int,
) -> Iterator[StartOwner | StopOwner]:
    """Yield which owners the master `member` must start or stop to follow new assignments.

    - `assigned`: the assignments in etcd, to any master.
    - `seen`: for each partition, the term of the last assignment that this master has followed. An assignment is new
      only if its term is greater.
    - `partitions`: the cluster's number of partitions.
    """
    for partition, (record, entry) in sorted(assigned.items()):
        term = record.term(entry.revision)
        if partition >= partitions or term <= seen.get(partition, Term(0)):
            continue
        if (record.owner, record.started_at_ms) == (member.id, member.started_at_ms):
            yield StartOwner(partition, term)
        else:
            yield StopOwner(partition, term)


class PartitionOwners:
    """Starts and stops the owners of this master's partitions while `run` runs.

    When `run` ends, all owners have stopped.
    """

    def __init__(
        self,
        view: View,
        keys: Keys,
        member: MemberRecord,
        partitions: int,
        make_owner: MakeOwner,
        alarm: Alarm = ignore_alarm,
    ) -> None:
        self._view = view
        self._keys = keys
        self._member = member
        self._partitions = partitions
        self._make_owner = make_owner
        self._alarm = alarm
        self._seen: dict[Partition, Term] = {}
        self._owners: dict[Partition, Owner] = {}
        self._running: dict[Partition, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Owner]:
        return iter(list(self._owners.values()))

    def __len__(self) -> int:
        return len(self._owners)

    def __repr__(self) -> str:
        return f"<PartitionOwners {self._member.id} owns {len(self._owners)} of {self._partitions}>"

    def owns_all(self) -> bool:
        """Return True if this master owns every partition of the cluster and has loaded all of them."""
        return len(self._owners) == self._partitions and all(owner.ownership is not None for owner in self)

    def resumed(self) -> None:
        """Make every owner look for work at once. Call it when a stopped crawl may be dispatched again."""
        for owner in self:
            if owner.ownership is not None:
                owner.ownership.resumed()

    def capacity_changed(self) -> None:
        """Make owners with due URLs dispatch at once. Call it when workers have reported their capacity."""
        for owner in self:
            if owner.ownership is not None:
                owner.ownership.capacity_changed()

    async def run(self) -> None:
        """Start and stop owners as assignments change, until cancelled. Raise Unusable if an owner raises it."""
        async with Tasks() as tasks:
            snapshot = self._view.snapshot
            while True:
                await self._follow(snapshot, tasks)
                snapshot = await self._view.changed(snapshot, _RESYNC_S)

    async def _follow(self, snapshot: Snapshot, tasks: Tasks) -> None:
        changes = list(owner_changes(assignments_in(snapshot, self._keys), self._seen, self._member, self._partitions))
        stopping = []
        for change in changes:
            self._seen[change.partition] = change.term
            if (task := self._running.pop(change.partition, None)) is not None:
                task.cancel()
                stopping.append(task)
            self._owners.pop(change.partition, None)
        if stopping:
            await asyncio.wait(stopping)
        begun = [change for change in changes if isinstance(change, StartOwner)]
        for change in begun:
            owning = self._own(change.partition, change.term)
            self._running[change.partition] = tasks.start(f"owner.{change.partition}", owning)
        if changes:
            log.info(
                "partition_owners.changed",
                master=self._member.id,
                started=len(begun),
                stopped=len(stopping),
                owned=sum(not task.done() for task in self._running.values()),
                term=max(change.term for change in changes),
            )

    async def _own(self, partition: Partition, term: Term) -> None:
        """Run an owner of the partition until another process owns it. Replace an owner that fails.

        Raise Unusable if an owner raises it.
        """
        again = False
        rest_s = _AGAIN_S
        while True:
            owner = self._owners[partition] = self._make_owner(partition, term, again)
            try:
                await owner.run()
            except Exception as error:
                if _unusable(error):
                    raise
                log.exception("owner.failed", partition=partition, term=term)
                self._alarm(partition, f"partition {partition}: its owner failed and is replaced ({error!r})")
            else:
                break
            finally:
                if self._owners.get(partition) is owner:
                    del self._owners[partition]
            again = True
            await asyncio.sleep(rest_s)
            rest_s = min(_LONGEST_REST_S, rest_s * 2)
        log.info("owner.stopped", partition=partition, term=term)


def _unusable(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_unusable(inner) for inner in error.exceptions)
    return isinstance(error, Unusable)
