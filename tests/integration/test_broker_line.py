"""A server in the broker's place that stands still or answers late: what is given up ends, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from msgspec.structs import replace

from shared.adapters.nats import StreamSettings
from shared.adapters.nats.client import PlainClient
from shared.adapters.nats.connection import NatsConnection
from shared.domain.errors import Transient
from shared.tls import TlsSettings
from tests.support.engines.certificates import OPENSSL, authority, signed

GREETING = b'INFO {"server_id":"x","version":"2.10.0","headers":true,"max_payload":1048576%s}\r\n'
HASTY = StreamSettings(connect_s=0.5, reconnect_s=0.05, unsent_bytes=1 << 30)
PATIENT = replace(HASTY, connect_s=30.0)

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[int]:
    """Its port. `answer` is asked for every connection, which stays open until the end."""
    ended = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        await ended.wait()
        writer.transport.abort()

    serving = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield serving.sockets[0].getsockname()[1]
    finally:
        ended.set()
        serving.close()
        await serving.wait_closed()


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")
def test_a_handshake_that_never_ends_is_given_up(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    client = signed(tmp_path, ca, "client")

    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING % b',"tls_required":true')
        await writer.drain()

    async def run() -> None:
        async with server(greets) as port:
            files = TlsSettings(ca.cert, client.cert, client.key)
            with pytest.raises(Transient, match="no broker at"):
                await NatsConnection.open([f"tls://127.0.0.1:{port}"], name="t", settings=HASTY, tls=files)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_connection_whose_server_reads_no_more_is_closed() -> None:
    async def reads_the_greetings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING % b"")
        while not (await reader.readline()).startswith(b"PING"):
            pass
        writer.write(b"PONG\r\n")
        await writer.drain()

    async def run() -> None:
        async with server(reads_the_greetings) as port:
            connection = await NatsConnection.open([f"nats://127.0.0.1:{port}"], name="t", settings=PATIENT)
            for _ in range(64):  # far more than the sockets hold
                await connection.send("x", bytes(1 << 20))
            await connection.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_subscription_that_ended_has_ended_at_the_server() -> None:
    """Where the question overtakes what it is about, the server goes on to send shards to a worker that is gone."""
    heard: list[bytes] = []

    async def obliging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING % b"")
        while line := await reader.readline():
            heard.append(line.split()[0])
            if heard[-1] == b"PING":
                writer.write(b"PONG\r\n")

    async def run() -> None:
        async with server(obliging) as port:
            connection = await NatsConnection.open([f"nats://127.0.0.1:{port}"], name="t", settings=PATIENT)

            async def ignore(_: object) -> None: ...

            await connection.unsubscribe(await connection.subscribe("a", ignore), drain=True)
            known = list(heard)
            await connection.close()
        assert known[-3:] == [b"SUB", b"UNSUB", b"PING"]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_an_answer_that_comes_after_it_was_given_up_ends_no_connection() -> None:
    """A worker that ends waits two seconds for the end of its subscription, and has reports to send still."""

    async def run() -> None:
        asked, given_up = asyncio.Event(), asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Answers the greetings at once, the next question when no caller waits for it, and sends back messages."""
            writer.write(GREETING % b"")
            ours, known = b"", False
            while line := await reader.readline():
                match line.split():
                    case [b"PING"]:
                        if known:
                            asked.set()
                            await given_up.wait()
                        known = True
                        writer.write(b"PONG\r\n")
                    case [b"SUB", _, number]:
                        ours = ours or number
                    case [b"PUB", subject, *_, size]:
                        text = await reader.readexactly(int(size) + 2)
                        writer.write(b"MSG %s %s %s\r\n%s" % (subject, ours, size, text))

        async with server(late) as port:
            connection = await NatsConnection.open([f"nats://127.0.0.1:{port}"], name="t", settings=PATIENT)

            async def ignore(_: object) -> None: ...

            await connection.unsubscribe(await connection.subscribe("a", ignore), drain=True)
            await asked.wait()
            given_up.set()
            await connection.confirm()
            await connection.close()

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_call_on_an_ended_connection_is_transient(run: Callable[..., None]) -> None:
    """uvloop raises RuntimeError for a write to a connection that has ended, before the client knows of the end.

    After its first reconnect the client library writes in the caller's turn, so the caller was raised that error.
    """

    async def call(connection: NatsConnection) -> None:
        async def ignore(_: object) -> None: ...

        await connection.send("x", b"")
        await connection.unsubscribe(await connection.subscribe("a", ignore))
        await connection.request("x", b"", 0.0)

    async def session() -> None:
        failed = 0
        async with server(_obliging) as port:
            connection = await NatsConnection.open([f"nats://127.0.0.1:{port}"], name="t", settings=HASTY)
            for _ in range(5):
                while not connection._client.is_connected:  # noqa: ASYNC110  the client reconnects by itself
                    await asyncio.sleep(0.01)
                _cut(connection)
                for _ in range(20):
                    try:
                        await call(connection)
                    except Transient:
                        failed += 1
                    await asyncio.sleep(0)
            await connection.close()
        assert failed > 0

    run(asyncio.wait_for(session(), 60))


def test_client_whose_connection_ends_before_close_is_closed() -> None:
    async def session() -> None:
        async with server(_obliging) as port:
            connection = await NatsConnection.open([f"nats://127.0.0.1:{port}"], name="t", settings=HASTY)
            await connection.send("x", b"")
            _cut(connection)
            await connection.close()
            assert "closed" in repr(connection)

    uvloop.run(asyncio.wait_for(session(), 60))


async def _obliging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer pings, take what is published."""
    writer.write(GREETING % b"")
    while line := await reader.readline():
        match line.split():
            case [b"PING"]:
                writer.write(b"PONG\r\n")
            case [b"PUB", *_, size]:
                await reader.readexactly(int(size) + 2)


def _cut(connection: NatsConnection) -> None:
    """End the connection as a fatal error of a write does: the client has not noticed yet."""
    client = connection._client
    assert isinstance(client, PlainClient)
    client._line.abort()
