"""Reads of a few rows by their keys, on the loop's own thread."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.engine.migrate import upgrade_sqlite
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.domain.reads.declared import Actor, Declaration
from shared.ports.catalog import Missing

OPERATOR = Actor("0" * 16, "operator", "r")


def test_point_query_sees_committed_rows_and_leaves_no_snapshot(tmp_path: Path) -> None:
    async def run() -> None:
        threads = SqliteThreads(tmp_path / "orb.db")
        try:
            await threads.migrate(upgrade_sqlite)
            crawls = SqlCatalog(threads)
            for number in range(20):
                wanted = Declaration("news", f'{{"n":{number}}}', {"z": str(number), "a": "1"})
                await crawls.put(wanted, expected=None, start=False, actor=OPERATOR, now_ms=0)
                seen = await crawls.crawl("news")
                assert (seen.spec, dict(seen.labels)) == (wanted.spec, dict(wanted.labels))
                assert list(seen.labels) == ["a", "z"]
        finally:
            await threads.close()
        with sqlite3.connect(tmp_path / "orb.db") as other:  # with a reader left, the log could not be taken in
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)

    asyncio.run(run())


def test_what_a_glance_cannot_read_at_once_is_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while another process repairs the log, which locks everybody out for a moment."""
    refused: list[str] = []

    class Locked:
        def execute(self, statement: str, keys: Sequence[object]) -> None:
            refused.append(statement)
            raise sqlite3.OperationalError("database is locked")

        def close(self) -> None: ...

    async def run() -> None:
        threads = SqliteThreads(tmp_path / "orb.db")
        monkeypatch.setattr(threads, "_glancing", Locked())
        try:
            await threads.migrate(upgrade_sqlite)
            crawls = SqlCatalog(threads)
            made = await crawls.create(Declaration("news", "{}", {"a": "1"}), start=False, actor=OPERATOR, now_ms=0)
            assert await crawls.crawl("news") == made
        finally:
            await threads.close()

    asyncio.run(run())
    assert len(refused) == 1


def test_a_database_that_is_locked_when_the_first_looks_at_it_is_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        threads = SqliteThreads(tmp_path / "orb.db")
        await threads.migrate(upgrade_sqlite)
        await threads.close()
        alone = sqlite3.connect(tmp_path / "orb.db", isolation_level=None, check_same_thread=False)
        alone.execute("PRAGMA locking_mode = EXCLUSIVE")
        alone.execute("BEGIN EXCLUSIVE")
        threads = SqliteThreads(tmp_path / "orb.db")
        try:
            asking = [asyncio.create_task(SqlCatalog(threads).crawl("news")) for _ in range(3)]
            await asyncio.wait(asking, timeout=0.1)
            alone.close()
            for each in asking:
                with pytest.raises(Missing):
                    await each
        finally:
            await threads.close()

    asyncio.run(asyncio.wait_for(run(), 60))
