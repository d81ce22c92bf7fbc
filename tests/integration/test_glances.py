"""Reads of a few rows by their keys, on the loop's own thread."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.engine.migrate import upgrade_sqlite
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.domain.reads.declared import Actor, Declaration
from shared.ports.catalog import Missing
from tests.support.database.statement_log import statements

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


def test_data_version_differs_after_each_commit_of_any_connection(tmp_path: Path) -> None:
    async def run() -> None:
        threads, other = SqliteThreads(tmp_path / "orb.db"), SqliteThreads(tmp_path / "orb.db")
        try:
            await threads.migrate(upgrade_sqlite)
            seen = [await threads.data_version()]
            for writer in (threads, other, threads):
                catalog = SqlCatalog(writer)
                await catalog.create(Declaration(f"c{len(seen)}", "{}", {}), start=False, actor=OPERATOR, now_ms=0)
                seen += [await threads.data_version()]
                assert await threads.data_version() == seen[-1], "nothing was committed in between"
            assert len(set(seen)) == len(seen)
            assert None not in seen
        finally:
            await threads.close()
            await other.close()

    asyncio.run(run())


def test_polled_read_is_sent_again_after_a_commit_or_for_other_arguments(tmp_path: Path) -> None:
    async def run() -> None:
        threads, other = SqliteThreads(tmp_path / "orb.db"), SqliteThreads(tmp_path / "orb.db")
        try:
            await threads.migrate(upgrade_sqlite)
            overview = SqlOverview(threads)
            with statements() as sent:
                first = await overview.crawl_overviews()
                assert (begun := len(sent)) > 0
                assert await overview.crawl_overviews() is first
                assert len(sent) == begun
                await overview.crawl_overviews([])
                assert len(sent) > begun
            await SqlCatalog(other).create(Declaration("news", "{}", {}), start=False, actor=OPERATOR, now_ms=0)
            assert [crawl.name for crawl in await overview.crawl_overviews()] == ["news"]
        finally:
            await threads.close()
            await other.close()

    asyncio.run(run())


def test_polled_read_is_sent_each_time_if_the_version_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown() -> None:
        return None

    async def run() -> None:
        threads = SqliteThreads(tmp_path / "orb.db")
        monkeypatch.setattr(threads, "data_version", unknown)
        try:
            await threads.migrate(upgrade_sqlite)
            overview = SqlOverview(threads)
            with statements() as sent:
                for _ in range(3):
                    await overview.letters(0, 1)
            assert sum(each.startswith("SELECT") for each in sent) == 3
        finally:
            await threads.close()

    asyncio.run(run())
