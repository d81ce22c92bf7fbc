"""The leader: fit -> campaign -> barrier -> reconcile -> wait for a change or a tick -> again, until it is lost.

Every pass reads what is and writes what differs: the epoch, the owners of partitions, the published specs. It keeps
nothing that the next leader would need. What is started under a leadership is cancelled before anything else happens
when that is lost; past the time at which the lease could be given away (`Leadership.acting`) no pass begins, and every
write is refused. SQL is not written under the leadership but under conditions of its own (see `tending`).

A leader that cannot do its work resigns although its session is well: when it becomes unfit (see `health`), and when
its passes have failed for `SICK_S`. It campaigns again once it is fit.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import structlog

from api.control.announcing import Announcing
from api.control.health import Health
from api.control.membership import assignments_in, members_in, read_record
from api.control.publishing import Publishing
from api.control.standing import Standing
from api.control.tending import Tending
from shared.domain.errors import NoRoom, OwnershipLost, Permanent, Transient
from shared.domain.ids import Partition, Term, term_of
from shared.domain.placement import Master, PlacementRules, StoreKind, reconcile
from shared.ports.clock import Clock
from shared.ports.coordinator import MOST_WRITES, Conflict, Coordinator, Leadership, Session, Snapshot, View
from shared.ports.desired import Desired
from shared.ports.retrying import until_answered
from shared.ports.specs import SpecPublisher
from shared.ports.store import Store
from shared.supervise import Failpoint, Tasks, no_failpoint
from shared.wire.keys import EpochRecord, Keys, LeaderRecord, MemberRecord, PartitionRecord, encode_record

log = structlog.get_logger("orb.control")

T = TypeVar("T")

TICK_S: Final = 2.0
SICK_S: Final = 15.0
"""A leader whose passes have failed for so long lets another one try."""

_RECOVERY_S: Final = 10.0
_AGAIN_S: Final = 0.2
_TERM_BITS: Final = 44


def epoch_after(stored: int, found: int | None, newest: Term, revision: int) -> int:
    """The epoch to go on under: SQL's, unless the coordinator was replaced.

    It was if it knows no epoch or another one (`found`), or if SQL has seen a term (`newest`) that is beyond what the
    coordinator's `revision` could have given: then it was restored from a backup of this very epoch.
    """
    if found == stored and newest <= term_of(stored, revision):
        return stored
    return max(stored, found or 0, newest >> _TERM_BITS) + 1


def owners_in(
    assigned: Mapping[Partition, PartitionRecord], masters: Mapping[str, MemberRecord], epoch: int
) -> dict[Partition, str]:
    """Who owns what, of those who live. An assignment of another epoch, or to an earlier process of the same id, is
    none: its term cannot be claimed any more."""
    return {
        partition: record.owner
        for partition, record in assigned.items()
        if record.epoch == epoch
        and (member := masters.get(record.owner)) is not None
        and member.started_at_ms == record.started_at_ms
    }


class Leader:
    """A master's part in elections, and what it does when it has won one."""

    def __init__(
        self,
        member: MemberRecord,
        *,
        coordinator: Coordinator,
        view: View,
        keys: Keys,
        store: Store,
        desired: Desired,
        kind: StoreKind,
        tending: Tending,
        health: Health,
        publisher: Callable[[Leadership], SpecPublisher],
        clock: Clock,
        partitions: int,
        rules: PlacementRules | None = None,
        tick_s: float = TICK_S,
        sick_s: float = SICK_S,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._member = member
        self._coordinator = coordinator
        self._view = view
        self._keys = keys
        self._store = store
        self._desired = desired
        self._kind = kind
        self._tending = tending
        self._health = health
        self._publisher = publisher
        self._clock = clock
        self._partitions = partitions
        self._rules = rules or PlacementRules()
        self._tick_s = tick_s
        self._sick_s = sick_s
        self._failpoint = failpoint
        self._standing = Standing(member.id, view, keys, clock)
        self._leadership: Leadership | None = None
        self._epoch = 0
        self._sick = False
        self._seen_since: dict[tuple[str, int], float] = {}
        self._poked = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Leader {self._member.id} {self._leadership!r} epoch={self._epoch}>"

    def acting(self) -> bool:
        """Whether this master leads, and may act on it now."""
        return self._leadership is not None and self._leadership.acting(self._clock.elapsed())

    def term(self) -> Term | None:
        """The term of the leadership; None without one, and before its first pass."""
        if self._leadership is None or not self._epoch:
            return None
        return term_of(self._epoch, self._leadership.revision)

    def wake(self) -> None:
        """Look now."""
        self._poked.set()
        self._tending.wake()

    async def attend(self, session: Session) -> None:
        """Campaign, lead, and campaign again, until the session is lost (OwnershipLost) or this is cancelled."""
        while True:
            await self._health.fit()
            await self._standing.until_due()
            leadership = await self._won(session)
            if leadership is None:
                continue
            try:
                well = await self._lead(leadership)
                # Whoever resigned was perhaps cut short, since by its own account it is over before others hear of it.
                await until_answered(leadership.resign)
                if not well:
                    await asyncio.sleep(_RECOVERY_S)
            except asyncio.CancelledError:
                with suppress(Transient, TimeoutError):
                    async with asyncio.timeout(_AGAIN_S * 5):
                        await leadership.resign()
                raise

    async def _won(self, session: Session) -> Leadership | None:
        """Campaign until it is won; None when this master became unfit first, or another one should lead."""
        record = encode_record(LeaderRecord(self._member.id, self._member.address))
        async with Tasks() as tasks:
            winning = tasks.start(
                "leader.campaign", until_answered(lambda: session.campaign(self._keys.leader, record))
            )
            ailing = tasks.start("leader.unfit", self._health.unfit())
            better = tasks.start("leader.better", self._standing.until_better())
            await asyncio.wait({winning, ailing, better}, return_when=asyncio.FIRST_COMPLETED)
        # It may be won in the very moment in which it is given up.
        return None if winning.cancelled() else winning.result()

    async def _lead(self, leadership: Leadership) -> bool:
        """Act as the leader until that is lost; False when it was given up, since this master cannot do it."""
        self._leadership, self._epoch, self._sick = leadership, 0, False
        self._seen_since.clear()
        log.info("leader.won", master=self._member.id, revision=leadership.revision)
        try:
            async with Tasks() as tasks:
                tasks.start("leader.watch", self._watch())
                tasks.start("leader.health", self._resign_unfit(leadership))
                tasks.start("leader.pass", self._passes(leadership))
                tasks.start("leader.tend", self._tending.run(self.acting, self.term))
                tasks.start("leader.leave", self._leave(leadership))
                await leadership.lost()
                return not self._sick
        finally:
            self._leadership = None
            log.info("leader.over", master=self._member.id, revision=leadership.revision)

    async def _watch(self) -> None:
        """Let every change be looked at."""
        snapshot = self._view.snapshot
        while True:
            snapshot = await self._view.changed(snapshot, None)
            self._poked.set()

    async def _resign_unfit(self, leadership: Leadership) -> None:
        """Let another one lead as soon as this master is unfit to."""
        log.error("leader.resigns", master=self._member.id, reason=await self._health.unfit())
        await until_answered(leadership.resign)
        await leadership.lost()

    async def _leave(self, leadership: Leadership) -> None:
        """Resign where this master drains and another could lead."""
        await self._standing.until_better()
        log.info("leader.leaves", master=self._member.id)
        await until_answered(leadership.resign)
        await leadership.lost()

    async def _passes(self, leadership: Leadership) -> None:
        publishing = Publishing(
            self._coordinator,
            leadership,
            self._publisher(leadership),
            self._keys,
            self._store,
            self._clock,
            self._partitions,
            self._failpoint,
        )
        announcing = Announcing(self._coordinator, leadership, self._keys, self._desired, self._clock)
        well_at = self._clock.elapsed()
        while True:
            self._poked.clear()
            again_s = self._tick_s
            failed = False
            try:
                if self.acting():
                    await self._pass(leadership, publishing, announcing)
                else:
                    again_s = _AGAIN_S
            except OwnershipLost as error:
                log.info("leader.not_acting", reason=str(error))
                again_s = _AGAIN_S
            except Conflict as error:
                log.info("leader.again", reason=str(error))
                again_s = 0.0
            except NoRoom as error:  # another leader would have none either
                log.debug("leader.no_room", error=str(error))
                again_s = self._tick_s
            except Transient as error:
                log.warning("leader.waits", error=str(error))
                again_s = min(error.retry_in, self._tick_s)
                failed = self.acting()
            except Permanent as error:
                log.error("leader.refused", error=str(error))
                failed = True
            now = self._clock.elapsed()
            well_at = well_at if failed else now
            if now - well_at >= self._sick_s:
                await self._give_up(leadership)
            with suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._poked.wait()

    async def _give_up(self, leadership: Leadership) -> None:
        """Resign: the session is well, so that nobody else would be elected, and this master gets nothing done."""
        log.error("leader.resigns", master=self._member.id, reason=f"no pass was through for {self._sick_s} s")
        self._sick = True
        await until_answered(leadership.resign)
        await leadership.lost()

    async def _pass(self, leadership: Leadership, publishing: Publishing, announcing: Announcing) -> None:
        """Look at everything, and put right what differs."""
        self._epoch = await self._settle_epoch(leadership)
        await self._place(leadership, self._epoch)
        await announcing.once()
        await publishing.once()

    async def _settle_epoch(self, leadership: Leadership) -> int:
        revision = await leadership.barrier()
        entry = await self._coordinator.get(self._keys.epoch)
        record = None if entry is None else read_record(entry, EpochRecord)
        found = None if record is None else record.epoch
        stored = await self._store.epoch()
        epoch = epoch_after(stored, found, await self._store.newest_term(), revision)
        if (epoch, epoch) != (stored, found):
            # SQL first: were it the other way round and broken off between, terms of this epoch would be given twice.
            epoch = await self._store.raise_epoch(epoch)
            await leadership.write(
                {self._keys.epoch: encode_record(EpochRecord(epoch))},
                expect={self._keys.epoch: 0 if entry is None else entry.revision},
            )
            log.warning("leader.epoch", epoch=epoch, stored=stored, found=found, revision=revision)
        return epoch

    async def _place(self, leadership: Leadership, epoch: int) -> None:
        members = members_in(await self._coordinator.list(self._keys.masters), self._keys).masters
        listed = await self._coordinator.list(self._keys.partitions)
        assigned = {partition: record for partition, (record, _) in assignments_in(listed, self._keys).items()}
        now = self._clock.elapsed()
        for member in members.values():
            self._seen_since.setdefault((member.id, member.started_at_ms), now)
        plan = reconcile(
            [
                Master(member.id, self._seen_since[(member.id, member.started_at_ms)], member.draining)
                for member in members.values()
            ],
            owners_in(assigned, members, epoch),
            partitions=self._partitions,
            store=self._kind,
            leader=self._member.id,
            now=now,
            rules=self._rules,
        )
        for chunk in _chunks(sorted(plan.owners.items()), MOST_WRITES):
            puts = {
                self._keys.partition(partition): encode_record(
                    PartitionRecord(owner, epoch, members[owner].started_at_ms)
                )
                for partition, owner in chunk
            }
            await leadership.write(puts, expect={key: _revision_of(listed, key) for key in puts})
        if plan.owners or plan.stranded:
            log.info(
                "leader.placed",
                partitions=len(plan.owners),
                moves=plan.moves,
                deferred=plan.deferred,
                stranded=len(plan.stranded),
                masters=len(members),
            )


def _revision_of(snapshot: Snapshot, key: str) -> int:
    entry = snapshot.entries.get(key)
    return 0 if entry is None else entry.revision


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
