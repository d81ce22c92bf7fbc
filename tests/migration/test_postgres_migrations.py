"""The migrations make the same schema on PostgreSQL, once, however many masters start together."""

import asyncio
from functools import partial
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from shared.adapters.sql.engine.access_schema import api_keys
from shared.adapters.sql.engine.migrate import HEAD, upgrade
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresStore
from shared.domain.errors import Unusable
from tests.support.engines.postgres import PATIENT, PostgresServer
from tests.support.later_release import LATER

metadata = api_keys.metadata

_DEFINITIONS = (
    "SELECT indexdef FROM pg_indexes WHERE schemaname = :schema",
    "SELECT table_name, column_name, data_type, is_nullable, column_default, character_maximum_length"
    " FROM information_schema.columns WHERE table_schema = :schema",
)


def definitions(connection: Connection, schema: str) -> set[tuple[Any, ...]]:
    """Indexes and columns of a schema, without its name."""
    return {
        tuple(str(value).replace(f"{schema}.", "") for value in row)
        for query in _DEFINITIONS
        for row in connection.execute(text(query), {"schema": schema})
        if "alembic_version" not in str(row)
    }


def test_the_migrations_make_the_tables_of_the_metadata(postgres_server: PostgresServer) -> None:
    def compared(connection: Connection) -> None:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
        connection.execute(text("CREATE SCHEMA made"))
        connection.execute(text("SET LOCAL search_path TO made"))
        metadata.create_all(connection)
        by_metadata, by_migration = definitions(connection, "made"), definitions(connection, "public")
        assert by_migration == by_metadata
        for index in ("urls_queued", "urls_waiting", "queues_ready", "crawls_name"):
            assert any(f"INDEX {index} " in row[0] and " WHERE " in row[0] for row in by_migration), index

    async def story() -> None:
        pool = PostgresPool(await postgres_server.database(empty=True))
        await pool.migrate(upgrade)
        await pool.write(compared)
        await pool.close()

    asyncio.run(story())


def test_masters_that_start_together_migrate_once_and_agree(postgres_server: PostgresServer) -> None:
    async def story() -> None:
        url = await postgres_server.database(empty=True)
        stores = await asyncio.gather(*(PostgresStore.open(url, PATIENT) for _ in range(4)))
        opened = await asyncio.gather(*(store.open_cluster(n, "", 0) for n, store in enumerate(stores, 4)))
        assert len(set(opened)) == 1
        versions = await stores[0].executor.read(
            lambda c: c.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
        )
        assert versions == [HEAD]
        for store in stores:
            await store.close()

    asyncio.run(story())


def named(connection: Connection, schema: str) -> None:
    connection.execute(text("UPDATE alembic_version SET version_num = :schema"), {"schema": schema})


def test_schema_that_no_release_before_this_one_made_is_refused(
    postgres_server: PostgresServer,
) -> None:
    async def story() -> None:
        url = await postgres_server.database()
        pool = PostgresPool(url)
        for schema, said in ((LATER, f"{LATER}.*newer Orbweaver"), ("0001", "before the first release.*use a new")):
            await pool.write(partial(named, schema=schema))
            with pytest.raises(Unusable, match=said):
                await PostgresStore.open(url)
        await pool.close()

    asyncio.run(story())
