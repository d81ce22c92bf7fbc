"""A database in another engine has every row of the first, gives no number twice, and is there whole or not at all."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cli.admin.database import copied
from cli.terminal.exits import Environment
from shared.adapters.sql.admin import dump as rows
from shared.adapters.sql.engine.migrate import HEAD
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.errors import DiskFull
from shared.settings import ClusterMasterSettings
from shared.wire.keys import Keys
from tests.support.database.random_rows import fill
from tests.support.engines.etcd import coordinator, etcd, patient_session
from tests.support.engines.postgres import PostgresLook, PostgresServer
from tests.support.processes.orb_command import orb

ROWS = 53


async def source(path: Path, *, drawn: int = ROWS) -> str:
    store = await SqliteStore.open(path)
    try:
        await store.executor.write(lambda c: fill(c, drawn))
        await store.executor.write(lambda c: c.execute(text("DELETE FROM crawls WHERE crawl_id = 53")))
    finally:
        await store.close()
    return str(path)


def tables(path: Path | str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, by a reader of its own."""
    with closing(sqlite3.connect(path)) as connection:
        named = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in named}


@pytest.mark.long
def test_from_sqlite_to_postgresql_and_back_every_row_is_the_same(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_PAGE", 5)
    monkeypatch.setattr(rows, "_LARGE_ROWS", {"crawls": 2})

    async def story() -> None:
        first = await source(tmp_path / "a.db")
        url = await postgres_server.database(empty=True)
        there = await copied(first, url)
        back = await copied(url, f"sqlite:///{tmp_path / 'b.db'}")
        before, after = tables(first), tables(tmp_path / "b.db")
        assert before == after
        others = {"alembic_version", "sqlite_sequence", "report_holds"}
        assert there == back == sum(len(found) for name, found in before.items() if name not in others)
        assert {name for name, found in before.items() if not found} == {"report_holds"}
        look = PostgresLook(url)
        try:
            for name in before.keys() - others:
                assert look(f"SELECT count(*) FROM {name}") == [(len(before[name]),)], name
        finally:
            look.close()
        store = await PostgresStore.open(url)
        row, _ = await store.put_crawl("next", "{}", 0)
        assert row.crawl_id == 54, "53 was given once, although its row is gone"
        await store.close()

    asyncio.run(story())


def test_nothing_is_put_over_what_is_there(tmp_path: Path, postgres_server: PostgresServer) -> None:
    async def story() -> None:
        first = await source(tmp_path / "a.db")
        (tmp_path / "b.db").write_bytes(b"mine")
        with pytest.raises(Environment, match="exists already"):
            await copied(first, str(tmp_path / "b.db"))
        assert (tmp_path / "b.db").read_bytes() == b"mine"
        url = await postgres_server.database()
        await copied(first, url)
        with pytest.raises(Environment, match=r"holds a cluster already.* from --to"):
            await copied(first, url)

    asyncio.run(story())


def test_a_side_that_has_no_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, also where the other side is being read."""

    def full(*_: Any, **__: Any) -> None:
        raise DiskFull("the disk that holds the database is full: make room there, and all goes on")

    first, target = asyncio.run(source(tmp_path / "a.db")), str(tmp_path / "b.db")
    for refused, named in (("put", target), ("version", first)):
        monkeypatch.setattr(rows, refused, full)
        with pytest.raises(Environment) as said:
            asyncio.run(copied(f"sqlite://{first}", f"sqlite://{target}"))
        monkeypatch.undo()
        assert str(said.value) == (
            f"the disk of the database {named} is full: make room there, and run the same command again."
        )
    assert not Path(target).exists()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_source_that_is_written_to_meanwhile_is_not_copied_at_all(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The masters were not stopped: what they wrote behind the copy would be lost with the old database."""
    put = rows.put
    # Outside of the story: a server that is not there yet is made on a loop of its own.
    server = request.getfixturevalue("postgres_server") if engine == "postgresql" else None
    first = asyncio.run(source(tmp_path / "a.db"))

    def and_a_master_writes(connection: Any, table: str, **more: Any) -> None:
        put(connection, table, **more)
        if table == "urls":
            with closing(sqlite3.connect(first)) as master, master:
                master.execute("UPDATE partitions SET version = version + 1")

    monkeypatch.setattr(rows, "put", and_a_master_writes)

    async def story() -> None:
        target = str(tmp_path / "b.db") if server is None else await server.database(empty=True)
        with pytest.raises(Environment, match=r"a master wrote to the database .*: stop all masters"):
            await copied(first, target)
        holds_nothing(target)

    asyncio.run(story())


def holds_nothing(target: str) -> None:
    """Nothing of a refused copy is there, tables included."""
    if target.startswith("postgresql"):
        look = PostgresLook(target)
        assert look("SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []
        look.close()
    else:
        path = Path(target)
        assert [found.name for found in path.parent.iterdir() if found.name.startswith(path.name)] == []


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("starts", ["before", "meanwhile"])
def test_copy_while_a_master_has_the_source_open_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, engine: str, starts: str
) -> None:
    """The master writes nothing until the copy has ended: no fence shows it, and its next page would be lost."""
    server: PostgresServer | None = request.getfixturevalue("postgres_server") if engine == "postgresql" else None
    target, count = str(tmp_path / "b.db"), rows.count

    async def story() -> None:
        here, loop = await source(tmp_path / "a.db"), asyncio.get_running_loop()
        if server is not None:
            there = await server.database(empty=True)
            await copied(here, there)
            here = there
        masters: list[SqlStore] = []

        async def start() -> None:
            store = await (SqliteStore.open(Path(here)) if server is None else PostgresStore.open(here))
            masters.append(store)
            await store.public_suffixes()

        def and_a_master_starts(connection: Any, table: str) -> int:
            if not masters:  # on the thread that fills the target
                asyncio.run_coroutine_threadsafe(start(), loop).result(60)
            return count(connection, table)

        if starts == "before":
            await start()
        else:
            monkeypatch.setattr(rows, "count", and_a_master_starts)
        with pytest.raises(Environment, match=r"the database .* is in use, .*: stop all masters"):
            await copied(here, target)
        await masters[0].close()
        holds_nothing(target)
        assert await copied(here, target) > ROWS, "nothing of the refused copy is in the way"

    asyncio.run(story())


def test_copy_while_masters_are_registered_in_etcd_is_refused(tmp_path: Path) -> None:
    """They have no connection to the database at the moment, as after an outage of it."""
    target = str(tmp_path / "b.db")

    async def story() -> None:
        first = await source(tmp_path / "a.db")
        async with etcd(tmp_path / "etcd") as server, coordinator(server.endpoint) as client:
            cluster = ClusterMasterSettings(id="operator", etcd=server.endpoint, nats_url="", database="")
            async with patient_session(client, 15.0) as session:
                await session.register(Keys("orb").master("m1"), b"{}")
                with pytest.raises(Environment, match=r"registered in etcd: m1\. Stop all masters"):
                    await copied(first, target, cluster)
                holds_nothing(target)
            assert await copied(first, target, cluster) > ROWS

    asyncio.run(story())


@pytest.mark.long
def test_the_commands_say_what_they_did_and_end_as_documented(tmp_path: Path) -> None:
    first = asyncio.run(source(tmp_path / "a.db", drawn=3))
    orb("migrate", "--database", first, "--check")
    orb("migrate", "--database", tmp_path / "none.db", "--check", code=1)
    assert not (tmp_path / "none.db").exists()
    orb("migrate", "--database", tmp_path / "new.db")
    assert tables(tmp_path / "new.db")["alembic_version"] == [(HEAD,)]
    orb("db", "check", "--database", first, "--json", code=1)  # drawn rows add up to nothing
    orb("db", "check", "--database", tmp_path / "none.db", code=4)
    orb("db", "copy", "--from", first, "--to", tmp_path / "b.db")
    orb("db", "copy", "--from", first, "--to", tmp_path / "b.db", code=4)
    assert tables(first) == tables(tmp_path / "b.db")
