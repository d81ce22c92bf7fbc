"""A leader over every coordinator, with the real database: what it makes of members that come, drain, go and fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import etcd3.etcdrpc as rpc
import pytest

from api.leader.leader import Leader
from api.members.engines import MasterEngines
from api.members.health import HealthLimits, HealthMonitor, LoopStalled, Probe
from api.members.membership import Membership, assignments_in, leader_in, members_in
from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.sql.admin.retention import SqlRetained
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import Transient
from shared.domain.frontier.placement import PlacementRules, StoreKind
from shared.domain.ids import Partition, Term
from shared.domain.reads.items import ItemFence, ItemPosition
from shared.ports.broker import Broker
from shared.ports.coordinator import Coordinator, Snapshot, View
from shared.ports.items import ItemTable
from shared.runtime.supervise import Tasks
from shared.wire.keys import EpochRecord, Keys, MemberRecord, PartitionRecord, decode_record
from tests.support.crawl_controller import controlling
from tests.support.engines.coordinators import COORDINATORS
from tests.support.engines.etcd import CLOCK, connected, coordinator, etcd, settled

KEYS = Keys("test")
PARTITIONS = 200
TTL_S = 10.0
"""Of nobody's session here: who ends tells it."""
PATIENCE_S = 60.0


class AwayStore(SqliteStore):
    """A database that one master cannot reach."""

    async def epoch(self) -> int:
        raise Transient("the database is away", retry_in=0.05)


async def answering() -> None:
    """A probe of an engine that is there."""


def fit(probe: Probe = answering) -> HealthMonitor:
    """Of a master that is fit for as long as the engine of its one probe answers, once it is run."""
    return HealthMonitor({"engine": probe}, CLOCK, HealthLimits(silent_s=0.2, stalled_s=5.0, well_s=0.2), every_s=0.02)


class NoItems:
    """A table of items that cannot be had: nothing is crawled here."""

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        raise Transient("nothing is crawled here", retry_in=0.1)


