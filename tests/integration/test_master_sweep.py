"""The sweep against the real broker and database: what the broker does with a shard never stalls its host."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from api.frontier.ownership import FrontierSettings
from api.master.standalone import Standalone
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.nats import NatsBroker
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier import purge_holds as holds
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import Transient
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.ids import CrawlId, HostId, Partition, numbered
from shared.domain.ops.watermarks import FillLevel, Resource
from shared.domain.web.url import public_suffix_snapshot
from shared.runtime.supervise import Tasks
from shared.wire.messages import Progress, UrlShard, WorkerStatus, decode_progress, decode_shard, encode
from shared.wire.subjects import PROGRESS, WORKER_STATUS
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.nats_server import server as server

PARTITION = Partition(0)


async def free_worker(broker: NatsBroker) -> None:
    """Tell for ever of a worker that has room."""
    while True:
        await broker.tell(WORKER_STATUS, encode(WorkerStatus("w", POOL, 8, 0)))
        await asyncio.sleep(0.05)


async def first_shard(broker: NatsBroker) -> UrlShard:
    """The next shard that the broker delivers."""
    while True:
        for message in await broker.pull_visits(POOL, 1, 1.0):
            return decode_shard(message.data)


def test_shard_never_delivered_nor_removed_does_not_stall_its_host(tmp_path: Path, server: BrokerServer) -> None:
    """A broker killed between an acknowledgement and its removal keeps such a shard. Here it is one that was taken and
    is never settled: it, too, is not delivered again, and lets no other onto its subject."""
    spec = parse_spec({"seeds": ["http://a.test/"]})
    settings = FrontierSettings(partitions=1, republish_s=0.3, sweep_interval_s=0.05)

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(1, public_suffix_snapshot(), 0)
        async with server.broker(ack_wait_s=3600) as broker, Tasks() as tasks:
            first_host = numbered(1, PARTITION)
            assert await broker.publish_shard(POOL, PARTITION, first_host, 0, b"stuck")
            assert [message.data for message in await broker.pull_visits(POOL, 1, 5.0)] == [b"stuck"]
            master = Standalone(
                spec,
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(tmp_path / "specs"),
                clock=SystemClock(),
                settings=settings,
                alone=True,
            )
            stop = asyncio.Event()
            running = tasks.start("master", master.run(stop, grace_s=0))
            tasks.start("worker", free_worker(broker))
            shard = await first_shard(broker)
            assert (HostId(shard.host_id), [url.url for url in shard.urls]) == (first_host, ["http://a.test/"])
            stop.set()
            await running
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))


class Watched(SqliteStore):
    """Knows how often owners looked for holds, and when one looked behind a position."""

    looks = 0

    async def report_holds(self) -> Mapping[str, int]:
        found = await super().report_holds()
        self.looks += 1
        return found


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is true; whoever calls has a time limit."""
    while not await true():  # noqa: ASYNC110  # what is waited for is in other processes
        await asyncio.sleep(0.02)


def test_what_is_applied_stays_in_the_stream_while_somebody_holds_it(tmp_path: Path, server: BrokerServer) -> None:
    """Who copies the reports behind a snapshot of the tables misses none, however fast the owners are."""
    spec = parse_spec({"seeds": ["http://a.test/", "http://a.test/2"]})
    settings = FrontierSettings(partitions=1, sweep_interval_s=0.05)

    async def run() -> None:
        store = await Watched.open(tmp_path / "crawl.db")
        assert isinstance(store, Watched)
        await store.open_cluster(1, public_suffix_snapshot(), 0)
        await store.executor.write(lambda c: holds.take(c, "somebody", 0))
        async with server.broker() as broker, Tasks() as tasks:
            master = Standalone(
                spec,
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(tmp_path / "specs"),
                clock=SystemClock(),
                settings=settings,
                alone=True,
            )
            stop = asyncio.Event()
            running = tasks.start("master", master.run(stop, grace_s=0))

            async def applied() -> bool:
                return (await store.positions())[PARTITION].discovery_seq > 0

            async def looked() -> bool:
                return store.looks > before + 3

            await until(applied)
            before = store.looks
            await until(looked)
            assert await broker.pending_reports() > 0
            await store.executor.write(lambda c: holds.release(c, "somebody"))

            async def purged() -> bool:
                return await broker.pending_reports() == 0

            await until(purged)
            stop.set()
            await running
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))


class Busy(SqliteStore):
    """A database that is busy when progress is first to be told."""

    looks = 0

    async def crawl(self, crawl_id: CrawlId) -> CrawlRow | None:
        self.looks += 1
        if self.looks == 1:
            raise Transient("the database did not carry it out: database is locked")
        return await super().crawl(crawl_id)


def test_a_database_that_is_busy_for_a_while_ends_no_master(tmp_path: Path, server: BrokerServer) -> None:
    async def run() -> None:
        store = await Busy.open(tmp_path / "crawl.db")
        await store.open_cluster(1, public_suffix_snapshot(), 0)
        async with server.broker() as broker, broker.listen(PROGRESS) as told, Tasks() as tasks:
            master = Standalone(
                parse_spec({"seeds": ["http://a.test/"]}),
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(tmp_path / "specs"),
                clock=SystemClock(),
                settings=FrontierSettings(partitions=1),
                alone=True,
            )
            stop = asyncio.Event()
            running = tasks.start("master", master.run(stop, grace_s=0))
            assert decode_progress(await anext(told)).crawl == 1
            stop.set()
            await running
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))


class Ahead(SystemClock):
    """A clock that may be put forward."""

    def __init__(self) -> None:
        super().__init__()
        self.by = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.by


def test_local_crawl_with_master_under_pressure_pauses_its_clock(tmp_path: Path, server: BrokerServer) -> None:
    spec = parse_spec({"seeds": ["http://a.test/"], "budget": {"max_seconds": 600}})
    level, clock = FillLevel(100, 100), Ahead()

    async def gauge() -> FillLevel:
        return level

    async def told(broker: NatsBroker, wanted: Callable[[Progress], bool]) -> Progress:
        async with broker.listen(PROGRESS) as heard:
            async for data in heard:
                if wanted(progress := decode_progress(data)):
                    return progress
        raise AssertionError("the broker ended")

    async def run() -> None:
        nonlocal level
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(1, public_suffix_snapshot(), 0)
        async with server.broker() as broker, Tasks() as tasks:
            master = Standalone(
                spec,
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(tmp_path / "specs"),
                clock=clock,
                settings=FrontierSettings(partitions=1, sweep_interval_s=0.05),
                alone=True,
                gauges={Resource.MEMORY: gauge},
            )
            stop = asyncio.Event()
            running = tasks.start("master", master.run(stop, grace_s=0))
            tasks.start("worker", free_worker(broker))
            held = await told(broker, lambda progress: progress.counters["queued"] == 1 and bool(progress.alarms))
            assert held.alarms == [
                "nothing is sent out: the process's memory is at 100 B, and its ceiling is 100 B; it goes on below 90 B"
            ]
            clock.by += 1000.0
            for _ in range(2):
                held = await told(broker, lambda progress: True)
                assert (held.leases, held.state) == (0, "running")
            level = FillLevel(10, 100)
            assert [url.url for url in (await first_shard(broker)).urls] == ["http://a.test/"]
            await told(broker, lambda progress: not progress.alarms)
            stop.set()
            await running
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))
