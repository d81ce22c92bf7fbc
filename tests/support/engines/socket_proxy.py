"""A wire that can be cut: bytes pass between clients and a server's Unix socket until the answers are withheld."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class CutConnection:
    """`endpoint` leads to the server."""

    def __init__(self, endpoint: str, behind: str) -> None:
        self.endpoint = endpoint
        self._behind = behind.removeprefix("unix:")
        self._deaf = False
        self._writers: set[asyncio.StreamWriter] = set()

    def withhold(self) -> None:
        """Questions arrive from now on, answers do not."""
        self._deaf = True

    def cut(self) -> None:
        """Break every connection; new ones carry answers again."""
        self._deaf = False
        for writer in self._writers:
            writer.transport.abort()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        self._writers.add(writer)
        try:
            onward, back = await asyncio.open_unix_connection(self._behind)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(back)
        questions = asyncio.create_task(self._pass(reader, back))
        try:
            await self._pass(onward, writer, answers=True)
        finally:
            questions.cancel()
            await asyncio.gather(questions, return_exceptions=True)
            for end in (writer, back):
                self._writers.discard(end)
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False) -> None:
        try:
            while piece := await reader.read(65536):
                if not (answers and self._deaf):
                    writer.write(piece)
                    await writer.drain()
        except ConnectionError:
            return
        finally:
            if not answers:
                writer.transport.abort()


@asynccontextmanager
async def cut_wire(folder: Path, behind: str) -> AsyncIterator[CutConnection]:
    """A wire to the server at the endpoint `behind`."""
    path = folder / "wire"
    wire = CutConnection(f"unix:{path}", behind)
    server = await asyncio.start_unix_server(wire.connected, path)
    try:
        yield wire
    finally:
        server.close()
        wire.cut()
