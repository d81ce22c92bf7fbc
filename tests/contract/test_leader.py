"""A leader over every coordinator, with the real database: what it makes of members that come, drain, go and fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from api.control.leader import Leader
from api.control.membership import Membership, assignments_in, leader_in
from api.control.tending import Tending
from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.local.coordinator import LocalCoordinator
from shared.adapters.sql.store import SqliteStore
from shared.domain.errors import Transient
from shared.domain.ids import Partition
from shared.domain.placement import PlacementRules, StoreKind
from shared.ports.broker import Broker
from shared.ports.coordinator import Coordinator, Snapshot, View
from shared.supervise import Tasks
from shared.wire.keys import EpochRecord, Keys, MemberRecord, PartitionRecord, decode_record
from tests.support.etcd import CLOCK, coordinator, etcd, settled

KEYS = Keys("test")
PARTITIONS = 200
TTL_S = 2.0
PATIENCE_S = 60.0


class AwayStore(SqliteStore):
    """A database that one master cannot reach."""

    async def epoch(self) -> int:
        raise Transient("the database is away", retry_in=0.05)


@asynccontextmanager
async def over_etcd(folder: Path) -> AsyncIterator[Coordinator]:
    async with etcd(folder / "etcd") as server, coordinator(server.endpoint) as opened:
        yield opened


@asynccontextmanager
async def in_process(_: Path) -> AsyncIterator[Coordinator]:
    yield LocalCoordinator(CLOCK)


class Stage:
    """Masters that do nothing but register and lead, over one coordinator and one database."""

    def __init__(self, coordinator: Coordinator, view: View, database: Path, kind: StoreKind) -> None:
        self.coordinator = coordinator
        self.view = view
        self.database = database
        self.kind = kind

    @asynccontextmanager
    async def master(
        self, name: str, opened: type[SqliteStore] = SqliteStore, started_at_ms: int = 1
    ) -> AsyncIterator[Membership]:
        store = await opened.open(self.database)
        await store.open_cluster(PARTITIONS, "", 0)
        member = MemberRecord(name, "1", started_at_ms)
        membership = Membership(member, self.coordinator, KEYS, ttl_s=TTL_S)
        tending = Tending(
            store=store,
            broker=cast(Broker, None),  # nothing is crawled here
            clock=CLOCK,
            partitions=PARTITIONS,
            divided=False,
            told=lambda: None,
        )
        leader = Leader(
            member,
            coordinator=self.coordinator,
            view=self.view,
            keys=KEYS,
            store=store,
            kind=self.kind,
            tending=tending,
            publisher=lambda leadership: EtcdSpecPublisher(self.coordinator, leadership, KEYS),
            clock=CLOCK,
            partitions=PARTITIONS,
            rules=PlacementRules(most_moves=PARTITIONS, settle_s=0.0),
            tick_s=0.2,
            sick_s=0.5,
        )
        try:
            async with Tasks() as tasks:
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


@pytest.fixture(params=[over_etcd, in_process], ids=["etcd", "local"])
def on_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """`on_stage(story)` runs the story with a new coordinator and a new database."""

    def run(story: Callable[[Stage], Awaitable[None]], kind: StoreKind = StoreKind.POSTGRESQL) -> None:
        async def whole() -> None:
            async with (
                asyncio.timeout(PATIENCE_S),
                request.param(tmp_path) as opened,
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
