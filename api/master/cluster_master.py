"""A master of a cluster: it registers, may lead, and owns the partitions assigned to it.

Its parts stop in reverse order of their start. The owners stop while the master is still registered, so another master
takes over only after they have ended.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from api.crawls.active_crawls import ActiveCrawlSync
from api.crawls.controller import CrawlController
from api.crawls.retention_sweeper import RetentionSweeper
from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.owner import Alarm, Owner, unheard
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.leader.leader import TICK_S, Leader
from api.members.config_follower import MasterConfigFollower, limits_of, started_as
from api.members.control_plane import Members
from api.members.health import HealthLimits, HealthMonitor
from api.members.heartbeat import Heartbeat
from api.members.member_stats import MemberStats, ask_statuses
from api.members.membership import Membership, assignments_in, leader_in, members_in
from api.members.partition_owners import PartitionOwners
from api.members.pressure import Heard, MasterPressure, WorkerPressureEvents, log_only
from shared.domain.frontier.placement import PlacementRules, StoreKind
from shared.domain.ids import Partition, Term
from shared.domain.ops.config import LogLevel, MasterTuning
from shared.domain.ops.watermarks import Resource
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership, View
from shared.ports.desired import Desired
from shared.ports.items import ItemTable
from shared.ports.retained import Retained
from shared.ports.specs import SpecPublisher
from shared.ports.store import Store
from shared.runtime.pressure_monitor import NO_GAUGES, Gauge, PressureMonitor
from shared.runtime.registration import Registration
from shared.runtime.supervise import Failpoint, Tasks, no_failpoint
from shared.telemetry import set_log_level
from shared.wire.desired_state import DesiredState
from shared.wire.keys import Keys, MemberRecord
from shared.wire.messages import Malformed, MasterStatus, decode_master_status, decode_status
from shared.wire.subjects import MASTER_STATUS, WORKER_STATUS

log = structlog.get_logger("orb.control")

_LEAST_STALL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of a cluster master.

    A master that is silent for `ttl_s` counts as dead. The leader runs a pass at least every `tick_s`. A master is
    unfit to lead by the limits in `health`. By default its loop may stall for 5 s or a third of `ttl_s`, whichever is
    longer.
    """

    ttl_s: float = 15.0
    tick_s: float = TICK_S
    rules: PlacementRules = field(default_factory=PlacementRules)
    log_level: LogLevel = "info"
    health: HealthLimits | None = None

    @property
    def health_rules(self) -> HealthLimits:
        return self.health or HealthLimits(stalled_s=max(_LEAST_STALL_S, self.ttl_s / 3))


