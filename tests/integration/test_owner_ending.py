"""An owner that is told to end ends, also where an engine fails in that very moment."""

import asyncio
from pathlib import Path

import pytest

from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.owner import Owner
from api.frontier.ownership import FrontierSettings
from api.frontier.sweep import Sweep
from shared.adapters.local.clock import SystemClock
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import Transient
from shared.domain.ids import Partition, Term
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server


def test_owner_ending_while_broker_fails_does_not_start_again(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def failing(_: Sweep) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Transient("the connection was closed") from None

    monkeypatch.setattr(Sweep, "run", failing)

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "cluster.db")
        try:
            await store.open_cluster(1, "", 0)
            async with server.broker() as broker:
                owner = Owner(
                    Partition(0), Term(1), store=store, broker=broker, clock=SystemClock(), crawls=DispatchCrawls(),
                    capacity=PoolCapacity(), settings=FrontierSettings(partitions=1),
                )  # fmt: skip
                owning = asyncio.create_task(owner.run())
                async with asyncio.timeout(30):
                    await begun.wait()
                    owning.cancel()
                    await asyncio.wait({owning})
                assert owning.cancelled()
        finally:
            await store.close()

    asyncio.run(story())
