"""Milliseconds of CPU a page that rules of items cost: of one worker process, and of the process that builds trees.

    .venv/bin/python -m tests.benchmarks.worker_items [--pages N] [--rules N ...] [--rounds N]

Pages are made up (8 kB, 10 links each), on one host without a delay. The server of the pages, the broker and the owner
that grants everything are other processes, whose time does not count. Rounds with the different numbers of rules take
turns.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from shared.wire.subjects import WORKER_STATUS
from tests.support.api.scripted_owner import owner_of, spec_for, worker_process
from tests.support.engines.nats_server import BrokerServer
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import serve

_SLOTS: Final = 4
_SHARD: Final = 50
_FIELDS: Final = {
    "title": {"css": "title", "required": True},
    "text": {"css": "p"},
    "first": {"css": "a", "take": "link"},
    "links": {"css": "a", "take": "link", "all": True},
}


def _rules(number: int) -> list[dict[str, Any]]:
    return [{"name": f"rule-{n}", "fields": _FIELDS} for n in range(number)]


async def _round(home: Path, urls: list[str], rules: int) -> tuple[float, float]:
    """CPU seconds a page: of the worker, of the processes below it."""
    loop = asyncio.get_running_loop()
    server = await loop.run_in_executor(None, BrokerServer, home / "broker")
    spec = spec_for(urls[0], politeness={"delay_s": 0}, extract={"items": _rules(rules)})
    async with owner_of(server, home, spec) as owner, owner.broker.listen(WORKER_STATUS) as heard:
        with worker_process(server, home, ORB_REPORT_S="2", ORB_LOG_LEVEL="warning") as process:
            await anext(heard)
            running = psutil.Process(process.pid)
            before = running.cpu_times()
            shards = [urls[at : at + _SHARD] for at in range(0, len(urls), _SHARD)]

            async def keep(slot: int) -> None:
                while shards:
                    await owner.ended(await owner.send(*shards.pop(), slot=slot))

            await asyncio.gather(*(keep(slot) for slot in range(_SLOTS)))
            after = running.cpu_times()
            below = sum(sum(child.cpu_times()[:2]) for child in running.children(recursive=True))
            process.terminate()
            await asyncio.to_thread(process.wait)
    server.kill()
    return (after.user + after.system - before.user - before.system) / len(urls), below / len(urls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=2_000)
    parser.add_argument("--rules", type=int, nargs="+", default=[0, 1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    site = SyntheticSite(pages=asked.pages, body_bytes=8_000)
    found: dict[int, list[tuple[float, float]]] = {rules: [] for rules in asked.rules}
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder) / "log", site) as web:
        urls = [web.origins[0] + site.path(page) for page in range(asked.pages)]
        for number in range(asked.rounds):
            for rules, rounds in found.items():
                rounds.append(uvloop.run(_round(Path(folder) / f"{number}-{rules}", urls, rules)))
    print(f"{asked.pages} pages, median of {asked.rounds}, Python {sys.version.split()[0]}: ms of CPU a page")
    for rules, rounds in found.items():
        worker, below = (statistics.median(each) * 1e3 for each in zip(*rounds, strict=True))
        print(f"{rules:>4} rules  worker {worker:7.3f}  trees {below:7.3f}")


if __name__ == "__main__":
    main()
