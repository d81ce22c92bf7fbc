"""What a crawl waits for at its begin and its end is an event: every interval of looking is an hour here."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api.frontier.ownership import FrontierSettings
from api.master import standalone
from api.master.standalone import Standalone
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.nats import NatsBroker
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import Transient
from shared.domain.frontier.states import CrawlState
from shared.domain.web.url import public_suffix_snapshot
from shared.runtime.supervise import Tasks
from shared.wire.messages import decode_progress
from shared.wire.subjects import PROGRESS
from tests.support.api.scripted_owner import spec_for, worker
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.raw_server import Connection, page, raw_server
from workers import runtime

HOUR_S = 3600.0
SETTINGS = FrontierSettings(partitions=4)


async def answer(connection: Connection) -> None:
    while True:
        await connection.request()
        await connection.send(page())


def test_crawl_whose_worker_came_before_its_streams_waits_for_no_interval(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "_PROGRESS_S", HOUR_S)
    monkeypatch.setattr(runtime, "_HEARTBEAT_S", HOUR_S)
    not_pulled = asyncio.Event()
    pull = NatsBroker.pull_visits

    async def pull_or_wait(self: NatsBroker, *arguments: Any) -> Any:
        try:
            return await pull(self, *arguments)
        except Transient as error:
            not_pulled.set()
            raise Transient(str(error), retry_in=HOUR_S) from error

    monkeypatch.setattr(NatsBroker, "pull_visits", pull_or_wait)

    async def main() -> None:
        store = await SqliteStore.open(tmp_path / "crawl.db")
        await store.open_cluster(SETTINGS.partitions, public_suffix_snapshot(), 0)
        async with (
            raw_server(answer) as site,
            server.broker(declare=False) as broker,
            broker.listen(PROGRESS) as heard,
            worker(server, tmp_path),
            Tasks() as tasks,
        ):
            await not_pulled.wait()
            await broker.declare([POOL])
            master = Standalone(
                spec_for(site.url("/"), politeness={"delay_s": 0}),
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(tmp_path / "specs"),
                clock=SystemClock(),
                settings=SETTINGS,
                alone=True,
            )
            stop = asyncio.Event()
            running = tasks.start("master", master.run(stop, grace_s=5.0))
            async for data in heard:
                progress = decode_progress(data)
                if progress.state == CrawlState.FINISHED:
                    break
            assert progress.counters["pages"] == 1
            stop.set()
            await running
        await store.close()

    run(main())
