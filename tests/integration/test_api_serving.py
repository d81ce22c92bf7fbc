"""The HTTP server itself: how much it takes in before anybody asks for it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send

from api.server.serving import HEAD_BYTES, address_of, listening, serving

READ: int = 1 << 18
"""What the loop reads at most before it asks the parser."""


def application() -> FastAPI:
    app = FastAPI()

    @app.post("/count")
    async def count(request: Request) -> dict[str, object]:
        return {"bytes": len(await request.body())}

    @app.post("/headers")
    async def headers(request: Request) -> dict[str, object]:
        return {"body": (await request.body()).decode(), "names": sorted(request.headers)}

    @app.get("/query")
    async def query(request: Request) -> dict[str, object]:
        return {"path": request.url.path, "q": len(request.query_params.get("q", ""))}

    return app


Exchange = Callable[[bytes], Awaitable[bytes]]


@asynccontextmanager
async def server() -> AsyncIterator[Exchange]:
    listener = listening("127.0.0.1:0")
    host, _, port = address_of(listener).rpartition(":")

    async def exchange(sent: bytes) -> bytes:
        """What comes back until the server closes, or there is an answer and it waits for more."""
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(sent)
            answer = b""
            while b"\r\n\r\n" not in answer and (piece := await reader.read(1 << 16)):
                answer += piece
            return answer + (await reader.read(1 << 16) if b"}" not in answer and b"head" not in answer else b"")
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async with serving(application(), listener):
        yield exchange


async def connected(listener: socket.socket, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which `first` has come before the server takes it: a stall in between makes nothing late."""
    host, _, port = address_of(listener).rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.sendall(first)
    return await asyncio.open_connection(sock=made)


def run(story: Callable[[Exchange], Awaitable[None]]) -> None:
    async def told() -> None:
        async with server() as exchange, asyncio.timeout(30):
            await story(exchange)

    asyncio.run(told())


@pytest.mark.parametrize("endless", [b"GET /" + b"a", b"GET / HTTP/1.1\r\nX: a", b"GET / HTTP/1.1\r\n" + b"X: a\r\n"])
def test_a_head_without_end_is_refused(endless: bytes) -> None:
    async def story(exchange: Exchange) -> None:
        piece = endless[-6:] if endless.endswith(b"\r\n") else b"a"
        answer = await exchange(endless + piece * (4 * (HEAD_BYTES + READ) // len(piece)))
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")

    run(story)


def test_trailers_without_end_are_refused() -> None:
    async def story(exchange: Exchange) -> None:
        begun = b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
        assert b'{"bytes":' not in await exchange(begun + b"X: aaaa\r\n" * (4 * (HEAD_BYTES + READ) // 9))

    run(story)


def test_trailers_are_no_headers() -> None:
    """Whoever stands before the API judges and rewrites headers; a server that adds others to them undoes that."""

    async def story(exchange: Exchange) -> None:
        head = b"POST /headers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await exchange(head + b"5\r\nhello\r\n0\r\nAuthorization: Bearer late\r\nHost: y\r\n\r\n")
        assert b'{"body":"hello","names":["host","transfer-encoding"]}' in answer

    run(story)


def test_a_body_in_small_chunks_is_no_head_however_long_it_is() -> None:
    async def story(exchange: Exchange) -> None:
        chunks = b"1\r\na\r\n" * (HEAD_BYTES // 2)
        head = b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert f'"bytes":{HEAD_BYTES // 2}}}'.encode() in await exchange(head + chunks + b"0\r\n\r\n")

    run(story)


@pytest.mark.parametrize("length", [10, 65_000, 65_536, 200_000])
def test_a_query_is_taken_as_long_as_the_head_may_be(length: int) -> None:
    async def story(exchange: Exchange) -> None:
        answer = await exchange(b"GET /query?q=" + b"a" * length + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert f'{{"path":"/query","q":{length}}}'.encode() in answer

    run(story)


def test_an_address_that_is_none_is_refused() -> None:
    async def story(exchange: Exchange) -> None:
        for wrong in (b"GET /\xff\xfe HTTP/1.1", b"GET http://[ HTTP/1.1", b"NONSENSE", b"GET / HTTP/9.9", b"GET\0/ x"):
            answer = await exchange(wrong + b"\r\nHost: x\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 ")), (wrong, answer)

    run(story)


@pytest.mark.parametrize("begun", [b"", b"GET /query?q=a HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize("before", [b"", b"GET /query?q=a HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(
    begun: bytes, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a connection, or one behind another request; a connection that rests is closed by uvicorn's own."""
    monkeypatch.setattr("api.server.serving.HEAD_S", 0.2)

    async def story() -> None:
        listener = listening("127.0.0.1:0")
        async with serving(application(), listener), asyncio.timeout(20):
            reader, writer = await connected(listener, before or begun)
            if before:
                await reader.readuntil(b"}")
                writer.write(begun)
            with suppress(ConnectionError):  # what it had begun came when it was closed already
                assert await reader.read() == b""
            writer.close()

    asyncio.run(story())


def test_a_request_whose_body_or_answer_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.server.serving.HEAD_S", 0.2)

    async def story() -> None:
        listener = listening("127.0.0.1:0")
        async with serving(application(), listener), asyncio.timeout(20):
            reader, writer = await connected(
                listener, b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab"
            )
            await asyncio.sleep(0.6)
            writer.write(b"cd")
            assert b'{"bytes":4}' in await reader.readuntil(b"}")
            writer.close()

    asyncio.run(story())


def test_client_that_reads_a_part_makes_the_server_send_more() -> None:
    """A server that noticed it only after a megabyte would take a client that reads slowly for one that stopped."""
    full, more, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.is_set():
            try:
                async with asyncio.timeout(0.3):
                    await send({"type": "http.response.body", "body": b"a" * 4096, "more_body": True})
            except TimeoutError:
                full.set()
            else:
                if full.is_set():
                    more.set()

    async def story() -> None:
        app = FastAPI()
        app.mount("/", endless)
        listener = listening("127.0.0.1:0")
        host, _, port = address_of(listener).rpartition(":")
        async with serving(app, listener), asyncio.timeout(20):
            client = socket.create_connection((host, int(port)))
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            client.setblocking(False)
            try:
                await full.wait()
                unread = 1 << 19
                while unread > 0:
                    unread -= len(await asyncio.get_running_loop().sock_recv(client, unread))
                async with asyncio.timeout(3):
                    await more.wait()
            finally:
                left.set()
                client.close()

    asyncio.run(story())


def test_what_strangers_send_wrong_makes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each is answered; none needs a key, so that a line for each would let anybody fill the log."""
    upgrade = b"GET /query?q=abc HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: %s\r\n\r\n"

    async def story(exchange: Exchange) -> None:
        for to in (b"h2c", b"websocket"):
            assert b'"q":3' in await exchange(upgrade % to)
        assert b" 400 " in await exchange(b"\x16\x03\x01 nothing that is HTTP\r\n\r\n")

    run(story)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
