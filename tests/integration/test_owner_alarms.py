"""What somebody should look at is told as an event: a stream of reports that is another one, an owner that fails."""

import asyncio
from pathlib import Path

import pytest

from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.owner import Owner
from api.frontier.ownership import FrontierSettings
from api.members.partition_owners import PartitionOwners
from shared.adapters.local.clock import SystemClock
from shared.adapters.nats import NatsBroker
from shared.adapters.nats.jetstream import demand
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.ids import Partition, Term
from shared.runtime.supervise import Tasks
from shared.wire.keys import Keys, MemberRecord, PartitionRecord, encode_record
from shared.wire.subjects import REPORTS
from tests.support.engines.local_coordinator import LocalCoordinator
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.nats_server import server as server

P = Partition(0)


class Alarms:
    """What was told, and when there is something."""

    def __init__(self) -> None:
        self.heard: list[tuple[Partition, str]] = []
        self.news = asyncio.Event()

    def hear(self, partition: Partition, text: str) -> None:
        self.heard.append((partition, text))
        self.news.set()


async def owned(store: SqliteStore, broker: NatsBroker, term: int, alarms: Alarms) -> None:
    """Own the partition until everything is loaded and the stream was looked at."""
    owner = Owner(
        P, Term(term), store=store, broker=broker, clock=SystemClock(), crawls=DispatchCrawls(),
        capacity=PoolCapacity(), settings=FrontierSettings(partitions=1), alarm=alarms.hear,
    )  # fmt: skip
    async with asyncio.timeout(30), Tasks() as tasks:
        tasks.start("owner", owner.run())
        while owner.ownership is None:  # noqa: ASYNC110  an owner says to nobody that it has begun
            await asyncio.sleep(0.01)


def test_a_stream_of_reports_that_is_another_one_raises_an_alarm_once(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "cluster.db")
        try:
            await store.open_cluster(1, "", 0)
            async with server.broker() as broker:
                alarms = Alarms()
                await owned(store, broker, 1, alarms)
                await owned(store, broker, 2, alarms)
                assert alarms.heard == [], "it is the stream that was read"
                await demand(broker._connection, f"STREAM.DELETE.{REPORTS}", None, 5.0)
                await broker.declare([POOL])
                await owned(store, broker, 3, alarms)
                await owned(store, broker, 4, alarms)
                [(partition, text)] = alarms.heard
                assert partition == P
                assert "another one than before" in text
        finally:
            await store.close()

    asyncio.run(story())


class Failing(Owner):
    """An owner with a defect."""

    async def run(self) -> None:
        raise RuntimeError("a defect")


def test_an_owner_that_fails_raises_an_alarm_and_is_replaced(server: BrokerServer, tmp_path: Path) -> None:
    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "cluster.db")
        keys, member = Keys("test"), MemberRecord("m1", "1", started_at_ms=1)
        coordinator = LocalCoordinator(SystemClock())
        made: list[Owner] = []
        alarms = Alarms()

        async with server.broker() as broker, coordinator.watch(keys.root) as view, coordinator.session(5.0) as session:

            def make(partition: Partition, term: Term, again: bool) -> Owner:
                owner = Failing(
                    partition, term, store=store, broker=broker, clock=SystemClock(), crawls=DispatchCrawls(),
                    capacity=PoolCapacity(), settings=FrontierSettings(partitions=1), again=again,
                )  # fmt: skip
                made.append(owner)
                return owner

            leadership = await session.campaign(keys.leader, b"")
            await leadership.write({keys.partition(P): encode_record(PartitionRecord("m1", 1, 1))})
            fleet = PartitionOwners(view, keys, member, 1, make, alarms.hear)
            async with asyncio.timeout(30), Tasks() as tasks:
                tasks.start("fleet", fleet.run())
                while len(made) < 2:
                    await alarms.news.wait()
                    alarms.news.clear()
                    await asyncio.sleep(0)
            assert {partition for partition, _ in alarms.heard} == {P}
            assert "a defect" in alarms.heard[0][1]
        await store.close()

    asyncio.run(story())


@pytest.fixture(autouse=True)
def _brief_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.members.partition_owners._AGAIN_S", 0.0)
