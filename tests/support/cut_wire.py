"""A wire that can be cut: bytes pass between a client and a server's Unix socket until the answers are withheld."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class CutWire:
    """`endpoint` leads to the server. While `deaf` is set, questions arrive and answers do not, and every connection
    that withheld one is cut as soon as the server has answered."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.deaf = False
        self.withheld = 0


@asynccontextmanager
async def cut_wire(folder: Path, behind: str) -> AsyncIterator[CutWire]:
    """A wire to the server at the endpoint `behind`."""
    path = folder / "wire"
    wire = CutWire(f"unix:{path}")
    connections: set[asyncio.StreamWriter] = set()

    async def passing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while piece := await reader.read(65536):
            if answers and wire.deaf:
                wire.withheld += 1
                return
            writer.write(piece)
            await writer.drain()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            onward, back = await asyncio.open_unix_connection(behind.removeprefix("unix:"))
        except OSError:
            writer.close()
            return
        connections.add(back)
        ways = [
            asyncio.create_task(passing(reader, back, answers=False)),
            asyncio.create_task(passing(onward, writer, answers=True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        back.close()

    server = await asyncio.start_unix_server(connected, path)
    try:
        yield wire
    finally:
        server.close()
        for writer in connections:
            writer.close()
