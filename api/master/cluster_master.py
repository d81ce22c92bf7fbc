"""A master of a cluster: it registers, may lead, and owns the partitions assigned to it.

Its parts stop in reverse order of their start. The owners stop while the master is still registered, so another master
takes over only after they have ended.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from api.crawls.controller import CrawlController
from api.crawls.retention_sweeper import RetentionSweeper
from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.owner import Alarm, Owner
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.leader.leader import TICK_S, Leader
from api.members.control_plane import Members
from api.members.engines import MasterEngines
from api.members.health import HealthLimits, HealthMonitor
from api.members.heartbeat import Heartbeat
from api.members.member_stats import MemberStats
from api.members.membership import Membership, assignments_in, leader_in, members_in
from api.members.owner_tuning import limits_of, started_as
from api.members.partition_owners import PartitionOwners
from api.members.pressure import MasterPressure, PressureCallback, WorkerPressureEvents
from api.members.status_request import ask_statuses
from shared.domain.crawl.exclusions import Exclusions
from shared.domain.frontier.crawl_rows import CrawlChanges
from shared.domain.frontier.placement import PlacementRules
from shared.domain.ids import Partition, Term
from shared.domain.ops.config import LogLevel, MasterTuning, MemberRole, master_tuning
from shared.domain.ops.watermarks import Resource
from shared.domain.schedules.history import Firing, FiringOutcome
from shared.runtime.config_follower import ConfigFollower
from shared.runtime.exclusions import ExclusionsFollower
from shared.runtime.pressure_monitor import Gauge, PressureMonitor
from shared.runtime.registration import Registration
from shared.runtime.supervise import Failpoint, Tasks, no_failpoint
from shared.telemetry import set_log_level
from shared.wire.desired_state import DesiredState
from shared.wire.keys import MemberRecord
from shared.wire.messages import Malformed, MasterStatus, decode_master_status, decode_status
from shared.wire.subjects import MASTER_STATUS, WORKER_STATUS

log = structlog.get_logger("orb.control")

_LEAST_STALL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of a cluster master.

    - `ttl_s`: a master that is silent for this many seconds counts as dead.
    - `tick_s`: the maximum seconds between two passes of the leader.
    - `health`: the limits at which a master becomes unfit to lead. None: the default limits, but its event loop may
      stall for `max(_LEAST_STALL_S, ttl_s / 3)` seconds.
    """

    frontier: FrontierSettings
    ttl_s: float = 15.0
    tick_s: float = TICK_S
    rules: PlacementRules = field(default_factory=PlacementRules)
    log_level: LogLevel = "info"
    health: HealthLimits | None = None

    @property
    def health_rules(self) -> HealthLimits:
        return self.health or HealthLimits(stalled_s=max(_LEAST_STALL_S, self.ttl_s / 3))


