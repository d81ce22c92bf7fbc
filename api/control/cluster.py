"""A master of a cluster: registered, perhaps leading, owning what is assigned to it.

Its parts end in the reverse of the order in which they begin: the owners while the master is still registered, so that
whoever takes over does so when they have let go.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from api.control.crawling import Crawling
from api.control.fleet import Fleet
from api.control.leader import TICK_S, Leader
from api.control.membership import Membership, assignments_in, leader_in, members_in
from api.control.plane import Members
from api.control.tending import Tending
from api.frontier.crawls import Crawls
from api.frontier.owner import Owner
from api.frontier.ownership import FrontierSettings
from api.frontier.room import PoolRoom
from shared.domain.ids import Partition, Term
from shared.domain.placement import PlacementRules, StoreKind
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.coordinator import Coordinator, Leadership, View
from shared.ports.specs import SpecPublisher
from shared.ports.store import Store
from shared.supervise import Tasks
from shared.wire.keys import Keys, MemberRecord
from shared.wire.messages import Malformed, decode_status
from shared.wire.subjects import WORKER_STATUS

log = structlog.get_logger("orb.control")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """`ttl_s`: after which a silent master counts as dead. `tick_s`: how often the leader looks without being told."""

    ttl_s: float = 15.0
    tick_s: float = TICK_S
    rules: PlacementRules = field(default_factory=PlacementRules)


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
        kind: StoreKind,
        broker: Broker,
        publisher: Callable[[Leadership], SpecPublisher],
        clock: Clock,
        frontier: FrontierSettings,
        settings: ClusterSettings | None = None,
    ) -> None:
        """`view` is one of `keys.root`: one snapshot shows who lives, who leads and who owns what at one moment."""
        chosen = settings or ClusterSettings()
        self._view = view
        self._keys = keys
        self._store = store
        self._broker = broker
        self._clock = clock
        self._frontier = frontier
        self._crawls = Crawls()
        self._room = PoolRoom()
        divided = kind is not StoreKind.SQLITE
        self._membership = Membership(member, coordinator, keys, ttl_s=chosen.ttl_s)
        self._fleet = Fleet(view, keys, member, frontier.partitions, self._owner)
        self._crawling = Crawling(self._crawls, self._fleet, store, shares=frontier.partitions if divided else None)
        self._tending = Tending(
            store=store,
            broker=broker,
            clock=clock,
            partitions=frontier.partitions,
            divided=divided,
            told=self._crawling.wake,
        )
        self._leader = Leader(
            member,
            coordinator=coordinator,
            view=view,
            keys=keys,
            store=store,
            kind=kind,
            tending=self._tending,
            publisher=publisher,
            clock=clock,
            partitions=frontier.partitions,
            rules=chosen.rules,
            tick_s=chosen.tick_s,
        )

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

    # --- the process --------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Unusable as store, broker or coordinator say it."""
        async with Tasks() as registered:
            registered.start("membership", self._membership.run(self._leader.attend))
            async with Tasks() as tasks:
                tasks.start("hear-workers", self._hear_workers())
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
                    self._room.heard(decode_status(data), self._clock.elapsed())
                except Malformed as error:
                    log.warning("worker.malformed_status", error=str(error))
                    continue
                self._fleet.wake()

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
            again=again,
        )
