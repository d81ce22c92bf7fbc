"""`orb bench api_reads`: GET /v1/crawls/{name} of a real master against a bare FastAPI endpoint that returns the same.

The master is a process with etcd, NATS and SQLite behind it, everything on (keys, request ids, logs, metrics, ETags).
The bare one is FastAPI in uvicorn on the same loop, which returns a constant of the same model: nothing is looked up,
nobody is asked who he is. Both answer the same client in turns, over connections
that are kept open; the factor is that of the medians. Elapsed time depends on what else runs; a server's CPU time
hardly does.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil
import uvicorn
from fastapi import FastAPI

from api.schemas.crawls import EXAMPLE, Crawl
from api.server.serving import address_of, listening
from tests.support.api.cluster_clients import address, admin
from tests.support.processes.cluster import cluster
from tests.support.processes.orb_command import ROOT

PATH: Final = f"/v1/crawls/{EXAMPLE['name']}"


@dataclass(frozen=True, slots=True)
class Round:
    """What so many requests took: elapsed and CPU microseconds each, and the percentiles of waiting for one."""

    elapsed_us: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test."""

    name: str
    base: str
    process: psutil.Process
    headers: dict[str, str]

    def request(self) -> bytes:
        """The request as it is sent, again and again."""
        place = httpx.URL(self.base)
        lines = [f"GET {PATH} HTTP/1.1", f"Host: {place.host}:{place.port}", "Accept: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def ask(target: Target, requests: int, connections: int) -> Round:
    """The requests over so many connections, on each of which the next follows the answer."""
    waits: list[float] = []
    place, sent = httpx.URL(target.base), target.request()

    async def converse(count: int) -> None:
        reader, writer = await asyncio.open_connection(place.host, place.port)
        for _ in range(count):
            began = time.perf_counter()
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            _, _, rest = head.lower().partition(b"content-length: ")
            await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
            waits.append(time.perf_counter() - began)
        writer.close()
        await writer.wait_closed()

    before, began = target.process.cpu_times(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(converse(requests // connections))
    elapsed, after = time.perf_counter() - began, target.process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    points = statistics.quantiles(waits, n=100)
    return Round(elapsed / len(waits) * 1e6, cpu / len(waits) * 1e6, points[49] * 1e3, points[98] * 1e3)


# --- the two servers --------------------------------------------------------------------------------------------------


def serve_bare(answer: Path) -> None:
    """Answer with the crawl in that file at a free port, and print where."""
    crawl = Crawl.model_validate_json(answer.read_bytes())
    app = FastAPI()

    @app.get("/v1/crawls/{name}")
    async def get_crawl(name: str) -> Crawl:
        """The crawl."""
        return crawl

    listener = listening("127.0.0.1:0")
    print(f"http://{address_of(listener)}", flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", server_header=False, loop="uvloop")
    uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def bare(answer: Path) -> Iterator[Target]:
    """The endpoint without anything around it."""
    command = [sys.executable, "-m", "tests.benchmarks.api_reads", "--serve", str(answer)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Target("bare FastAPI", process.stdout.readline().strip(), psutil.Process(process.pid), {})
    finally:
        process.kill()
        process.wait()


@contextmanager
def master(folder: Path) -> Iterator[Target]:
    """A master that leads, and has the crawl of the document's example."""
    with cluster(folder) as made:
        member = made.master("m1")
        place, key = address(made, "m1"), admin(made)
        made.wait_until(lambda: made.leader() == "m1", "it leads")
        created = httpx.post(f"{place}/v1/crawls", json=EXAMPLE, headers=key, timeout=30)
        assert created.status_code == 201, created.text
        yield Target("orb master", place, psutil.Process(member.process.pid), key)


def measure(folder: Path, rounds: int, requests: int, connections: int) -> dict[str, list[Round]]:
    """The rounds of both, in turns, after one each that does not count."""
    with master(folder) as ours:
        shown = httpx.get(ours.base + PATH, headers=ours.headers, timeout=30)
        answer = folder / "answer.json"
        answer.write_bytes(shown.content)
        with bare(answer) as theirs:
            assert httpx.get(theirs.base + PATH, timeout=30).json() == shown.json(), "both return the same"
            found: dict[str, list[Round]] = {ours.name: [], theirs.name: []}
            for number in range(rounds + 1):
                for target in (ours, theirs):
                    taken = asyncio.run(ask(target, requests, connections))
                    if number:
                        found[target.name].append(taken)
    return found


def table(found: dict[str, list[Round]]) -> str:
    """The medians of each, and the factors between them."""
    lines = [
        "| server | us a request | us of CPU | p50 ms | p99 ms | requests/s |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    medians = {}
    for name, rounds in found.items():
        medians[name] = middle = Round(
            *(statistics.median(column) for column in zip(*map(astuple, rounds), strict=True))
        )
        lines.append(
            f"| {name} | {middle.elapsed_us:,.0f} | {middle.cpu_us:,.0f} | {middle.p50_ms:.2f} | {middle.p99_ms:.2f} |"
            f" {1e6 / middle.elapsed_us:,.0f} |"
        )
    ours, theirs = medians.values()
    factors = f"factor {ours.elapsed_us / theirs.elapsed_us:.2f} elapsed, {ours.cpu_us / theirs.cpu_us:.2f} of CPU"
    return "\n".join([*lines, "", factors])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="api_reads", description="What reading a crawl costs, to a bare endpoint.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=5_000, help="a round")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--dir", type=Path, help="where the database is made (a temporary folder otherwise)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve is not None:
        serve_bare(options.serve)
        return 0
    with tempfile.TemporaryDirectory(prefix="orb-bench-", dir=options.dir) as folder:
        print(table(measure(Path(folder), options.rounds, options.requests, options.connections)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
