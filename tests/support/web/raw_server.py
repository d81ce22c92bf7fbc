"""A server that says exactly the bytes a test gives it and records the bytes it was sent."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext


class Connection:
    """One accepted connection; `number` counts from 0."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self._writer = writer
        self.requests: list[bytes] = []
        self.peer: str = writer.get_extra_info("peername")[0]

    async def request(self) -> bytes:
        """The next request, head and declared body; raises IncompleteReadError at the end of the connection."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        self.requests.append(head + await self.reader.readexactly(length))
        return self.requests[-1]

    async def send(self, data: bytes) -> None:
        """Raises ConnectionError once the client has gone."""
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> None:
        """Returns when the client has closed or reset the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """End with RST instead of FIN."""
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Connection], Awaitable[None]]


class RawServer:
    """Runs `script` for every connection and closes the connection when it returns."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections: list[Connection] = []
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def requests(self) -> list[bytes]:
        return [request for connection in self.connections for request in connection.requests]

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        connection = Connection(len(self.connections), reader, writer)
        self.connections.append(connection)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._script(connection)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.tasks.discard(task)


@asynccontextmanager
async def raw_server(script: Script, tls: SSLContext | None = None) -> AsyncIterator[RawServer]:
    """A RawServer on a free port of 127.0.0.1."""
    server = RawServer(script)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.tasks):
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        await listener.wait_closed()


def saying(*answers: bytes) -> Script:
    """A script that reads one request and sends one answer for each of `answers`, then closes."""

    async def script(connection: Connection) -> None:
        for answer in answers:
            await connection.request()
            await connection.send(answer)

    return script


def page(body: bytes = b"<html>", *headers: bytes) -> bytes:
    """A well-formed 200 answer."""
    lines = (b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", body)
    return b"\r\n".join(lines)