class ClusterMaster:
    """One master, and the control plane as it sees it (`api.members.control_plane.ControlPlane`)."""

    def __init__(
        self,
        member: MemberRecord,
        *,
        coordinator: Coordinator,
        view: View,
        keys: Keys,
        store: Store,
        items: ItemTable,
        desired: Desired,
        kind: StoreKind,
        broker: Broker,
        publisher: Callable[[Leadership], SpecPublisher],
        clock: Clock,
        frontier: FrontierSettings,
        tally: OwnerStats | None = None,
        settings: ClusterSettings | None = None,
        failpoint: Failpoint = no_failpoint,
        alarm: Alarm = unheard,
        gauges: Mapping[Resource, Gauge] = NO_GAUGES,
        room_heard: Heard = log_only,
        retained: Retained | None = None,
    ) -> None:
        """Compose the master.

        - `view` must watch `keys.root`: one snapshot then has the members, the leader and the assignments.
        - `gauges` measure the resources of this master.
        - `room_heard` is called when pressure on this master or on a worker starts or ends.
        - `retained` holds the rows that the leader deletes after their retention.
        """
        chosen = settings or ClusterSettings()
        self._view = view
        self._keys = keys
        self._store = store
        self._broker = broker
        self._clock = clock
        self._began_at = clock.elapsed()
        self._started_with = frontier
        self._frontier = limits_of(frontier, started_as(frontier, chosen.log_level))
        self._tally = tally or OwnerStats()
        self._member = member
        self._alarm = alarm
        self._crawls = DispatchCrawls()
        self._room = PoolCapacity()
        self._turn = asyncio.Lock()
        self.roster = MemberStats()
        self._membership = Membership(member, coordinator, keys, ttl_s=chosen.ttl_s)
        self._heartbeat = Heartbeat(broker, self._status)
        self._tuning = MasterConfigFollower(
            view, keys, member.id, started_as(frontier, chosen.log_level), apply=self._tune, drain=self.drain
        )
        watcher = MasterPressure(member.id, self._room, lambda: self.rationing, room_heard, self._heartbeat.notify)
        self.rationing = PressureMonitor(gauges, lambda: self.tuning().storage, watcher)
        self._workers_room = WorkerPressureEvents(self.is_leader, room_heard)
        self._fleet = PartitionOwners(view, keys, member, frontier.partitions, self._owner, alarm)
        self._crawling = ActiveCrawlSync(self._crawls, self._fleet, store)
        self._tending = CrawlController(
            store=store,
            items=items,
            broker=broker,
            clock=clock,
            partitions=frontier.partitions,
            told=self._crawling.wake,
            retaining=None if retained is None else RetentionSweeper(retained, lambda: self.tuning().retention, clock),
            tally=self._tally,
            alarm=alarm,
            still=lambda pool: self.roster.stands_still(pool, clock.elapsed()),
        )
        self._health = HealthMonitor(
            {"database": store.newest_term, "nats": broker.reports_state},
            clock,
            chosen.health_rules,
            silent_s={"database": store.silent_s},
        )
        self._leader = Leader(
            member,
            coordinator=coordinator,
            view=view,
            keys=keys,
            store=store,
            desired=desired,
            kind=kind,
            tending=self._tending,
            health=self._health,
            publisher=publisher,
            clock=clock,
            partitions=frontier.partitions,
            rules=chosen.rules,
            tick_s=chosen.tick_s,
            failpoint=failpoint,
        )

        self._tuning.follow(view.snapshot)  # A master that should drain must register as draining.

    def __repr__(self) -> str:
        return f"<ClusterMaster {self._leader!r} {self._fleet!r}>"

    # --- the control plane --------------------------------------------------------------------------------------------

    def is_leader(self) -> bool:
        return self._leader.acting()

    def leader_address(self) -> str | None:
        record = leader_in(self._view.snapshot, self._keys)
        return None if record is None or not record.address else record.address

    def term(self) -> Term | None:
        return self._leader.term()

    def members(self) -> Members:
        return members_in(self._view.snapshot, self._keys)

    def assignments(self) -> Mapping[Partition, str]:
        assigned = assignments_in(self._view.snapshot, self._keys)
        return {partition: record.owner for partition, (record, _) in assigned.items()}

    def wake(self) -> None:
        self._leader.wake()
        self._crawling.wake()

    def drain(self, draining: bool) -> None:
        """Start or cancel the drain: a draining master gets no more partitions and loses those it owns."""
        self._membership.drain(draining)
        self._heartbeat.notify()

    def tuning(self) -> MasterTuning:
        """Return the values that this master runs with."""
        return self._tuning.current

    def wanted(self) -> DesiredState:
        """Return the desired state of the members, as last published."""
        return self._tuning.wanted

    def _tune(self, tuning: MasterTuning) -> None:
        """Apply new values."""
        set_log_level(tuning.log_level)
        self._room.ahead = tuning.dispatch_ahead_ratio
        self._frontier = limits_of(self._started_with, tuning)
        for owner in self._fleet:
            owner.tune(self._frontier)
        self._heartbeat.notify()

    def _status(self) -> MasterStatus:
        owning = [owner.ownership for owner in self._fleet if owner.ownership is not None]
        return MasterStatus(
            master=self._member.id,
            partitions=len(owning),
            leading=self.is_leader(),
            draining=self._membership.member.draining,
            shards=sum(len(own.leases) for own in owning),
            uptime_ms=int((self._clock.elapsed() - self._began_at) * 1000),
            config=self._tuning.revision,
            pressure=self.rationing.pressure,
        )

    # --- read by metrics and routes -----------------------------------------------------------------------------------

    @property
    def crawls(self) -> DispatchCrawls:
        return self._crawls

    @property
    def room(self) -> PoolCapacity:
        return self._room

    @property
    def registration(self) -> Registration:
        return self._membership.registration

    def ownerships(self) -> list[Ownership]:
        """Return the partitions that this master owns and has loaded."""
        return [owner.ownership for owner in self._fleet if owner.ownership is not None]

    def owned(self) -> list[Partition]:
        """Return the numbers of these partitions."""
        return [own.partition for own in self.ownerships()]

    def heard_at(self) -> float:
        """Return when the coordinator last answered or sent a change (`Clock.elapsed`)."""
        return self._view.heard_at

    # --- the process --------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raise Unusable if the store, broker or coordinator does."""
        async with Tasks() as registered:
            registered.start("health", self._health.run())
            registered.start("membership", self._membership.run(self._leader.attend))
            async with Tasks() as tasks:
                tasks.start("hear-workers", self._hear_workers())
                tasks.start("hear-masters", self._hear_masters())
                tasks.start("tuning", self._tuning.run())
                tasks.start("rationing", self.rationing.run())
                tasks.start("heartbeat", self._heartbeat.run())
                tasks.start("crawling", self._crawling.run())
                tasks.start("notice", self._notice())
                tasks.start("fleet", self._fleet.run())
                await stop.wait()
                log.info("stop.requested", partitions=len(self._fleet))

    async def _notice(self) -> None:
        """Check SQL at every published change, because a change of SQL caused it."""
        snapshot = self._view.snapshot
        while True:
            snapshot = await self._view.changed(snapshot, None)
            self._crawling.wake()

    async def _hear_workers(self) -> None:
        async with self._broker.listen(WORKER_STATUS) as statuses:
            await ask_statuses(self._broker)
            async for data in statuses:
                try:
                    status = decode_status(data)
                    self._room.worker_reported(status, self._clock.elapsed())
                    before = self.roster.worker(status.worker, self._clock.elapsed())
                    self.roster.worker_reported(status, self._clock.elapsed())
                    self._workers_room.status_received(None if before is None else before.status, status)
                except Malformed as error:
                    log.warning("worker_status.rejected", error=str(error))
                    continue
                self._fleet.wake()

    async def _hear_masters(self) -> None:
        async with self._broker.listen(MASTER_STATUS) as statuses:
            async for data in statuses:
                try:
                    self.roster.master_reported(decode_master_status(data), self._clock.elapsed())
                except Malformed as error:
                    log.warning("master_status.rejected", error=str(error))

    def _owner(self, partition: Partition, term: Term, again: bool) -> Owner:
        return Owner(
            partition,
            term,
            store=self._store,
            broker=self._broker,
            clock=self._clock,
            crawls=self._crawls,
            room=self._room,
            settings=self._frontier,
            tally=self._tally,
            again=again,
            alarm=self._alarm,
            turn=self._turn,
        )
