"""A port under a flood of connections: it holds as many as it may, and goes on to say how it is."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from fastapi import FastAPI, Request
from fastapi.responses import Response

from api.server.serving import MAX_SPARE, address_of, listening, serving
from shared.runtime.connections import ConnectionLimit
from shared.tls import ClientTls, ServerTls, TlsSettings
from tests.support.engines.certificates import authority, signed

PATIENCE_S = 30.0
MAX_COUNT = 8
LARGE = 8 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A server, and clients that misuse it."""

    def __init__(self, tls: TlsSettings | None = None) -> None:
        self.places = ConnectionLimit(MAX_COUNT, MAX_SPARE)
        self.free = asyncio.Event()
        self.asked: Callable[[], object] = lambda: None
        """Called when a request for `/refused`, `/metrics` or `/large` is there."""
        self._files = tls
        self._open: list[asyncio.StreamWriter] = []

    def application(self) -> FastAPI:
        app = FastAPI()

        @app.get("/livez")
        async def livez() -> str:
            return "alive"

        @app.get("/held")
        async def held() -> str:
            await self.free.wait()
            return "done"

        @app.post("/refused")
        async def refused() -> str:
            self.asked()
            return "no"

        @app.get("/metrics")
        @app.get("/large")
        async def large(request: Request) -> Response:
            self.asked()
            return Response(b"x" * LARGE)

        return app

    async def connect(self, *, bare: bool = False) -> Streams:
        host, _, port = self.address.rpartition(":")
        context = ClientTls(self._files).context if self._files is not None and not bare else None
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        self._open.append(writer)
        return reader, writer

    async def ask(self, target: str, streams: Streams | None = None) -> bytes:
        """The whole answer, on a connection of its own, until the server closes it or has said so much as it said."""
        reader, writer = streams or await self.connect()
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = head + await reader.readexactly(length)
        if streams is None:
            writer.close()
        return answer

    async def filled(self) -> list["asyncio.Task[bytes]"]:
        """As many requests under way as connections may stay."""
        held = [asyncio.create_task(self.ask("/held")) for _ in range(MAX_COUNT)]
        await until(lambda: len(self.places.within) == MAX_COUNT)
        return held

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Port"]:
        listener = listening("127.0.0.1:0")
        tls = None if self._files is None else ServerTls(self._files)
        try:
            with listener:
                self.address = address_of(listener)
                async with asyncio.timeout(PATIENCE_S), serving(self.application(), listener, tls, self.places):
                    yield self
                    self.free.set()
        finally:
            for writer in self._open:
                writer.transport.abort()


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(0.01)


async def closed(reader: asyncio.StreamReader) -> bool:
    """Waits until the server has closed it."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def run(story: Callable[[Port], Awaitable[None]], tls: TlsSettings | None = None) -> None:
    async def told() -> None:
        async with Port(tls).served() as port:
            await story(port)

    uvloop.run(told())  # as masters do


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_request_beyond_connection_limit_is_refused_and_health_answered() -> None:
    async def story(port: Port) -> None:
        held = await port.filled()
        reader, writer = await port.connect()
        answer = await port.ask("/held", (reader, writer))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 5" in head.lower()
        assert b"\r\nconnection: close" in head.lower()
        problem = json.loads(body)
        assert problem["type"] == "urn:orbweaver:problem:too-many-connections"
        assert problem["detail"] == "8 connections are open on this master already"
        assert await closed(reader)
        reader, writer = await port.connect()
        assert (await port.ask("/livez", (reader, writer))).endswith(b'"alive"')
        assert await closed(reader), "it was let in for one request"
        port.free.set()
        assert all(answer.endswith(b'"done"') for answer in await asyncio.gather(*held))
        await until(lambda: len(port.places.within) < MAX_COUNT)
        assert (await port.ask("/held")).endswith(b'"done"')
        assert port.places.refused == 2

    run(story)


@pytest.mark.parametrize("secure", [False, True])
def test_a_flood_of_silence_keeps_neither_probes_out_nor_files_open(tmp_path: Path, *, secure: bool) -> None:
    ca = authority(tmp_path)
    own = signed(tmp_path, ca, "own")

    async def story(port: Port) -> None:
        held = await port.filled()
        before = files_open()
        silent = [await port.connect(bare=True) for _ in range(3 * MAX_SPARE)]
        for _ in range(3):
            assert (await port.ask("/livez")).endswith(b'"alive"')
        for reader, _ in silent[:MAX_SPARE]:
            assert await closed(reader), "those that were silent for longest made room"
        assert len(port.places) <= MAX_COUNT + MAX_SPARE
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: not port.places.beyond)
        port.free.set()
        await asyncio.gather(*held)
        await until(lambda: files_open() <= before)

    run(story, TlsSettings(ca.cert, own.cert, own.key) if secure else None)


def test_answered_request_does_not_hold_connection_by_its_unread_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no key is answered at once, and could go on sending for ever."""

    async def story(port: Port) -> None:
        port.asked = lambda: monkeypatch.setattr("api.server.serving.HEAD_S", 0.2)
        reader, writer = await port.connect()
        writer.write(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert b'"no"' in await reader.readuntil(b'"no"')
        end = asyncio.create_task(closed(reader))
        while not end.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert await end
        await until(lambda: len(port.places) == 0)

    run(story)


def test_an_answer_that_nobody_reads_does_not_keep_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.server.serving.RESTS_S", 1)

    async def story(port: Port) -> None:
        asked = asyncio.Event()

        def hasten() -> None:
            monkeypatch.setattr("api.server.serving.HEAD_S", 0.2)
            asked.set()

        port.asked = hasten
        _, writer = await port.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a client's is read
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        await until(lambda: len(port.places) == 0)

    run(story)


@pytest.mark.parametrize("secure", [False, True])
def test_beyond_the_connections_that_may_stay_slow_reading_holds_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, secure: bool
) -> None:
    ca = authority(tmp_path)
    own = signed(tmp_path, ca, "own")
    monkeypatch.setattr("api.server.serving.SPARE_S", 0.5)

    async def story(port: Port) -> None:
        async def trickling(reader: asyncio.StreamReader) -> None:
            while await reader.read(1 << 10):  # noqa: ASYNC110  slow on purpose: a minute and more for all of it
                await asyncio.sleep(0.01)

        asked = asyncio.Event()
        port.asked = asked.set
        held = await port.filled()
        reader, writer = await port.connect()
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        reading = asyncio.create_task(trickling(reader))
        await asked.wait()
        await until(lambda: not port.places.beyond)
        monkeypatch.setattr("api.server.serving.SPARE_S", PATIENCE_S)
        assert (await port.ask("/livez")).endswith(b'"alive"')
        assert len(port.places.within) == MAX_COUNT, "who may stay is left alone"
        reading.cancel()
        await asyncio.wait([reading])
        port.free.set()
        assert all(answer.endswith(b'"done"') for answer in await asyncio.gather(*held))

    run(story, TlsSettings(ca.cert, own.cert, own.key) if secure else None)


@pytest.mark.long
def test_an_answer_that_is_read_slowly_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.server.serving.HEAD_S", 1.5)

    async def story(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        head, size = await reader.readuntil(b"\r\n\r\n"), 0
        assert head.startswith(b"HTTP/1.1 200 ")
        while size < LARGE:
            size += len(await reader.readexactly(1 << 19))
            await asyncio.sleep(0.3)  # three times what an unread end is waited for, in all
        assert size == LARGE

    run(story)
