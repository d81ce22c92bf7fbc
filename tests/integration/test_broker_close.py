"""A client of the broker that closes, or is cancelled, at any moment: none of its tasks and connections is left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
import uvloop

from shared.adapters.nats import StreamSettings
from shared.adapters.nats.client import PlainClient
from shared.adapters.nats.connection import NatsConnection

GREETING = b'INFO {"server_id":"x","version":"2.10.0","headers":true,"max_payload":1048576}\r\n'
SETTINGS = StreamSettings(connect_s=30.0, reconnect_s=0.05)
TURNS = 40
"""Turns of the loop; an attempt to connect takes fewer."""

Run = Callable[[Coroutine[None, None, None]], None]
RUNS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


@asynccontextmanager
async def server() -> AsyncIterator["Server"]:
    """A server in the broker's place that answers pings."""
    made = Server()
    listening = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listening.close()
        await listening.wait_closed()
        await made.until_left()


class Server:
    """Count the connections that are open."""

    def __init__(self) -> None:
        self.url = ""
        self.refusal = b""
        """Sent for every message that is published."""
        self._open: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            writer.write(GREETING)
            while line := await reader.readline():
                match line.split():
                    case [b"PING"]:
                        writer.write(b"PONG\r\n")
                    case [b"PUB", *_, size]:
                        await reader.readexactly(int(size) + 2)
                        writer.write(self.refusal)
        except OSError:
            return  # the client's side was aborted
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def until_left(self) -> None:
        """Wait until every connection has ended. Raise TimeoutError if a client keeps one."""
        if self._open:
            _, left = await asyncio.wait(self._open, timeout=10)
            assert not left, "a client that was closed is connected"

    async def client(self) -> NatsConnection:
        return await NatsConnection.open([self.url], name="t", settings=SETTINGS)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def at_every_turn(run: Run, story: Callable[[Server, int], Awaitable[None]]) -> None:
    """Run the story for every number of turns. Afterwards no task of a client may be there, and no connection."""

    async def whole(turn: int) -> None:
        async with server() as served:
            await story(served, turn)
            await turns(2)  # in which tasks that were cancelled end
            left = [name for task in asyncio.all_tasks() if "Client." in (name := repr(task.get_coro()))]
            assert left == [], f"after {turn} turns"

    for turn in range(TURNS):
        run(asyncio.wait_for(whole(turn), 30))


async def reconnecting(client: NatsConnection) -> None:
    """Cut the connection, and wait until the client makes another, without its pause."""
    inner = client._client
    assert isinstance(inner, PlainClient)
    inner._line.abort()
    while not inner.is_reconnecting:  # noqa: ASYNC110  the client has no event for it
        await asyncio.sleep(0)
    for each in inner._server_pool:
        each.last_attempt = None


@RUNS
def test_client_closed_while_it_reconnects_is_gone(run: Run) -> None:
    """asyncio.wait_for of Python 3.11 drops a cancellation: the client was connected for ever after it was closed."""

    async def story(served: Server, turn: int) -> None:
        client = await served.client()
        await reconnecting(client)
        await turns(turn)
        await client.close()
        assert "closed" in repr(client)

    at_every_turn(run, story)


@RUNS
def test_client_closed_while_the_server_refuses_it_is_gone(run: Run) -> None:
    """The library closes by itself then, in a task that it forgets: a close beside it returned at once."""

    async def story(served: Server, turn: int) -> None:
        served.refusal = b"-ERR 'Parser Error'\r\n"
        client = await served.client()
        await client.send("x", b"")
        await turns(turn)
        await client.close()

    at_every_turn(run, story)


@RUNS
def test_cancelled_close_leaves_nothing(run: Run) -> None:
    async def story(served: Server, turn: int) -> None:
        client = await served.client()
        await client.send("x", b"")
        await client.subscribe("x", _ignore)
        closing = asyncio.create_task(client.close())
        await turns(1 + turn)
        closing.cancel()
        await asyncio.wait({closing})

    at_every_turn(run, story)


@RUNS
@pytest.mark.parametrize("again", [None, 0, 1, 2, 3])
def test_cancelled_attempt_to_connect_leaves_nothing(run: Run, again: int | None) -> None:
    """Also when it is cancelled a second time, while it ends."""

    async def story(served: Server, turn: int) -> None:
        opening = asyncio.create_task(served.client())
        await turns(turn)
        opening.cancel()
        if again is not None:
            await turns(again)
            opening.cancel()
        await asyncio.wait({opening})
        if not opening.cancelled():
            await opening.result().close()

    at_every_turn(run, story)


@RUNS
def test_client_whose_tasks_are_all_cancelled_is_closed(run: Run) -> None:
    """As at the end of asyncio.run, which waits for them. The client went on to connect, and that wait never ended."""

    async def story(served: Server, turn: int) -> None:
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await client.close()

        before = asyncio.all_tasks()
        client = await served.client()
        await reconnecting(client)
        working = asyncio.create_task(work())
        await turns(1 + turn)
        own = {task for task in asyncio.all_tasks() - before if "Client." in repr(task.get_coro())}
        for task in (working, *own):
            task.cancel()
        await asyncio.gather(working, *own, return_exceptions=True)

    at_every_turn(run, story)


async def _ignore(_: object) -> None: ...
