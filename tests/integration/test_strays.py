"""Over a real broker: what a deleted crawl has queued for a pool without workers does not stand there for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from api.frontier.ownership import FrontierSettings
from api.master.standalone import Standalone
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.commands import CommandKind, collection_of
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.url import public_suffix_snapshot
from shared.runtime.supervise import Tasks
from shared.wire.messages import Command, WorkerStatus, encode
from shared.wire.subjects import WORKER_STATUS
from tests.support.database.store_tables import books
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

PARTITION = Partition(0)
POOL = "nobody"
SEEDS = [f"http://h{n}.test/" for n in range(6)]


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():  # noqa: ASYNC110  the broker has no event for it
        await asyncio.sleep(0.02)


def test_a_deleted_crawl_leaves_no_shard_in_a_pool_whose_workers_are_gone(tmp_path: Path, server: BrokerServer) -> None:
    spec = parse_spec({"seeds": SEEDS, "pool": POOL})
    settings = FrontierSettings(partitions=1, sweep_interval_s=0.05)

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(1, public_suffix_snapshot(), 0)
        async with server.broker() as broker, Tasks() as tasks:
            await broker.declare([POOL])
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
            running = tasks.start("master", master.run(stop, grace_s=5.0))

            async def dispatched() -> bool:
                await broker.tell(WORKER_STATUS, encode(WorkerStatus("w", POOL, 8, 0)))
                return len(await broker.queued_visits(PARTITION)) == len(SEEDS)

            async def emptied() -> bool:
                return not await broker.queued_visits(PARTITION)

            await _until(dispatched)
            crawl_id = CrawlId(1)
            assert (await store.counters(crawl_id)).leased == len(SEEDS)
            await store.set_state(crawl_id, CrawlState.DELETED, None, 0)
            command = Command(collection_of(crawl_id), crawl_id, CommandKind.DELETE)
            await broker.publish_command(PARTITION, encode(command), command.id)
            await _until(emptied)
            # Its state says nothing: this master, which nobody told, may have found by now that nothing is left to do.
            assert (await store.counters(crawl_id)).discovered == 0
            stop.set()
            await running
        await store.close()
        assert books(tmp_path / "crawl.db") == []

    asyncio.run(asyncio.wait_for(run(), 60))
