"""`orb bench seed_upload`: a million URLs in one request to a real master, as lines and gzipped, while others read.

The master is a process with etcd, NATS and SQLite behind it, and owns every partition: what it takes it also applies to
the frontier meanwhile. Printed are the rate until the answer, by which every URL is durable; the master's resident
memory on the way; and how long reads of the crawl took before and during the upload. Then it waits until the frontier
has them all.
"""

import argparse
import gzip
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from tests.support.api.cluster_clients import address, admin
from tests.support.processes.cluster import Cluster, cluster

MIB: Final = 1 << 20
MARKS: Final = (10, 50, 100)
PIECE: Final = 1 << 18
HOSTS: Final = 5_000
APART_S: Final = 0.02
"""Between two reads: somebody who looks, not somebody who presses."""

IDLE_S: Final = 3.0
APPLIED_S: Final = 900.0


@dataclass(slots=True)
class Reading:
    """Somebody who reads the crawl over and over: how long each answer took, in seconds."""

    base: str
    headers: dict[str, str]
    path: str
    waits: list[float] = field(default_factory=list)

    @contextmanager
    def under_way(self) -> Iterator["Reading"]:
        """Read for the block."""
        over = threading.Event()
        reader = threading.Thread(target=self._read, args=(over,), name="reader")
        reader.start()
        try:
            yield self
        finally:
            over.set()
            reader.join()

    def _read(self, over: threading.Event) -> None:
        with httpx.Client(base_url=self.base, headers=self.headers, timeout=60) as client:
            while not over.is_set():
                began = time.perf_counter()
                client.get(self.path).raise_for_status()
                self.waits.append(time.perf_counter() - began)
                over.wait(APART_S)

    def __str__(self) -> str:
        points = statistics.quantiles(self.waits, n=100)
        return f"p50 {points[49] * 1e3:.1f} ms, p99 {points[98] * 1e3:.1f} ms, {len(self.waits):,} reads"


@dataclass(slots=True)
class Upload:
    """One upload: its pieces as they are sent, and the master's memory when so many per cent of them were."""

    pieces: Sequence[bytes]
    master: psutil.Process
    resident: dict[int, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[bytes]:
        for number, piece in enumerate(self.pieces, 1):
            yield piece
            for mark in MARKS:
                if mark not in self.resident and number * 100 >= mark * len(self.pieces):
                    self.resident[mark] = self.master.memory_info().rss


def lines(count: int, name: str) -> Iterator[bytes]:
    """URLs of many hosts, one a line, in pieces."""
    part: list[str] = []
    for n in range(count):
        part.append(f'"https://www.host-{n % HOSTS}.example.com/{name}/section-{n % 97}/page-{n}.html"\n')
        if len(part) == 4_000:
            yield "".join(part).encode()
            part.clear()
    yield "".join(part).encode()


def cut(body: bytes) -> list[bytes]:
    """The body in pieces, as a client reads a file."""
    return [body[start : start + PIECE] for start in range(0, len(body), PIECE)]


def upload(client: httpx.Client, name: str, *, count: int, coding: str, master: psutil.Process) -> None:
    """Send them, and print what it took."""
    body = b"".join(lines(count, coding))
    headers = {"Content-Type": "application/jsonl"}
    if coding == "gzip":
        body = gzip.compress(body, 6)
        headers["Content-Encoding"] = "gzip"
    sent = Upload(cut(body), master)
    before = master.memory_info().rss
    read = Reading(str(client.base_url), dict(client.headers), f"/v1/crawls/{name}")
    used, began = sum(master.cpu_times()[:2]), time.perf_counter()
    with read.under_way():
        answer = client.post(f"/v1/crawls/{name}/seeds", content=iter(sent), headers=headers)
        elapsed = time.perf_counter() - began
    used = sum(master.cpu_times()[:2]) - used
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert report["accepted"] == count, report
    memory = ", ".join(f"{mark} %: {resident / MIB:.0f}" for mark, resident in sorted(sent.resident.items()))
    print(
        f"{coding}: {count:,} URLs, {len(body) / MIB:.0f} MiB in {elapsed:.1f} s: {count / elapsed:,.0f} URLs/s durable"
    )
    print(f"  CPU of the master: {used:.1f} s, {used / count * 1e6:.1f} us a URL, what it applied meanwhile included")
    print(f"  RSS of the master, MiB: before {before / MIB:.0f}, {memory}")
    print(f"  reads meanwhile: {read}", flush=True)


def applied(made: Cluster, client: httpx.Client, name: str, expected: int) -> None:
    """Until the owners know them all."""
    began = time.perf_counter()

    def all_known() -> bool:
        stats: dict[str, Any] = client.get(f"/v1/crawls/{name}/stats").raise_for_status().json()
        return int(stats["counters"]["discovered"]) >= expected

    made.wait_until(all_known, "all are applied", APPLIED_S)
    print(f"  applied {time.perf_counter() - began:.1f} s after the answer", flush=True)


def run(folder: Path, count: int) -> None:
    with cluster(folder) as made:
        member = made.master("m1")
        place, key = address(made, "m1"), admin(made)
        made.wait_until(lambda: set(made.owners()) == {"m1"}, "it owns every partition")
        master = psutil.Process(member.process.pid)
        with httpx.Client(base_url=place, headers=key, timeout=600) as client:
            crawl = {"name": "many", "spec": {"seeds": ["https://example.org/"], "scope": {"mode": "any"}}}
            client.post("/v1/crawls", json=crawl).raise_for_status()
            idle = Reading(place, key, "/v1/crawls/many")
            with idle.under_way():
                time.sleep(IDLE_S)
            print(f"reads before: {idle}", flush=True)
            for number, coding in enumerate(("identity", "gzip"), 1):
                upload(client, "many", count=count, coding=coding, master=master)
                applied(made, client, "many", number * count + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="seed_upload", description="A million seeds in one request.")
    parser.add_argument("--urls", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path, help="where the cluster's files are made (a temporary folder otherwise)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="orb-bench-", dir=options.dir) as folder:
        run(Path(folder), options.urls)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
