"""A broker that is killed while every kind of call is under way."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvloop

from shared.domain.errors import Transient
from shared.domain.ids import Partition
from shared.runtime.supervise import Tasks
from tests.support.engines.nats_server import POOL, BrokerServer, persist
from tests.support.engines.nats_server import server as server

P = Partition(7)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_calls_under_way_when_the_broker_is_killed_are_transient(
    server: BrokerServer, run: Callable[[Awaitable[None]], None]
) -> None:
    """Twice: after its first reconnect the client library writes in the caller's turn."""

    async def session() -> None:
        async with server.broker(visits_bytes=1 << 20) as broker:
            ended = asyncio.Event()
            numbers = itertools.count()

            async def read() -> None:
                reader = await broker.read_reports(P, "outcome", 0)
                try:
                    await reader.read(10, 0.05)
                finally:
                    await reader.close()

            async def visit() -> None:
                for message in await broker.pull_visits(POOL, 5, 0.05):
                    await message.working()
                    await (message.ack() if next(numbers) % 2 else message.nak(0.0))

            async def answer() -> None:
                async def reply(question: bytes) -> bytes:
                    return question

                async with broker.answer(P, reply):
                    await broker.ask(P, b"?", 1.0)

            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: broker.publish_report(P, "outcome", b"x", str(next(numbers))),
                lambda: broker.publish_shard(POOL, P, next(numbers), 0, b"x"),
                lambda: broker.tell("status.test", b"x"),
                lambda: broker.put_robots("https://a:443", b"x"),
                lambda: broker.get_robots("https://a:443"),
                lambda: broker.queued_visits(P),
                broker.reports_state,
                read,
                visit,
                answer,
            ]

            async def again(call: Callable[[], Awaitable[object]]) -> None:
                while not ended.is_set():
                    with suppress(Transient):
                        await call()
                    await asyncio.sleep(0)

            async with Tasks() as tasks:
                for n, call in enumerate(calls):
                    tasks.start(f"call {n}", again(call))
                for _ in range(2):
                    await persist(broker.reports_state)
                    await asyncio.sleep(0.1)  # the kill falls anywhere
                    server.kill()
                    await server.restart()
                await persist(broker.reports_state)
                ended.set()
                await tasks.ended()

    run(asyncio.wait_for(session(), 90))
