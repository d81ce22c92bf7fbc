"""`orb bench wrong_keys`: right keys of a real master, and its memory, without and under a flood of wrong keys.

Three floods of the same rate: one client with one wrong key, one client with a new wrong key each time, and clients at
many addresses, each of which sends fewer wrong keys than the limit allows. The last is the worst: each of its keys is
looked up. Rounds without a flood are between them, so that the ratio is of one run. Right requests are sent at a fixed
rate over kept connections, by another process than the flood. Their time counts from when they were due.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import httpx
import psutil

from shared.domain.ops.access import new_key
from tests.benchmarks.api_reads import PATH, Target, master
from tests.support.processes.orb_command import ROOT

MIB: Final = 1 << 20
CONNECTIONS: Final = 8
KEYS_AN_ADDRESS: Final = 50
"""Wrong keys that each address of the spread flood sends, below the limit of 60 a minute."""

FLOODS: Final = ("one key", "new keys", "many addresses")
QUIET: Final = "none"
_BEGUN: Final = "begun\n"


@dataclass(frozen=True, slots=True)
class Round:
    """What right requests waited, what the flood was answered, and the master's memory at the end."""

    flood: str
    p50_ms: float
    p99_ms: float
    answers: Counter[int]
    seconds: float
    rss: int


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request over a kept connection and return the status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    _, _, rest = head.lower().partition(b"content-length: ")
    await reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
    return int(head[9:12])


async def ask(target: Target, per_s: float, seconds: float, connections: int = 4) -> list[float]:
    """Send right requests at a fixed rate. Return how many ms after its time each was answered."""
    place, request, waits = httpx.URL(target.base), target.request(), list[float]()
    began = time.perf_counter()

    async def converse(offset: int) -> None:
        reader, writer = await asyncio.open_connection(place.host, place.port)
        for number in range(offset, int(per_s * seconds), connections):
            due = began + number / per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            status = await exchange(reader, writer, request)
            assert status == 200, status
            waits.append((time.perf_counter() - due) * 1e3)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(converse(offset) for offset in range(connections)))
    return waits


# --- the flood --------------------------------------------------------------------------------------------------------


async def flood(base: str, kind: str, per_s: float, seconds: float, first: int) -> Counter[int]:
    """Send wrong keys at a rate; return the number of answers of each status. `first` numbers the addresses."""
    place, answers, addresses = httpx.URL(base), Counter[int](), count(first)
    began, one = time.perf_counter(), new_key()[1]

    async def converse(offset: int) -> None:
        number, step = offset, CONNECTIONS
        while number < per_s * seconds:
            at = next(addresses) if kind == "many addresses" else 0
            local = (f"127.{1 + (at >> 15)}.{at >> 7 & 255}.{1 + (at & 127)}", 0)
            reader, writer = await asyncio.open_connection(place.host, place.port, local_addr=local)
            for _ in range(KEYS_AN_ADDRESS):
                await asyncio.sleep(max(0.0, began + number / per_s - time.perf_counter()))
                key = one if kind == "one key" else new_key()[1]
                lines = (f"GET {PATH} HTTP/1.1", f"Host: {place.host}", f"Authorization: Bearer {key}", "", "")
                answers[await exchange(reader, writer, "\r\n".join(lines).encode())] += 1
                number += step
                if time.perf_counter() - began > seconds:
                    number = int(per_s * seconds) + 1
                    break
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*(converse(offset) for offset in range(CONNECTIONS)))
    return answers


def flooding(target: Target, kind: str, per_s: float, seconds: float, first: int) -> "subprocess.Popen[str]":
    """Start the flood as a process of its own, and wait until it begins."""
    words = [kind, str(per_s), str(seconds), str(first)]
    command = [sys.executable, "-m", "tests.benchmarks.wrong_keys", "--flood", target.base, *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == _BEGUN
    return process


# --- rounds -----------------------------------------------------------------------------------------------------------


def measure(target: Target, kind: str, per_s: float, per_minute: int, seconds: float, first: int) -> Round:
    """Send right requests for so long, with a flood beside them or without one."""
    answers, process = Counter[int](), None
    if kind != QUIET:
        process = flooding(target, kind, per_minute / 60, seconds + 2, first)
    waits = asyncio.run(ask(target, per_s, seconds))
    rss = target.process.memory_info().rss
    if process is not None:
        said, _ = process.communicate(timeout=seconds + 60)
        found = json.loads(said)
        seconds, answers = found["seconds"], Counter({int(each): number for each, number in found["answers"].items()})
    points = statistics.quantiles(waits, n=100)
    return Round(kind, points[49], points[98], answers, seconds, rss)


def run(folder: Path, rounds: int, per_s: float, per_minute: int, seconds: float) -> str:
    """Return the table of all rounds: each flood after a round without one, after one of each that does not count."""
    found: list[tuple[Round, Round]] = []
    first = 0
    with master(folder) as target:
        target = Target(target.name, target.base, psutil.Process(target.process.pid), target.headers)
        for number in range(rounds + 1):
            for kind in FLOODS:
                pair = []
                for each in (QUIET, kind):
                    pair.append(measure(target, each, per_s, per_minute, seconds, first))
                    first += int(per_minute / 60 * (seconds + 2) / KEYS_AN_ADDRESS) + CONNECTIONS
                if number:
                    found.append((pair[0], pair[1]))
    return table(found)


def table(found: Sequence[tuple[Round, Round]]) -> str:
    """Return the rounds as a table, and the median of the ratios of each flood."""
    lines = [
        "| flood | wrong keys a minute | 401 | 429 | p50 ms, without and with | p99 ms | ratio of p99 | MiB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    ratios: dict[str, list[float]] = {kind: [] for kind in FLOODS}
    for quiet, loud in found:
        ratio = loud.p99_ms / quiet.p99_ms
        ratios[loud.flood].append(ratio)
        lines.append(
            f"| {loud.flood} | {loud.answers.total() / loud.seconds * 60:,.0f} | {loud.answers[401]:,} |"
            f" {loud.answers[429]:,} | {quiet.p50_ms:.2f}, {loud.p50_ms:.2f} | {quiet.p99_ms:.2f}, {loud.p99_ms:.2f} |"
            f" {ratio:.2f} | {quiet.rss / MIB:.1f}, {loud.rss / MIB:.1f} |"
        )
    medians = ", ".join(f"{kind} {statistics.median(each):.2f}" for kind, each in ratios.items())
    growth = (found[-1][1].rss - found[0][0].rss) / MIB
    load = "/".join(f"{each:.1f}" for each in psutil.getloadavg())
    return "\n".join([*lines, "", f"median ratio of p99: {medians}; memory {growth:+.1f} MiB; load {load}"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wrong_keys", description="Right keys under a flood of wrong ones.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="a round")
    parser.add_argument("--per-s", type=float, default=100.0, help="right requests")
    parser.add_argument("--per-minute", type=int, default=100_000, help="wrong keys")
    parser.add_argument("--dir", type=Path, help="where the database is made (a temporary folder otherwise)")
    parser.add_argument("--flood", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.flood is not None:
        base, kind, per_s, seconds, first = options.flood
        print(_BEGUN, end="", flush=True)
        began = time.perf_counter()
        answers = asyncio.run(flood(base, kind, float(per_s), float(seconds), int(first)))
        print(json.dumps({"seconds": time.perf_counter() - began, "answers": answers}))
        return 0
    with tempfile.TemporaryDirectory(prefix="orb-bench-", dir=options.dir) as folder:
        print(run(Path(folder), options.rounds, options.per_s, options.per_minute, options.seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
