"""Over a real broker: a worker that is taken over sends an operator's command, and the owner does not obey it."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from api.frontier.ownership import FrontierSettings
from api.master.standalone import Standalone
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.nats import NatsBroker, StreamSettings
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.errors import Transient
from shared.domain.frontier.commands import CommandKind, collection_of
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.url import public_suffix_snapshot
from shared.runtime.supervise import Tasks
from shared.wire.messages import Command, encode
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.nats_server import server as server

PARTITION = Partition(0)
SEEDS = [f"http://h{n}.test/" for n in range(6)]
CRAWL = CrawlId(1)
COMMAND = Command(collection_of(CRAWL), CRAWL, CommandKind.DELETE)


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():  # noqa: ASYNC110  neither the broker nor the database has an event for it
        await asyncio.sleep(0.02)


def test_command_from_worker_becomes_dead_letter_and_has_no_effect(tmp_path: Path, server: BrokerServer) -> None:
    path = tmp_path / "crawl.db"

    def letters() -> list[tuple[str, str, bytes]]:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT kind, evidence, payload FROM dead_letters").fetchall()

    async def run() -> None:
        store = await SqliteStore.open(path)
        await store.open_cluster(1, public_suffix_snapshot(), 0)
        worker = await NatsBroker.connect(
            [server.endpoint.url], login=server.login("worker"), name="w", settings=StreamSettings()
        )
        async with server.broker() as broker, Tasks() as tasks:
            master = Standalone(
                parse_spec({"seeds": SEEDS, "pool": POOL}),
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(tmp_path / "specs"),
                clock=SystemClock(),
                settings=FrontierSettings(partitions=1, sweep_interval_s=0.05),
                alone=True,
            )
            stop = asyncio.Event()
            running = tasks.start("master", master.run(stop, grace_s=5.0))

            async def found() -> bool:
                return (await store.counters(CRAWL)).discovered == len(SEEDS)

            async def refused() -> bool:
                return bool(letters())

            async def collected() -> bool:
                return (await store.counters(CRAWL)).discovered == 0

            await _until(found)
            with pytest.raises(Transient, match=r"does not permit this process to publish on reports\.0\.command"):
                await worker.publish_command(PARTITION, encode(COMMAND), COMMAND.id)
            # Had it an effect, the rows would go: the crawl counts as deleted.
            await store.set_state(CRAWL, CrawlState.DELETED, None, 0)
            await worker.publish_report(PARTITION, "outcome", encode(COMMAND), "forged")
            await _until(refused)
            ((kind, evidence, payload),) = letters()
            assert (kind, payload) == ("outcome", b""), "a replay of the letter would not obey it either"
            assert evidence == f"cannot be read: command {COMMAND.id} (delete) is not on the subject of commands"
            assert (await store.counters(CRAWL)).discovered == len(SEEDS)
            await broker.publish_command(PARTITION, encode(COMMAND), COMMAND.id)
            await _until(collected)
            stop.set()
            await running
        await worker.close()
        await store.close()

    asyncio.run(asyncio.wait_for(run(), 60))
