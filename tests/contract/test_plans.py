"""Every statement of an owner's transactions finds its rows by an index, on a filled frontier, on both engines."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from tests.contract.conftest import ENGINES
from tests.support.database.query_plans import accesses, analyze, recorded, worked
from tests.support.database.scaled_frontier import PARTITIONS
from tests.support.engines.postgres import PostgresServer

HOT: Final = {"urls", "queues", "hosts", "leases", "partitions"}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Opens a new store."""

    server: PostgresServer | None = request.getfixturevalue("postgres_server") if request.param != "sqlite" else None

    async def opened() -> SqlStore:
        if server is None:
            return await SqliteStore.open(tmp_path / "frontier.db")
        return await PostgresStore.open(await server.database())

    return opened


def test_no_statement_of_an_owner_looks_at_rows_one_by_one(engine: Any) -> None:
    """Whether the engine still believes what it knew of empty tables, or has counted their rows."""

    async def story() -> None:
        store = await engine()
        try:
            await store.open_cluster(PARTITIONS, "", 0)
            crawl, _ = await store.put_crawl("docs", "{}", 0)
            with recorded() as sent:
                await worked(store, crawl.crawl_id, 5_000)
            believed = await accesses(store, sent)
            await analyze(store)
            counted = await accesses(store, sent)
        finally:
            await store.close()
        for found in (believed, counted):
            assert {access.table for told in found.values() for access in told} >= HOT
            slow = {statement: told for statement, told in found.items() if any(access.one_by_one for access in told)}
            assert not slow, "\n".join(f"{k} {v}" for k, v in slow.items())

    asyncio.run(story())
