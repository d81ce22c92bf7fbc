"""Code of the release before works on each newer schema: what it reads is there, and what it writes is enough.

Masters are exchanged one by one. The first new one migrates, the others go on with the statements that they know: so
of what a migration finds nothing goes, nothing gets stricter, and whatever it adds to a row has a value by itself. The
newest schema here is that of a later release, which only tests have.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Inspector, inspect

from shared.adapters.sql.admin import dump, load
from shared.adapters.sql.engine.migrate import HEAD, upgrade
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresStore
from shared.adapters.sql.engine.snapshot import snapshot
from shared.adapters.sql.engine.sqlite import sqlite_engine
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.errors import Unusable
from shared.domain.frontier.states import UrlState
from tests.support.database.store_tables import Tables, books, link, look, sqlite_tables
from tests.support.engines.postgres import PostgresLook, PostgresServer, postgres_tables
from tests.support.later_release import LATER, later_release, revisions

Schema = dict[str, dict[str, Any]]
NewTables = Callable[[], AbstractAsyncContextManager[Tables]]


def unique(inspector: Inspector, table: str) -> set[tuple[Any, ...]]:
    """What may be in a table once only: the targets of `ON CONFLICT`."""
    found = {tuple(index["column_names"]) for index in inspector.get_indexes(table) if index["unique"]}
    return found | {tuple(each["column_names"]) for each in inspector.get_unique_constraints(table)}


def schema(connection: Connection) -> Schema:
    """Every table: its columns with type, whether they may be null and their default, and its rules."""
    inspector = inspect(connection)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            },
            "key": tuple(inspector.get_pk_constraint(table)["constrained_columns"]),
            "unique": unique(inspector, table),
            "rules": sorted(str(check["sqltext"]) for check in inspector.get_check_constraints(table)),
            "foreign": [key["constrained_columns"] for key in inspector.get_foreign_keys(table)],
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def stops_old_code(before: Schema, after: Schema) -> list[str]:
    """What in the newer schema would stop code that knows the older one."""
    found = [f"the table {table} is gone" for table in before if table not in after]
    for table in before.keys() & after.keys():
        was, now = before[table], after[table]
        for name, column in was["columns"].items():
            if now["columns"].get(name) != column:
                found.append(f"{table}.{name} was {column} and is {now['columns'].get(name)}")
        for name in now["columns"].keys() - was["columns"].keys():
            _, nullable, default = now["columns"][name]
            if not nullable and default is None:
                found.append(f"{table}.{name} has to be said")
        found += [
            f"the {rule} of {table} differs" for rule in ("key", "unique", "rules", "foreign") if was[rule] != now[rule]
        ]
    return sorted(found)


def test_no_migration_stops_code_that_knows_the_schema_before_it(tmp_path: Path) -> None:
    engine = sqlite_engine(tmp_path / "a.db")
    schemas = {}
    with later_release(tmp_path), engine.begin() as connection:
        for revision in revisions():
            upgrade(connection, revision)
            schemas[revision] = schema(connection)
    engine.dispose()
    assert list(schemas)[-2:] == [HEAD, LATER]
    found = {after: stops_old_code(schemas[before], schemas[after]) for before, after in pairwise(schemas)}
    assert {revision: wrong for revision, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE drains", "the table drains is gone"),
        ("ALTER TABLE audit_log RENAME COLUMN actor TO who", "audit_log.actor was"),
        ("ALTER TABLE drains ADD COLUMN until_ms BIGINT NOT NULL DEFAULT 0", None),
        ("CREATE UNIQUE INDEX once ON audit_log (actor)", "the unique of audit_log differs"),
    ],
)
def test_a_change_that_would_stop_it_is_noticed(tmp_path: Path, change: str, said: str | None) -> None:
    engine = sqlite_engine(tmp_path / "a.db")
    with engine.begin() as connection:
        upgrade(connection)
        before = schema(connection)
        connection.exec_driver_sql(change)
        wrong = stops_old_code(before, schema(connection))
    engine.dispose()
    assert [said] == [each[: len(said)] for each in wrong[:1]] if said else wrong == []


@pytest.fixture(params=["sqlite", "postgresql"])
def new_tables(request: pytest.FixtureRequest, tmp_path: Path) -> NewTables:
    """`async with new_tables() as tables`: a new store on each engine."""
    if request.param == "sqlite":
        return lambda: sqlite_tables(tmp_path)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return lambda: postgres_tables(server)


def url_of(tables: Tables) -> str:
    return tables.at.url if isinstance(tables.at, PostgresLook) else str(tables.path)


async def opened(tables: Tables) -> SqlStore:
    """Do what a master of this release does when it starts."""
    if isinstance(tables.at, PostgresLook):
        return await PostgresStore.open(tables.at.url)
    return await SqliteStore.open(tables.path)


async def migrated(tables: Tables) -> None:
    """Do what the first master of the later release does when it starts."""
    if isinstance(tables.at, PostgresLook):
        pool = PostgresPool(tables.at.url)
        await pool.migrate(partial(upgrade, to=LATER))
        await pool.close()
        return
    engine = sqlite_engine(tables.path)
    with engine.begin() as connection:
        upgrade(connection, LATER)
    engine.dispose()


def test_master_of_the_release_before_works_on_while_another_migrates(new_tables: NewTables, tmp_path: Path) -> None:
    """It has read some rows before, and it writes some of each kind afterwards. It is not started again."""

    async def story() -> None:
        async with new_tables() as tables:
            await tables.found(link("http://a.test/"))
            row = await tables.lease("a.test")
            assert row is not None
            with later_release(tmp_path):
                await migrated(tables)
            await tables.settle(row, UrlState.DONE, pages=1)
            await tables.found(link("http://a.test/b"), link("http://b.test/"))
            assert [len(each.urls) for each in await tables.lease_all([("a.test", 9), ("b.test", 9)])] == [1, 1]
            claimed = await tables.claim(2)
            assert len(claimed.leases) == 2
            assert tables.rows("SELECT host, mood FROM hosts ORDER BY host") == [("a.test", 7), ("b.test", 7)]
            assert tables.rows("SELECT DISTINCT note FROM urls") == [(None,)]
            assert books(tables.at) == []
            with pytest.raises(Unusable, match=f"schema is {LATER}.*newer Orbweaver"):
                await opened(tables)

    asyncio.run(story())


def test_dump_of_the_release_before_is_loaded_by_a_later_one(new_tables: NewTables, tmp_path: Path) -> None:
    """As a restore does: the tables are those of the dump until all rows are in, and then they are migrated."""

    async def story(patch: pytest.MonkeyPatch) -> None:
        async with new_tables() as tables:
            await tables.found(link("http://a.test/"), link("http://b.test/"))
            async with snapshot(url_of(tables)) as taken:
                dumped = {table: [page async for page in dump.pages(taken, table)] for table in dump.TABLES}
        patch.setattr(load, "upgrade", lambda connection, to=LATER: upgrade(connection, to))
        with later_release(tmp_path):
            async with load.filling(str(tmp_path / "new.db"), HEAD) as fresh:
                for table, pages in dumped.items():
                    for rows in pages:
                        await fresh.write(partial(dump.put, table=table, columns=dump.columns_of(table), rows=rows))
        assert look(tmp_path / "new.db", "SELECT version_num FROM alembic_version") == [(LATER,)]
        assert look(tmp_path / "new.db", "SELECT host, mood FROM hosts ORDER BY host") == [("a.test", 7), ("b.test", 7)]
        assert books(tmp_path / "new.db") == []

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(story(patch))


def test_dump_from_before_the_first_release_is_not_loaded(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(Unusable, match=r"this backup is from before the first release \(schema 0015\)"):
            async with load.filling(str(tmp_path / "new.db"), "0015"):
                pass

    asyncio.run(story())
    assert list(tmp_path.iterdir()) == []
