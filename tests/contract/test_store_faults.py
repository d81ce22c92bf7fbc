"""What the store leaves behind when its process, its disk or its caller fails it."""

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from shared.adapters.sql.engine.bulk import Bulk
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import OwnershipLost, ResourceFull, Transient, Unusable
from shared.domain.frontier.store_model import Changes, DeadLetterRow
from shared.domain.ids import Term
from tests.support.database.store_tables import (
    NOW_MS,
    PARTITION,
    SUFFIXES,
    Tables,
    books,
    link,
    links,
    look,
    sqlite_tables,
)
from tests.support.faults.disks import small

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8


@pytest.mark.long
def test_a_killed_writer_leaves_whole_transactions(tmp_path: Path) -> None:
    """Whatever was told as committed is there, nothing is half there, and a new owner goes on."""
    rng = random.Random(20)
    for seed in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.support.database.store_writer", str(tmp_path), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        try:
            told = [writer.stdout.readline() for _ in range(rng.randrange(2, 30))][-1]
        finally:
            writer.kill()
            rest = writer.stdout.read()
            writer.wait()
            writer.stdout.close()
        lines = [told, *rest.splitlines()]
        version = max(int(line.split()[1]) for line in lines if len(line.split()) == 2)
        assert books(tmp_path / "crawl.db") == [], f"after kill {seed}"
        ((kept,),) = look(tmp_path / "crawl.db", "SELECT version FROM partitions WHERE partition = ?", PARTITION)
        assert version <= kept <= version + 1, "at most the transaction under way is more than what was told"
    assert look(tmp_path / "crawl.db", "PRAGMA integrity_check") == [("ok",)]
    ((n,),) = look(tmp_path / "crawl.db", "SELECT count(*) FROM urls")
    assert n > 100, "too little happened to prove anything"


