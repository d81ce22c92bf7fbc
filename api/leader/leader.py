"""The leader's loop: campaign, then pass after pass until the leadership is lost.

It waits until this master is fit, and campaigns. Once elected, it runs a pass after each change and at least every
`tick_s` seconds, until the leadership is lost. A pass first makes sure that its reads include all writes of earlier
leaders (`Leadership.barrier`). It then compares SQL with the records in etcd, the coordinator, and writes the
differences: the epoch, the owners of partitions, the published specs. It keeps nothing that the next leader would need.

When the leadership is lost, all tasks started under it are cancelled before this master campaigns again. As soon as
another master could have been elected (`Leadership.acting`), no pass begins and every write to etcd is refused.

A leader that cannot work resigns, although etcd still counts it as alive. That is so when it becomes unfit (see
`api.members.health`), or when its passes have failed for `SICK_S` seconds. It campaigns again once it is fit.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import structlog

from api.crawls.controller import CrawlController
from api.leader.candidacy import Candidacy
from api.leader.command_rounds import CommandRounds
from api.leader.config_publisher import ConfigPublisher
from api.leader.exclusion_publisher import ExclusionPublisher
from api.leader.host_policy_publisher import HostPolicyPublisher
from api.leader.schedule_commands import ScheduleCommandPublisher
from api.leader.schedule_runner import FiringCallback, ScheduleRunner
from api.leader.seed_set_publisher import SeedSetPublisher
from api.leader.spec_publisher import CrawlSpecPublisher
from api.members.engines import MasterEngines
from api.members.health import HealthMonitor
from api.members.membership import assignments_in, members_in, read_record
from shared.domain.errors import OwnershipLost, Permanent, ResourceFull, Transient
from shared.domain.frontier.placement import PlacementMaster, PlacementRules, reconcile
from shared.domain.ids import Partition, Term, term_of
from shared.ports.coordinator import MAX_WRITES, Conflict, Leadership, Session, Snapshot
from shared.runtime.retry import until_answered
from shared.runtime.supervise import Failpoint, Tasks, no_failpoint
from shared.wire.keys import EpochRecord, LeaderRecord, MemberRecord, PartitionRecord, encode_record

log = structlog.get_logger("orb.control")

T = TypeVar("T")

TICK_S: Final = 5.0
SICK_S: Final = 15.0
"""A leader resigns after its passes have failed for this many seconds."""

_RECOVERY_S: Final = 10.0
_AGAIN_S: Final = 0.2
_TERM_BITS: Final = 44


def epoch_after(stored: int, published: int | None, newest: Term, revision: int) -> int:
    """Return the epoch under which to lead: `stored`, or a higher epoch if etcd was replaced.

    - `stored`: the epoch in SQL.
    - `published`: the epoch in etcd, None if etcd has no epoch.
    - `newest`: the newest term in SQL. A term is a pair: an epoch, and the revision of etcd at an election.
    - `revision`: the present revision of etcd.

    etcd counts as replaced, by an empty etcd or by an older copy, in two cases:

    - `published` is None, or another epoch than `stored`.
    - `newest` is greater than the pair (`stored`, `revision`). Example: `newest` is (3, 500), `stored` and `published`
      are 3, and `revision` is 200. etcd had reached revision 500, so an etcd at revision 200 is an older copy. The
      result is 4.
    """
    if published == stored and newest <= term_of(stored, revision):
        return stored
    return max(stored, published or 0, newest >> _TERM_BITS) + 1


def owners_in(
    assigned: Mapping[Partition, PartitionRecord], masters: Mapping[str, MemberRecord], epoch: int
) -> dict[Partition, str]:
    """Return a mapping from partition to the id of its owner, for owners that are registered masters.

    Leave out assignments of another epoch, and assignments to a master that was restarted since.
    """
    return {
        partition: record.owner
        for partition, record in assigned.items()
        if record.epoch == epoch
        and (member := masters.get(record.owner)) is not None
        and member.started_at_ms == record.started_at_ms
    }


class Leader:
    """Takes part in the elections of a leader, and does the leader's work while its master leads."""

    def __init__(
        self,
        member: MemberRecord,
        engines: MasterEngines,
        controller: CrawlController,
        health: HealthMonitor,
        *,
        partitions: int,
        rules: PlacementRules | None = None,
        tick_s: float = TICK_S,
        sick_s: float = SICK_S,
        on_firing: FiringCallback,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._member = member
        self._coordinator = engines.coordinator
        self._view = engines.view
        self._keys = engines.keys
        self._store = engines.store
        self._desired = engines.desired
        self._kind = engines.kind
        self._publisher = engines.publisher
        self._broker = engines.broker
        self._clock = engines.clock
        self._controller = controller
        self._health = health
        self._partitions = partitions
        self._rules = rules or PlacementRules()
        self._tick_s = tick_s
        self._sick_s = sick_s
        self._failpoint = failpoint
        self._schedules = engines.schedules
        policies = HostPolicyPublisher(engines.desired, engines.broker)
        seed_sets = SeedSetPublisher(engines.desired, engines.broker, partitions)
        firings = ScheduleCommandPublisher(engines.schedules, engines.broker, partitions)
        self._policies = CommandRounds("host_policies", policies.once, self.acting)
        self._seed_sets = CommandRounds("seed_sets", seed_sets.once, self.acting)
        self._firings = CommandRounds("schedules", firings.once, self.acting)
        self._on_firing = on_firing
        self._candidacy = Candidacy(member.id, engines.view, engines.keys, engines.clock)
        self._leadership: Leadership | None = None
        self._epoch = 0
        self._sick = False
        self._seen_since: dict[tuple[str, int], float] = {}
        self._poked = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Leader {self._member.id} {self._leadership!r} epoch={self._epoch}>"

    def acting(self) -> bool:
        """Return True if this master leads and no other can have taken over yet."""
        return self._leadership is not None and self._leadership.acting(self._clock.elapsed())

    def term(self) -> Term | None:
        """Return the term under which this master leads. None: it does not lead, or has not run its first pass yet."""
        if self._leadership is None or not self._epoch:
            return None
        return term_of(self._epoch, self._leadership.revision)

    def wake(self) -> None:
        """Start the next pass of the leader now.

        Wake the crawl controller and the publishers of host policies and seed sets, too.
        """
        self._poked.set()
        self._policies.wake()
        self._seed_sets.wake()
        self._controller.wake(look_back=True)

    async def attend(self, session: Session) -> None:
        """Campaign, and lead when elected, again and again until cancelled.

        `session`: this master's session in etcd, which ends if it is not renewed in time. Raise OwnershipLost if it has
        ended.
        """
        while True:
            await self._health.fit()
            await self._candidacy.until_due()
            leadership = await self._won(session)
            if leadership is None:
                continue
            try:
                well = await self._lead(leadership)
                # The resignation may have been cancelled: the leadership ends here before the coordinator confirms it.
                await until_answered(leadership.resign)
                if not well:
                    await asyncio.sleep(_RECOVERY_S)
            except asyncio.CancelledError:
                with suppress(Transient, TimeoutError):
                    async with asyncio.timeout(_AGAIN_S * 5):
                        await leadership.resign()
                raise

    async def _won(self, session: Session) -> Leadership | None:
        """Campaign in one election. Return the leadership if this master wins, None if it gave up before.

        This master gives up if it becomes unfit. It also gives up if it drains and a master that does not drain could
        lead. After None, the caller waits until this master should campaign, and calls again.
        """
        record = encode_record(LeaderRecord(self._member.id, self._member.address))
        async with Tasks() as tasks:
            winning = tasks.start(
                "leader.campaign", until_answered(lambda: session.campaign(self._keys.leader, record))
            )
            ailing = tasks.start("leader.unfit", self._health.unfit())
            better = tasks.start("leader.better", self._candidacy.until_better())
            await asyncio.wait({winning, ailing, better}, return_when=asyncio.FIRST_COMPLETED)
        # The campaign may succeed while it is being cancelled.
        return None if winning.cancelled() else winning.result()

    async def _lead(self, leadership: Leadership) -> bool:
        """Lead until the leadership is lost. Return False if this master resigned because passes failed, else True."""
        self._leadership, self._epoch, self._sick = leadership, 0, False
        self._seen_since.clear()
        log.info("leader.elected", master=self._member.id, revision=leadership.revision)
        try:
            async with Tasks() as tasks:
                tasks.start("leader.watch", self._watch())
                tasks.start("leader.health", self._resign_unfit(leadership))
                excluding = ExclusionPublisher(
                    self._coordinator,
                    leadership,
                    self._keys,
                    self._desired,
                    self._broker,
                    self._clock,
                    self._partitions,
                )
                tasks.start("leader.pass", self._passes(leadership, excluding))
                tasks.start("leader.exclusions", excluding.commands.run())
                tasks.start("leader.host_policies", self._policies.run())
                tasks.start("leader.seed_sets", self._seed_sets.run())
                tasks.start("leader.tend", self._controller.lead(self.acting, self.term, self._poked.set))
                tasks.start("leader.schedules", self._runner().run())
                tasks.start("leader.schedule_commands", self._firings.run())
                tasks.start("leader.leave", self._leave(leadership))
                await leadership.lost()
                return not self._sick
        finally:
            self._leadership = None
            log.info("leadership.ended", master=self._member.id, revision=leadership.revision)

    def _runner(self) -> ScheduleRunner:
        """Return the runner of schedules for this leadership. It acts only while no other master can lead."""
        return ScheduleRunner(
            self._schedules,
            self._clock,
            self._partitions,
            lambda: self.term() if self.acting() else None,
            self._firings.wake,
            self._controller.wake,
            self._on_firing,
        )

    async def _watch(self) -> None:
        """Start a pass at every change of the coordinator's records, until cancelled."""
        snapshot = self._view.snapshot
        while True:
            snapshot = await self._view.changed(snapshot, None)
            self._poked.set()

    async def _resign_unfit(self, leadership: Leadership) -> None:
        """Wait until this master is unfit to lead, then resign."""
        log.error("leader.resigned", master=self._member.id, reason=await self._health.unfit())
        await until_answered(leadership.resign)
        await leadership.lost()

    async def _leave(self, leadership: Leadership) -> None:
        """Wait until this master drains and another master could lead, then resign."""
        await self._candidacy.until_better()
        log.info("leadership.released", master=self._member.id)
        await until_answered(leadership.resign)
        await leadership.lost()

    async def _passes(self, leadership: Leadership, excluding: ExclusionPublisher) -> None:
        publishing = CrawlSpecPublisher(
            self._coordinator,
            leadership,
            self._publisher(leadership),
            self._keys,
            self._store,
            self._controller,
            self._clock,
            self._partitions,
            self._failpoint,
        )
        announcing = ConfigPublisher(self._coordinator, leadership, self._keys, self._desired, self._clock)
        well_at = self._clock.elapsed()
        while True:
            self._poked.clear()
            again_s = self._tick_s
            failed = False
            try:
                if self.acting():
                    await self._pass(leadership, excluding, announcing, publishing)
                else:
                    again_s = _AGAIN_S
            except OwnershipLost as error:
                log.info("leader.suspended", error=str(error))
                again_s = _AGAIN_S
            except Conflict as error:
                log.info("leader_pass.repeated", error=str(error))
                again_s = 0.0
            except ResourceFull as error:  # Another leader would have no more capacity, so this is no failed pass.
                log.debug("leader_pass.postponed", error=str(error))
                again_s = self._tick_s
            except Transient as error:
                log.warning("leader_pass.delayed", error=str(error))
                again_s = min(error.retry_in, self._tick_s)
                failed = self.acting()
            except Permanent as error:
                log.error("leader_pass.refused", error=str(error))
                failed = True
            now = self._clock.elapsed()
            well_at = well_at if failed else now
            if now - well_at >= self._sick_s:
                await self._give_up(leadership)
            with suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._poked.wait()

    async def _give_up(self, leadership: Leadership) -> None:
        """Resign because passes fail.

        Otherwise no other master would be elected, because this master's session is alive.
        """
        log.error("leader.resigned", master=self._member.id, reason=f"no pass was through for {self._sick_s} s")
        self._sick = True
        await until_answered(leadership.resign)
        await leadership.lost()

    async def _pass(
        self,
        leadership: Leadership,
        excluding: ExclusionPublisher,
        announcing: ConfigPublisher,
        publishing: CrawlSpecPublisher,
    ) -> None:
        """Run one pass: compare the state in SQL with the published state, and publish the differences.

        Exclusions are published before the specs, so that workers have them before they request URLs of a new crawl.
        """
        self._epoch = await self._settle_epoch(leadership)
        await excluding.once()
        await self._place(leadership, self._epoch)
        await announcing.once()
        await publishing.once()

    async def _settle_epoch(self, leadership: Leadership) -> int:
        revision = await leadership.barrier()
        entry = await self._coordinator.get(self._keys.epoch)
        record = None if entry is None else read_record(entry, EpochRecord)
        published = None if record is None else record.epoch
        stored = await self._store.epoch()
        epoch = epoch_after(stored, published, await self._store.newest_term(), revision)
        if (epoch, epoch) != (stored, published):
            # SQL first: in the other order, an interruption in between would let terms of this epoch be given twice.
            epoch = await self._store.raise_epoch(epoch)
            await leadership.write(
                {self._keys.epoch: encode_record(EpochRecord(epoch))},
                expect={self._keys.epoch: 0 if entry is None else entry.revision},
            )
            log.warning("epoch.raised", epoch=epoch, stored_epoch=stored, found_epoch=published, revision=revision)
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
                PlacementMaster(member.id, self._seen_since[(member.id, member.started_at_ms)], member.draining)
                for member in members.values()
            ],
            owners_in(assigned, members, epoch),
            partitions=self._partitions,
            store=self._kind,
            leader=self._member.id,
            now=now,
            rules=self._rules,
        )
        for chunk in _chunks(sorted(plan.owners.items()), MAX_WRITES):
            puts = {
                self._keys.partition(partition): encode_record(
                    PartitionRecord(owner, epoch, members[owner].started_at_ms)
                )
                for partition, owner in chunk
            }
            await leadership.write(puts, expect={key: _revision_of(listed, key) for key in puts})
        if plan.owners or plan.stranded:
            log.info(
                "placement.updated",
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
