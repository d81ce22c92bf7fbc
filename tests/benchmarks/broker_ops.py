"""What the broker's operations cost the client: operations a second, and client CPU microseconds for each.

    python -m tests.benchmarks.broker_ops [--seconds 2] [--bytes 2000]

The server shares the machine, so rates are a lower bound; CPU per operation is the figure to compare. `plain` rows do
the same with the client library's own calls.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import uvloop

from shared.adapters.nats import EmbeddedServer, NatsBroker, StreamSettings
from shared.domain.ids import Partition

P = Partition(1)
WINDOW = 64


async def measure(name: str, seconds: float, step: Callable[[int], Awaitable[int]]) -> None:
    """Run `step(number)` one after the other; it returns how many operations it did."""
    start, cpu, number, done = time.perf_counter(), time.process_time(), 0, 0
    while (elapsed := time.perf_counter() - start) < seconds:
        count = await step(number)
        if count == 0:
            break
        number += 1
        done += count
    spent = time.process_time() - cpu
    print(f"{name:44} {done / elapsed:10,.0f} /s {spent / max(done, 1) * 1e6:8.1f} us CPU each", flush=True)


async def run(seconds: float, size: int, folder: Path) -> None:
    """All rows."""
    server = EmbeddedServer(folder)
    endpoint = await server.start()
    settings = StreamSettings(reports_per_subject=1 << 30)
    broker = await NatsBroker.connect([endpoint.url], login=endpoint.master, name="bench", settings=settings)
    await broker.declare(["default"])
    body = b"x" * size
    client = await nats.connect(endpoint.url, user=endpoint.master.user, password=endpoint.master.password)
    js = client.jetstream()

    async def publish(number: int) -> int:
        await broker.publish_report(P, "outcome", body, f"a{number}")
        return 1

    async def publish_many(number: int) -> int:
        await asyncio.gather(*(broker.publish_report(P, "outcome", body, f"b{number}-{n}") for n in range(WINDOW)))
        return WINDOW

    async def plain(number: int) -> int:
        await js.publish("reports.1.outcome", body, headers={"Nats-Msg-Id": f"c{number}"})
        return 1

    async def plain_many(number: int) -> int:
        await asyncio.gather(
            *(js.publish("reports.1.outcome", body, headers={"Nats-Msg-Id": f"d{number}-{n}"}) for n in range(WINDOW))
        )
        return WINDOW

    await measure("publish_report, one at a time", seconds, publish)
    await measure("plain publish, one at a time", seconds, plain)
    await measure(f"publish_report, {WINDOW} at a time", seconds, publish_many)
    await measure(f"plain publish, {WINDOW} at a time", seconds, plain_many)
    await client.close()

    reader = await broker.read_reports(P, "outcome", 0)

    async def read(_number: int) -> int:
        return len(await reader.read(2_000, 0.1))

    await measure("read_reports, batches of 2000", seconds, read)
    await reader.close()

    async def shard(number: int) -> int:
        await asyncio.gather(*(broker.publish_shard("default", P, number * WINDOW + n, 0, body) for n in range(WINDOW)))
        return WINDOW

    async def visit(_number: int) -> int:
        visits = await broker.pull_visits("default", WINDOW, 0.1)
        await asyncio.gather(*(visit.ack() for visit in visits))
        return len(visits)

    await measure(f"publish_shard, {WINDOW} at a time", seconds, shard)
    await measure(f"pull_visits and ack, {WINDOW} at a time", seconds, visit)

    async def reply(question: bytes) -> bytes | None:
        return question

    async def ask(_number: int) -> int:
        await broker.ask(P, b"x" * 40, 5.0)
        return 1

    async with broker.answer(P, reply):
        await measure("ask and answer in one process", seconds, ask)
    await broker.close()
    await server.stop()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--bytes", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(run(options.seconds, options.bytes, Path(folder)))


if __name__ == "__main__":
    main()