class Stage:
    """Masters that do nothing but register and lead, over one coordinator and one database."""

    def __init__(self, coordinator: Coordinator, view: View, database: Path, kind: StoreKind) -> None:
        self.coordinator = coordinator
        self.view = view
        self.database = database
        self.kind = kind

    @asynccontextmanager
    async def master(
        self,
        name: str,
        opened: type[SqliteStore] = SqliteStore,
        started_at_ms: int = 1,
        health: HealthMonitor | None = None,
    ) -> AsyncIterator[Membership]:
        store = await opened.open(self.database)
        await store.open_cluster(PARTITIONS, "", 0)
        member = MemberRecord(name, "1", started_at_ms)
        membership = Membership(member, self.coordinator, KEYS, ttl_s=TTL_S)
        controller = controlling(store, NoItems(), None, CLOCK, partitions=PARTITIONS)  # nothing is crawled here
        engines = MasterEngines(
            keys=KEYS,
            coordinator=self.coordinator,
            view=self.view,
            store=store,
            kind=self.kind,
            items=cast(ItemTable, NoItems()),
            desired=SqlDesired(store.executor),
            schedules=SqlSchedules(store.executor),
            retained=SqlRetained(store.executor),
            broker=cast(Broker, None),
            publisher=lambda leadership: EtcdSpecPublisher(self.coordinator, leadership, KEYS),
            clock=CLOCK,
        )
        leader = Leader(
            member,
            engines,
            controller,
            health or fit(),
            partitions=PARTITIONS,
            rules=PlacementRules(max_moves=PARTITIONS, settle_s=0.0),
            tick_s=0.2,
            sick_s=0.5,
            on_firing=lambda *_: None,
        )
        try:
            async with Tasks() as tasks:
                tasks.start("crawls", controller.run())
                tasks.start(name, membership.run(leader.attend))
                yield membership
        finally:
            await store.close()

    async def until(self, true: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot of which it is true."""
        return await settled(self.view, true)


def owned(snapshot: Snapshot) -> Mapping[Partition, PartitionRecord]:
    return {partition: record for partition, (record, _) in assignments_in(snapshot, KEYS).items()}


def all_with(*names: str) -> Callable[[Snapshot], bool]:
    """Whether everything is owned, by these alone, and evenly."""

    def true(snapshot: Snapshot) -> bool:
        owners = [record.owner for record in owned(snapshot).values()]
        return len(owners) == PARTITIONS and all(owners.count(name) == PARTITIONS // len(names) for name in names)

    return true


@pytest.fixture(params=COORDINATORS)
def on_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """`on_stage(story)` runs the story with a new coordinator and a new database."""

    def run(story: Callable[[Stage], Awaitable[None]], kind: StoreKind = StoreKind.POSTGRESQL) -> None:
        async def whole() -> None:
            async with (
                asyncio.timeout(PATIENCE_S),
                COORDINATORS[request.param](tmp_path) as opened,
                opened.watch(KEYS.root) as view,
            ):
                await story(Stage(opened, view, tmp_path / "cluster.db", kind))

        asyncio.run(whole())

    return run


def test_partitions_spread_over_masters_and_come_back_when_one_ends(on_stage: Callable[..., None]) -> None:
    async def story(stage: Stage) -> None:
        async with stage.master("m1"):
            await stage.until(all_with("m1"))
            async with stage.master("m2"):
                await stage.until(all_with("m1", "m2"))
            await stage.until(all_with("m1"))

    on_stage(story)


def test_a_draining_master_is_left_with_nothing(on_stage: Callable[..., None]) -> None:
    async def story(stage: Stage) -> None:
        async with stage.master("m1") as first, stage.master("m2"):
            await stage.until(all_with("m1", "m2"))
            first.drain(True)
            await stage.until(all_with("m2"))
            first.drain(False)
            await stage.until(all_with("m1", "m2"))

    on_stage(story)


def test_a_process_started_anew_under_a_name_gets_new_terms(on_stage: Callable[..., None]) -> None:
    """Its predecessor's cannot be claimed again; and the predecessor may still be alive."""

    async def story(stage: Stage) -> None:
        async with stage.master("m1", started_at_ms=1):
            before = await stage.until(all_with("m1"))
            async with stage.master("m1", started_at_ms=2):
                await stage.until(
                    lambda snapshot: all(record.started_at_ms == 2 for record in owned(snapshot).values())
                )
                after = assignments_in(stage.view.snapshot, KEYS)
                for partition, (record, entry) in assignments_in(before, KEYS).items():
                    renewed, at = after[partition]
                    assert renewed.term(at.revision) > record.term(entry.revision)

    on_stage(story, StoreKind.SQLITE)


def test_the_first_leader_sets_the_epoch_and_the_next_one_keeps_it(on_stage: Callable[..., None]) -> None:
    async def story(stage: Stage) -> None:
        epochs = []
        for name in ("m1", "m2"):
            async with stage.master(name):
                snapshot = await stage.until(all_with(name))
                epochs.append(decode_record(EpochRecord, snapshot.entries[KEYS.epoch].value).epoch)
        assert epochs == [2, 2]

    on_stage(story)


def test_a_leader_that_cannot_reach_the_database_lets_another_one_lead(on_stage: Callable[..., None]) -> None:
    async def story(stage: Stage) -> None:
        async with stage.master("sick", AwayStore):
            await stage.until(lambda snapshot: leader_in(snapshot, KEYS) is not None)
            async with stage.master("well"):
                await stage.until(all_with("well"))
                record = leader_in(stage.view.snapshot, KEYS)
                assert record is not None
                assert record.id == "well"

    on_stage(story, StoreKind.SQLITE)


def leads(name: str) -> Callable[[Snapshot], bool]:
    """Whether it is the leader."""
    return lambda snapshot: (record := leader_in(snapshot, KEYS)) is not None and record.id == name


@pytest.mark.parametrize("kind", list(StoreKind))
def test_draining_leader_yields_to_another_and_leads_if_alone(on_stage: Callable[..., None], kind: StoreKind) -> None:
    async def story(stage: Stage) -> None:
        async with stage.master("m1") as first:
            await stage.until(all_with("m1"))
            async with stage.master("m2"):
                first.drain(True)
                await stage.until(leads("m2"))
                await stage.until(all_with("m2"))
            await stage.until(leads("m1"))
            async with stage.master("m3"):
                await stage.until(leads("m3"))
                await stage.until(all_with("m3"))
                first.drain(False)
                await stage.until(lambda snapshot: not members_in(snapshot, KEYS).masters["m1"].draining)
                assert leads("m3")(stage.view.snapshot), "who leads goes on"

    on_stage(story, kind)


def test_leader_without_its_engine_resigns_until_engine_returns(
    on_stage: Callable[..., None],
) -> None:
    async def story(stage: Stage) -> None:
        away = asyncio.Event()

        async def probe() -> None:
            if away.is_set():
                raise Transient("the broker is away")

        health = fit(probe)
        async with Tasks() as tasks:
            tasks.start("health", health.run())
            async with stage.master("m1", health=health):
                await stage.until(all_with("m1"))
                away.set()
                for other in ("m2", "m3"):  # were m1 still campaigning, it would have won when m2 was gone
                    async with stage.master(other):
                        await stage.until(leads(other))
                assert health.ailment is not None
                away.clear()
                await stage.until(leads("m1"))
                assert health.ailment is None

    on_stage(story)


def test_a_leader_whose_loop_stood_still_lets_another_one_lead(on_stage: Callable[..., None]) -> None:
    async def story(stage: Stage) -> None:
        health = fit()
        async with stage.master("m1", health=health):
            await stage.until(leads("m1"))
            async with stage.master("m2"):
                health.observe(LoopStalled(60.0))
                await stage.until(leads("m2"))

    on_stage(story)


def test_a_master_that_is_unfit_from_the_start_does_not_campaign(on_stage: Callable[..., None]) -> None:
    async def story(stage: Stage) -> None:
        health = fit()
        health.observe(LoopStalled(60.0))
        async with stage.master("unfit", health=health), stage.master("well"):
            await stage.until(all_with("well", "unfit"))
            assert leads("well")(stage.view.snapshot), "it owns partitions all the same"

    on_stage(story)


def test_leader_with_dead_session_registers_and_campaigns_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            etcd(tmp_path / "etcd") as server,
            coordinator(server.endpoint) as opened,
            connected(server.endpoint) as wire,
            opened.watch(KEYS.root) as view,
        ):
            stage = Stage(opened, view, tmp_path / "cluster.db", StoreKind.SQLITE)
            async with stage.master("m1"):
                for _ in range(3):
                    await stage.until(leads("m1"))
                    before = assignments_in(await stage.until(all_with("m1")), KEYS)
                    lease = stage.view.snapshot.entries[KEYS.leader].lease
                    await wire.call("Lease.LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), repeat=False)
                    after = await stage.until(
                        lambda snapshot, lease=lease: all(  # type: ignore[misc]  # bound now
                            key in snapshot.entries and snapshot.entries[key].lease != lease
                            for key in (KEYS.leader, KEYS.master("m1"))
                        )
                    )
                    assert assignments_in(after, KEYS) == before, "the same process keeps what it owns, and its terms"

    asyncio.run(story())
