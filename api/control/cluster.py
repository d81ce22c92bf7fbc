"""A master of a cluster: registered, perhaps leading, owning what is assigned to it.

Its parts end in the reverse of the order in which they begin: the owners while the master is still registered, so that
whoever takes over does so when they have let go.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from api.control.crawling import Crawling
from api.control.fleet import Fleet
from api.control.health import Health, HealthRules
from api.control.heartbeat import Heartbeat
from api.control.leader import TICK_S, Leader
from api.control.membership import Membership, assignments_in, leader_in, members_in
from api.control.plane import Members
from api.control.rationing import Heard, MasterRoom, WorkersRoom
from api.control.rationing import unheard as nobody
from api.control.retaining import Retaining
from api.control.roster import Roster
from api.control.tending import Tending
from api.control.tuning import Tuning, limits_of, started_as
from api.frontier.crawls import Crawls
from api.frontier.owner import Alarm, Owner, unheard
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.room import PoolRoom
from api.frontier.tally import FrontierTally
from shared.domain.config import LogLevel, MasterTuning
from shared.domain.ids import Partition, Term
from shared.domain.placement import PlacementRules, StoreKind
from shared.domain.watermarks import Place
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership, View
from shared.ports.desired import Desired
from shared.ports.items import ItemTable
from shared.ports.rationing import NO_GAUGES, Gauge, Rationing
from shared.ports.registering import Registration
from shared.ports.retained import Retained
from shared.ports.specs import SpecPublisher
from shared.ports.store import Store
from shared.supervise import Failpoint, Tasks, no_failpoint
from shared.telemetry import set_log_level
from shared.wire.keys import Keys, MemberRecord
from shared.wire.messages import Malformed, MasterStatus, decode_master_status, decode_status
from shared.wire.subjects import MASTER_STATUS, WORKER_STATUS
from shared.wire.wanted import Wanted

log = structlog.get_logger("orb.control")

_LEAST_STALL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """`ttl_s`: after which a silent master counts as dead. `tick_s`: how often the leader looks without being told.
    `health`: when a master is unfit to lead; by default when its loop stood still for 5 s or a third of `ttl_s`,
    whichever is longer."""

    ttl_s: float = 15.0
    tick_s: float = TICK_S
    rules: PlacementRules = field(default_factory=PlacementRules)
    log_level: LogLevel = "info"
    health: HealthRules | None = None

    @property
    def health_rules(self) -> HealthRules:
        return self.health or HealthRules(stalled_s=max(_LEAST_STALL_S, self.ttl_s / 3))


class ClusterMaster:
    """One master, and the control plane as it sees it (`api.control.plane.ControlPlane`)."""

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
        tally: FrontierTally | None = None,
        settings: ClusterSettings | None = None,
        failpoint: Failpoint = no_failpoint,
        alarm: Alarm = unheard,
        gauges: Mapping[Place, Gauge] = NO_GAUGES,
        room_heard: Heard = nobody,
        retained: Retained | None = None,
    ) -> None:
        """`view` is one of `keys.root`: one snapshot shows who lives, who leads and who owns what at one moment.
        `gauges`: what this master sees filling up; `room_heard` hears when it is short of it, or a worker is;
        `retained` is what its leader forgets in time."""
        chosen = settings or ClusterSettings()
        self._view = view
        self._keys = keys
        self._store = store
        self._broker = broker
        self._clock = clock
        self._began_at = clock.elapsed()
        self._started_with = frontier
        self._frontier = limits_of(frontier, started_as(frontier, chosen.log_level))
        self._tally = tally or FrontierTally()
        self._member = member
        self._alarm = alarm
        self._crawls = Crawls()
        self._room = PoolRoom()
        self._turn = asyncio.Lock()
        self.roster = Roster()
        self._membership = Membership(member, coordinator, keys, ttl_s=chosen.ttl_s)
        self._heartbeat = Heartbeat(broker, self._status)
        self._tuning = Tuning(
            view, keys, member.id, started_as(frontier, chosen.log_level), apply=self._tune, drain=self.drain
        )
        watcher = MasterRoom(member.id, self._room, lambda: self.rationing, room_heard, self._heartbeat.news)
        self.rationing = Rationing(gauges, lambda: self.tuning().storage, watcher)
        self._workers_room = WorkersRoom(self.is_leader, room_heard)
        self._fleet = Fleet(view, keys, member, frontier.partitions, self._owner, alarm)
        self._crawling = Crawling(self._crawls, self._fleet, store)
        self._tending = Tending(
            store=store,
            items=items,
            broker=broker,
            clock=clock,
            partitions=frontier.partitions,
            told=self._crawling.wake,
            retaining=None if retained is None else Retaining(retained, lambda: self.tuning().retention, clock),
            tally=self._tally,
            alarm=alarm,
            still=lambda pool: self.roster.stands_still(pool, clock.elapsed()),
        )
        self._health = Health({"database": store.newest_term, "nats": broker.reports_state}, clock, chosen.health_rules)
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

        self._tuning.follow(view.snapshot)  # so that one that is to drain is registered as such

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
        found = assignments_in(self._view.snapshot, self._keys)
        return {partition: record.owner for partition, (record, _) in found.items()}

    def wake(self) -> None:
        self._leader.wake()
        self._crawling.wake()

    def drain(self, draining: bool) -> None:
        """Let this master be given nothing more, and what it owns be taken; or again as before."""
        self._membership.drain(draining)
        self._heartbeat.news()

    def tuning(self) -> MasterTuning:
        """The values that it runs with."""
        return self._tuning.current

    def wanted(self) -> Wanted:
        """What operators want of the members, as this master saw it last."""
        return self._tuning.wanted

    def _tune(self, tuning: MasterTuning) -> None:
        """Run with other values from now on."""
        set_log_level(tuning.log_level)
        self._room.ahead = tuning.dispatch_ahead
        self._frontier = limits_of(self._started_with, tuning)
        for owner in self._fleet:
            owner.tune(self._frontier)
        self._heartbeat.news()

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
            held=self.rationing.reason or "",
        )

    # --- what it is measured by ---------------------------------------------------------------------------------------

    @property
    def crawls(self) -> Crawls:
        return self._crawls

    @property
    def room(self) -> PoolRoom:
        return self._room

    @property
    def registration(self) -> Registration:
        return self._membership.registration

    def ownerships(self) -> list[Ownership]:
        """The partitions that it owns and has loaded."""
        return [owner.ownership for owner in self._fleet if owner.ownership is not None]

    def owned(self) -> list[Partition]:
        """The numbers of these."""
        return [own.partition for own in self.ownerships()]

    def heard_at(self) -> float:
        """When the coordinator was last heard of (`Clock.elapsed`)."""
        return self._view.heard_at

    # --- the process --------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Unusable as store, broker or coordinator say it."""
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
                log.info("master.stops", owned=len(self._fleet))

    async def _notice(self) -> None:
        """What the leader published has a reason in SQL: look there."""
        snapshot = self._view.snapshot
        while True:
            snapshot = await self._view.changed(snapshot, None)
            self._crawling.wake()

    async def _hear_workers(self) -> None:
        async with self._broker.listen(WORKER_STATUS) as statuses:
            async for data in statuses:
                try:
                    status = decode_status(data)
                    self._room.heard(status, self._clock.elapsed())
                    before = self.roster.worker(status.worker, self._clock.elapsed())
                    self.roster.heard_worker(status, self._clock.elapsed())
                    self._workers_room.heard(None if before is None else before.status, status)
                except Malformed as error:
                    log.warning("worker.malformed_status", error=str(error))
                    continue
                self._fleet.wake()

    async def _hear_masters(self) -> None:
        async with self._broker.listen(MASTER_STATUS) as statuses:
            async for data in statuses:
                try:
                    self.roster.heard_master(decode_master_status(data), self._clock.elapsed())
                except Malformed as error:
                    log.warning("master.malformed_status", error=str(error))

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
