"""Milliseconds of CPU a page of one whole worker process: pull, robots, fetch, parse, outlinks, WARC, reports.

Run from the clone's root, on a quiet machine (nginx and Debian's python3.11-doc, postgresql-doc-15, apache2-doc):

    .venv/bin/python -m tests.benchmarks.worker_pages [--pages N] [--slots N] [--shard N] [--rounds N] [--profile FILE]

The worker is a process of its own; nginx, the broker and a scripted owner that grants everything are others, and their
time does not count. URLs are all HTML of the three trees on one host with no delay, each fetched once a round; a round
has a new worker, a new broker and an empty archive. `--profile` writes what cProfile saw (and slows the worker down).
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil
import uvloop

from shared.wire.subjects import WORKER_STATUS
from tests.support.api.scripted_owner import owner_of, spec_for, worker_process
from tests.support.engines.nats_server import BrokerServer
from tests.support.web.corpora import CORPORA
from tests.support.web.corpus_site import nginx

_SEED: Final = 7


def _urls(start: str, max_count: int) -> list[str]:
    origin = start.removesuffix("/start.html")
    urls = []
    for corpus in CORPORA:
        root = corpus.root()
        assert root is not None
        files = sorted(path for path in root.rglob("*.html") if path.is_file())
        urls += [f"{origin}/{corpus.name}/{path.relative_to(root).as_posix()}" for path in files]
    random.Random(_SEED).shuffle(urls)
    return urls[:max_count]


async def _round(home: Path, urls: list[str], slots: int, shard: int, profile: str | None) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    server = await loop.run_in_executor(None, BrokerServer, home / "broker")
    spec = spec_for(urls[0], politeness={"delay_s": 0})
    command = ("-m", "cProfile", "-o", profile) if profile else ()
    async with owner_of(server, home, spec) as owner, owner.broker.listen(WORKER_STATUS) as heard:
        with worker_process(server, home, *command, ORB_REPORT_S="2", ORB_LOG_LEVEL="warning") as process:
            await anext(heard)
            running = psutil.Process(process.pid)
            before, started = running.cpu_times(), time.perf_counter()
            shards = [urls[at : at + shard] for at in range(0, len(urls), shard)]
            leases: list[int] = []

            async def keep(slot: int) -> None:
                while shards:
                    lease = await owner.send(*shards.pop(), slot=slot)
                    leases.append(lease)
                    await owner.ended(lease)

            await asyncio.gather(*(keep(slot) for slot in range(slots)))
            after, wall = running.cpu_times(), time.perf_counter() - started
            memory = running.memory_info().rss
            process.terminate()
            await asyncio.to_thread(process.wait)
    server.kill()
    results = [result for outcome in owner.outcomes for result in outcome.results]
    pages = [result for result in results if result.status == 200]
    assert len(results) >= len(urls), "the visits gave URLs back"
    cpu = after.user + after.system - before.user - before.system
    return {
        "ms of CPU a page": cpu / len(results) * 1e3,
        "of it in the kernel": (after.system - before.system) / len(results) * 1e3,
        "pages a second": len(results) / wall,
        "KB a page": sum(result.size for result in pages) / len(pages) / 1e3,
        "links discovered": len(owner.links()),
        "RSS in MiB": memory / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--shard", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile")
    asked = parser.parse_args()
    os.environ.setdefault("ORB_LOG_LEVEL", "warning")
    with tempfile.TemporaryDirectory() as folder, nginx(Path(folder) / "web") as start:
        urls = _urls(start, asked.pages)
        rounds = [
            uvloop.run(_round(Path(folder) / f"round-{number}", urls, asked.slots, asked.shard, asked.profile))
            for number in range(asked.rounds)
        ]
    version = sys.version.split()[0]
    print(
        f"{len(urls)} pages, {asked.slots} slots, shards of {asked.shard}, median of {asked.rounds}, Python {version}"
    )
    for name in rounds[0]:
        print(f"{name:>24}  {statistics.median(each[name] for each in rounds):10.3f}")


if __name__ == "__main__":
    main()