def test_transaction_of_cancelled_caller_is_whole_or_absent(tmp_path: Path) -> None:
    """Its fate is unknown to the caller, who loads again; the old fence refuses a second try either way."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            await t.found(*links("a.example.com", range(3)))
            letter = Changes(dead_letters=[DeadLetterRow(None, "url", NOW_MS, "once")])
            task = asyncio.create_task(t.store.apply(t.fence, t.position, letter))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with contextlib.suppress(OwnershipLost):
                await t.store.apply(t.fence, t.position, letter)
            claimed = await t.store.reload(PARTITION, Term(1))
            assert claimed.fence.version > t.fence.version
            assert t.value("SELECT count(*) FROM dead_letters") == 1

    asyncio.run(story())


def test_a_database_that_stays_busy_is_transient_and_nothing_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            threads = SqliteThreads(t.path)
            await threads.write(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 20").close())
            other = SqliteStore(threads)
            with closing(sqlite3.connect(t.path, isolation_level=None)) as holder:
                holder.execute("BEGIN IMMEDIATE")
                with pytest.raises(Transient, match="locked"):
                    await other.apply(t.fence, t.position, Changes())
                assert (await other.worked_on())[0].name == "docs", "readers are not held up"
                holder.execute("ROLLBACK")
            await other.apply(t.fence, t.position, Changes())
            await other.close()

    asyncio.run(story())


def test_readers_see_the_last_commit_while_a_transaction_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            await t.found(*links("a.example.com", range(3)))
            many = [link(f"http://a.example.com/x{i}") for i in range(3000)]
            writing = asyncio.create_task(t.found(*many))
            seen = set()
            while not writing.done():
                seen.add((await t.store.counters(t.crawl_id)).discovered)
            await writing
            assert seen <= {3, 3003}
            assert (await t.store.counters(t.crawl_id)).discovered == 3003

    asyncio.run(story())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    with ExitStack() as stack:
        small(stack, folder, 3)
        yield folder


def test_a_full_disk_is_said_and_loses_nothing(small_disk: Path) -> None:
    async def story() -> None:
        store = await SqliteStore.open(small_disk / "crawl.db")
        await store.open_cluster(8, SUFFIXES, NOW_MS)
        crawl, _ = await store.put_crawl("docs", "{}", NOW_MS)
        claimed = await store.claim(PARTITION, Term(1))
        t = Tables(store, small_disk / "crawl.db", crawl.crawl_id, claimed.fence)

        async def fill() -> None:
            for i in range(1000):
                await t.found(*(link(f"http://a.example.com/{'x' * 60}/{i}/{j}") for j in range(500)))

        with pytest.raises(ResourceFull, match="disk that holds the database is full: make room there"):
            await fill()
        await store.close()
        committed = 500 * t.position.discovery_seq
        assert committed >= 500

        filler = small_disk.parent / "elsewhere"
        filler.mkdir()
        for path in small_disk.iterdir():
            (filler / path.name).write_bytes(path.read_bytes())
        assert books(filler / "crawl.db") == []
        store = await SqliteStore.open(filler / "crawl.db")
        again = await store.reload(PARTITION, Term(1))
        assert again.fence == t.fence.next(), "the refused transaction left nothing"
        assert (await store.counters(crawl.crawl_id)).discovered == committed
        await store.close()

    asyncio.run(story())


@pytest.mark.parametrize("places", [[1], [1, 3, 5]])
def test_full_disk_is_said_by_every_row_of_a_statement_that_returns_rows(tmp_path: Path, places: list[int]) -> None:
    """The first row goes through SQLAlchemy, the others to the driver alone."""
    grow = Bulk("UPDATE t SET b = zeroblob(:size) WHERE a = :a RETURNING a, length(b) AS size", ("a", "size"))

    async def story() -> None:
        threads = SqliteThreads(tmp_path / "t.db")
        try:
            await threads.write(lambda c: c.execute(text("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")).close())
            await threads.write(lambda c: c.execute(text("INSERT INTO t VALUES (1, ''), (3, ''), (5, '')")).close())
            grown = await threads.write(lambda c: grow.returned(c, [(a, 7) for a in (*places, 4)]))
            assert [(row.a, row.size) for row in grown] == [(a, 7) for a in places]
            assert await threads.write(lambda c: grow.returned(c, [])) == []

            def fill(connection: Connection) -> object:
                connection.execute(text("PRAGMA max_page_count = 20")).close()
                return grow.returned(connection, [*((a, 8) for a in places[:-1]), (places[-1], 500_000)])

            with pytest.raises(ResourceFull, match="disk that holds the database is full: make room there"):
                await threads.write(fill)
            assert threads.disk_full()
            sizes = await threads.read(lambda c: c.execute(text("SELECT max(length(b)) FROM t")).scalar())
            assert sizes == 7, "the refused transaction left nothing"
        finally:
            await threads.close()

    asyncio.run(story())


def test_query_without_space_to_sort_is_not_taken_for_a_lost_write(tmp_path: Path) -> None:
    """Tried again together with what it stands behind, that would be refused by its own fence: the partition would be
    another's."""

    def sorting(_: Connection) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise OperationalError("SELECT", None, error)

    async def story() -> None:
        threads = SqliteThreads(tmp_path / "crawl.db")
        try:
            with pytest.raises(Transient, match="full") as raised:
                await threads.read(sorting)
            assert not isinstance(raised.value, ResourceFull)
            assert not threads.disk_full()
        finally:
            await threads.close()

    asyncio.run(story())


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + bytes(3000)])
def test_a_file_that_is_no_database_is_unusable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "crawl.db").write_bytes(content)
    with pytest.raises(Unusable, match="cannot be used"):
        asyncio.run(SqliteStore.open(tmp_path / "crawl.db"))


def test_a_folder_that_is_missing_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(Unusable):
        asyncio.run(SqliteStore.open(tmp_path / "nowhere" / "crawl.db"))
