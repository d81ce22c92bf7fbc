"""Links between members and engines that can be cut, silenced and slowed: TCP on this side, anything on the other."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

PIECE: Final = 65536
PIECES: Final = 64
"""Of one connection and direction that may be under way; then the sender waits, as before a full window."""


class Link:
    """One member's way to one engine. `port` on 127.0.0.1 is where the member connects."""

    def __init__(self, behind: str) -> None:
        """`behind`: `unix:/path` or `host:port`."""
        self.port = 0
        self._behind = behind
        self._delay_s = 0.0
        self._refuses = False
        self._carries = asyncio.Event()
        self._carries.set()
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._refuses = True
        self._break()

    def silence(self) -> None:
        """Carry nothing in either direction; connections stay, and new ones are taken."""
        self._carries.clear()

    def delay(self, seconds: float) -> None:
        """Let each piece arrive so much later, in order."""
        self._delay_s = seconds

    def heal(self) -> None:
        """As new: what was held back arrives now."""
        self._refuses = False
        self._delay_s = 0.0
        self._carries.set()

    def close(self) -> None:
        """Break every connection for good."""
        self.cut()
        self._carries.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the member's until either end closes it."""
        self._open.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._carries.wait()
            if self._refuses:
                raise ConnectionRefusedError("this link is cut")
            back, onward = await self._to_engine()
            self._open.add(onward)
            if self._refuses:
                raise ConnectionRefusedError("this link was cut meanwhile")
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, onward), name="link.there")
                both.create_task(self._carry(back, writer), name="link.back")
        except* OSError:
            pass  # an end is gone, and with it the connection: what the other end is to notice
        finally:
            for end in (writer, onward):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()

    async def _to_engine(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._behind.startswith("unix:"):
            return await asyncio.open_unix_connection(self._behind.removeprefix("unix:"))
        host, _, port = self._behind.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the reader's end, which is handed on like all that came before it."""
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)

        async def take() -> None:
            while piece := await reader.read(PIECE):
                await under_way.put((loop.time() + self._delay_s, piece))
            await under_way.put((loop.time() + self._delay_s, b""))

        async def hand_on() -> None:
            while True:
                due, piece = await under_way.get()
                if (wait_s := due - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                await self._carries.wait()
                if not piece:
                    writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(take(), name="link.take")
            group.create_task(hand_on(), name="link.hand_on")

    def _break(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()


class Links:
    """Links by (member, engine), one to each server of the engine; served by a loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links: dict[tuple[str, str], dict[str, Link]] = {}
        self._servers: list[asyncio.Server] = []

    def between(self, member: str, engine: str, behind: str) -> int:
        """The port of the link, made on first use to what is `behind` it."""
        links = self._links.setdefault((member, engine), {})
        if behind not in links:
            links[behind] = self._run(self._listen(behind))
        return links[behind].port

    def cut(self, member: str, engine: str) -> None:
        self._each(member, engine, Link.cut)

    def silence(self, member: str, engine: str) -> None:
        self._each(member, engine, Link.silence)

    def delay(self, member: str, engine: str, seconds: float) -> None:
        self._each(member, engine, lambda link: link.delay(seconds))

    def heal(self, member: str, engine: str) -> None:
        self._each(member, engine, Link.heal)

    def close(self) -> None:
        """Break all of them and end the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, behind: str) -> Link:
        link = Link(behind)
        server = await asyncio.start_server(link.connected, "127.0.0.1", 0)
        link.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return link

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for link in (link for links in self._links.values() for link in links.values()):
            link.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        for task in others:
            with suppress(asyncio.CancelledError):
                await task

    def _each(self, member: str, engine: str, act: Callable[[Link], None]) -> None:
        links = self._links[member, engine]

        async def acted() -> None:
            for link in links.values():
                act(link)

        self._run(acted())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def links() -> Iterator[Links]:
    """Links for the block."""
    made = Links()
    try:
        yield made
    finally:
        made.close()