class ClusterMaster:
    """One master of a cluster with all its parts, which use it as their `ControlPlane`."""

    def __init__(
        self,
        member: MemberRecord,
        engines: MasterEngines,
        settings: ClusterSettings,
        *,
        gauges: Mapping[Resource, Gauge],
        stats: OwnerStats,
        alarm: Alarm,
        on_pressure: PressureCallback,
        on_firing: Callable[[str, Firing], None],
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Compose the master.

        - `gauges`: measure its resources.
        - `stats`: counts the work of its owners, for metrics.
        - `alarm`: called when an owner failed, or its stream of reports was replaced.
        - `on_pressure`: called when resource pressure on this master or on a worker starts or ends.
        - `on_firing`: called with a schedule's name and each new or changed entry of its history.
        """
        store, broker, clock = engines.store, engines.broker, engines.clock
        partitions, started = settings.frontier.partitions, started_as(settings.frontier, settings.log_level)
        self._engines = engines
        self._began_at = clock.elapsed()
        self._started_with = settings.frontier
        self._frontier = limits_of(settings.frontier, started)
        self._stats = stats
        self._on_firing = on_firing
        self._member = member
        self._alarm = alarm
        self._crawls = DispatchCrawls()
        self._capacity = PoolCapacity()
        self._turn = asyncio.Lock()
        self.roster = MemberStats()
        self._membership = Membership(member, engines.coordinator, engines.keys, ttl_s=settings.ttl_s)
        self._heartbeat = Heartbeat(broker, self._status)
        self._tuning = ConfigFollower(
            engines.view,
            engines.keys,
            MemberRole.MASTER,
            member.id,
            started,
            master_tuning,
            apply=self._tune,
            drain=self.drain,
        )
        self._exclusions = ExclusionsFollower(engines.view, engines.keys, changed=self._exclude)
        pressure = MasterPressure(member.id, self._capacity, on_pressure, self._heartbeat.notify)
        self.rationing = PressureMonitor(gauges, lambda: self.tuning().storage, pressure.changed)
        self._workers_pressure = WorkerPressureEvents(self.is_leader, on_pressure)
        self._fleet = PartitionOwners(engines.view, engines.keys, member, partitions, self._owner, alarm)
        self._controller = CrawlController(
            store=store,
            items=engines.items,
            broker=broker,
            clock=clock,
            partitions=partitions,
            crawls=self._crawls,
            fleet=self._fleet,
            retaining=RetentionSweeper(engines.retained, lambda: self.tuning().retention, clock),
            tally=stats,
            alarm=alarm,
            still=lambda pool: self.roster.stands_still(pool, clock.elapsed()),
        )
        self._health = HealthMonitor(
            {"database": store.newest_term, "nats": broker.reports_state},
            clock,
            settings.health_rules,
            silent_s={"database": store.silent_s},
        )
        self._leader = Leader(
            member,
            engines,
            self._controller,
            self._health,
            partitions=partitions,
            rules=settings.rules,
            tick_s=settings.tick_s,
            on_firing=self._count_firing,
            failpoint=failpoint,
        )
        self._tuning.follow(engines.view.snapshot)  # A master that should drain must register as draining.
        self._exclusions.follow(engines.view.snapshot)

    def __repr__(self) -> str:
        return f"<ClusterMaster {self._leader!r} {self._fleet!r}>"

    def _count_firing(self, schedule: str, firing: Firing, waited: bool) -> None:
        """Count a new firing of a schedule in the metrics. Pass every firing, new or not, to `on_firing`.

        `waited`: False for a new firing. True for a firing that was counted when it was queued, and that has another
        outcome now. Such a firing is not counted a second time.
        """
        if not waited:
            self._stats.firings[firing.outcome] += max(1, firing.missed)
            if firing.outcome is not FiringOutcome.MISSED:
                self._stats.firing_delay.observe(max(0, firing.at_ms - firing.due_ms) / 1000)
        self._on_firing(schedule, firing)

    # --- the control plane --------------------------------------------------------------------------------------------

    def is_leader(self) -> bool:
        return self._leader.acting()

    def leader_address(self) -> str | None:
        record = leader_in(self._engines.view.snapshot, self._engines.keys)
        return None if record is None or not record.address else record.address

    def term(self) -> Term | None:
        return self._leader.term()

    def members(self) -> Members:
        return members_in(self._engines.view.snapshot, self._engines.keys)

    def assignments(self) -> Mapping[Partition, str]:
        assigned = assignments_in(self._engines.view.snapshot, self._engines.keys)
        return {partition: record.owner for partition, (record, _) in assigned.items()}

    def wake(self) -> None:
        self._leader.wake()

    def on_crawl_changes(self, *callbacks: Callable[[CrawlChanges], None]) -> None:
        """Call each of the callbacks with all changes of crawls that this master reads, from now on.

        They replace the callbacks of an earlier call.
        """
        self._controller.on_changes = callbacks

    def drain(self, draining: bool) -> None:
        """Start or cancel the drain: a draining master gets no more partitions and loses those it owns."""
        self._membership.drain(draining)
        self._heartbeat.notify()

    def tuning(self) -> MasterTuning:
        """Return the values of the hot configuration that this master runs with."""
        return self._tuning.current

    def wanted(self) -> DesiredState:
        """Return the desired state of the members (hot configuration and drains), as last published."""
        return self._tuning.wanted

    def _tune(self, tuning: MasterTuning) -> None:
        """Apply new values of the hot configuration to this master and its owners."""
        set_log_level(tuning.log_level)
        self._capacity.shards_per_visit = tuning.dispatch_ahead_ratio
        self._frontier = limits_of(self._started_with, tuning)
        for owner in self._fleet:
            owner.tune(self._frontier)
        self._heartbeat.notify()

    def _exclude(self, exclusions: Exclusions) -> None:
        """Apply changed exclusions to this master. Wake its owners, whose EXCLUDE commands wait for that."""
        self._crawls.exclusions = exclusions
        for owner in self._fleet:
            if owner.ownership is not None:
                owner.ownership.moved.notify()

    def _status(self) -> MasterStatus:
        owning = [owner.ownership for owner in self._fleet if owner.ownership is not None]
        return MasterStatus(
            master=self._member.id,
            partitions=len(owning),
            leading=self.is_leader(),
            draining=self._membership.member.draining,
            shards=sum(len(own.leases) for own in owning),
            uptime_ms=int((self._engines.clock.elapsed() - self._began_at) * 1000),
            config=self._tuning.revision,
            pressure=self.rationing.pressure,
        )

    # --- read by metrics and routes -----------------------------------------------------------------------------------

    @property
    def crawls(self) -> DispatchCrawls:
        return self._crawls

    @property
    def capacity(self) -> PoolCapacity:
        return self._capacity

    @property
    def registration(self) -> Registration:
        return self._membership.registration

    def ownerships(self) -> list[Ownership]:
        """Return the state in memory of each partition that this master owns and has loaded."""
        return [owner.ownership for owner in self._fleet if owner.ownership is not None]

    def owned(self) -> list[Partition]:
        """Return the numbers of the partitions that this master owns and has loaded."""
        return [own.partition for own in self.ownerships()]

    def answered_at(self) -> float:
        """Return the time (`Clock.elapsed`) at which etcd last answered or sent a change."""
        return self._engines.view.answered_at

    # --- the process --------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raise Unusable if the database, NATS or etcd cannot be used."""
        async with Tasks() as registered:
            registered.start("health", self._health.run())
            registered.start("membership", self._membership.run(self._leader.attend))
            async with Tasks() as tasks:
                tasks.start("hear-workers", self._hear_workers())
                tasks.start("hear-masters", self._hear_masters())
                tasks.start("tuning", self._tuning.run())
                tasks.start("exclusions", self._exclusions.run())
                tasks.start("rationing", self.rationing.run())
                tasks.start("heartbeat", self._heartbeat.run())
                tasks.start("crawls", self._controller.run())
                tasks.start("notice", self._notice())
                tasks.start("fleet", self._fleet.run())
                await stop.wait()
                log.info("stop.requested", partitions=len(self._fleet))

    async def _notice(self) -> None:
        """Wake the crawl controller at every change in etcd, because a change in SQL usually caused it."""
        snapshot = self._engines.view.snapshot
        while True:
            snapshot = await self._engines.view.changed(snapshot, None)
            self._controller.wake()

    async def _hear_workers(self) -> None:
        async with self._engines.broker.listen(WORKER_STATUS) as statuses:
            await ask_statuses(self._engines.broker)
            async for data in statuses:
                try:
                    status = decode_status(data)
                    self._capacity.worker_reported(status, self._engines.clock.elapsed())
                    before = self.roster.worker(status.worker, self._engines.clock.elapsed())
                    self.roster.worker_reported(status, self._engines.clock.elapsed())
                    self._workers_pressure.status_received(None if before is None else before.status, status)
                except Malformed as error:
                    log.warning("worker_status.rejected", error=str(error))
                    continue
                self._fleet.capacity_changed()

    async def _hear_masters(self) -> None:
        async with self._engines.broker.listen(MASTER_STATUS) as statuses:
            async for data in statuses:
                try:
                    self.roster.master_reported(decode_master_status(data), self._engines.clock.elapsed())
                except Malformed as error:
                    log.warning("master_status.rejected", error=str(error))

    def _owner(self, partition: Partition, term: Term, again: bool) -> Owner:
        return Owner(
            partition,
            term,
            store=self._engines.store,
            broker=self._engines.broker,
            clock=self._engines.clock,
            crawls=self._crawls,
            capacity=self._capacity,
            settings=self._frontier,
            stats=self._stats,
            again=again,
            alarm=self._alarm,
            turn=self._turn,
            archive=self._engines.archive,
        )
