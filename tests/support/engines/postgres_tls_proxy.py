"""A front for a PostgreSQL that was built without TLS: it answers the wish for TLS as PostgreSQL does, demands a
certificate, and passes everything on to the server's socket."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from shared.tls import TlsSettings, server_context

_WISH: Final = struct.pack("!ii", 8, 80877103)
"""The first message of a client that wants TLS."""


@asynccontextmanager
async def tls_front(server: Path, files: TlsSettings, port: int = 0) -> AsyncIterator[int]:
    """The port of a front to the server at that socket; 0: any free one."""
    context = server_context(files)
    ends: set[asyncio.StreamWriter] = set()
    serving: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        ends.add(writer)
        with suppress(OSError, EOFError):
            if await reader.readexactly(len(_WISH)) == _WISH:
                writer.write(b"S")
                await writer.start_tls(context)
                inner_reader, inner = await asyncio.open_unix_connection(server)
                ends.add(inner)
                await asyncio.gather(_pump(reader, inner), _pump(inner_reader, writer))
                ends.discard(inner)
        writer.close()
        ends.discard(writer)
        serving.discard(asyncio.current_task())

    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for end in list(ends):
            end.transport.abort()
        if under_way := {task for task in serving if task is not None}:
            await asyncio.wait(under_way, timeout=10)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
