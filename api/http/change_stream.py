"""Stream the changes of a crawl's pages over HTTP as Server-Sent Events, read from the log in SQL.

A row may become visible some seconds after rows with a later time. Therefore each read covers the last `WINDOW_MS`
again, and sends only the changes that were not sent yet. A client that reconnects with the id of its last event may
get changes of that window again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.http.sse import PING_S, SLOW_S, Allowed, StreamLimit, until_revoked
from api.schemas.changes import ChangesGap, change_body
from shared.domain.errors import Transient
from shared.domain.reads.changes import ChangePlace, PageChangeView
from shared.runtime.supervise import Tasks

log = structlog.get_logger("orb.api")

WINDOW_MS: Final = 10_000
LOOK_S: Final = 1.0
_END_S: Final = 1.0

Read = Callable[[ChangePlace], Awaitable[tuple[Sequence[PageChangeView], ChangePlace | None]]]
"""Returns the changes after a place in the log, and the place to continue from (None at the end of the log)."""


def place_text(place: ChangePlace) -> str:
    """Return the id of the event that shows the change at this place in the log."""
    return "-".join(map(str, place))


class ChangeStream(Response):
    """A response that streams the changes after `after` as they are recorded, until the client disconnects.

    - `read` returns the changes after a place in the log, and the place to continue from (`Read`).
    - `gap`: what may be missing before the first change; None: nothing. It is sent first.
    - `streams`: counts open streams, and ends them when the master stops.
    - `allowed` returns False once the client's key is no longer valid. The stream then ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        read: Read,
        after: ChangePlace,
        gap: ChangesGap | None,
        *,
        streams: StreamLimit,
        allowed: Allowed,
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._read = read
        self._gap = b"" if gap is None else b"event: gap\ndata: " + gap.model_dump_json().encode() + b"\n\n"
        self._newest = after
        self._from = after
        self._sent: set[ChangePlace] = set()
        self._streams = streams
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason: str | None = None
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with Tasks() as tasks:
            sending = tasks.start("changes.sent", self._send_changes(send))
            left = tasks.start("changes.client", _left(receive))
            revoked = tasks.start("changes.key", until_revoked(self._allowed))
            stop = tasks.start("changes.stop", self._streams.closing.wait())
            await asyncio.wait([sending, left, revoked, stop], return_when=asyncio.FIRST_COMPLETED)
            if not left.done():
                reason = await sending if sending.done() else "revoked" if revoked.done() else "shutdown"
        log.info("change_stream.closed", path=scope["path"], reason=reason or "client left")
        if reason is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await _send(send, b'event: end\ndata: {"reason":"%s"}\n\n' % reason.encode())
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_changes(self, send: Send) -> str:
        """Send changes until the client reads nothing for SLOW_S seconds. Then return the reason: `slow`."""
        await _send(send, b"retry: 1000\n\n" + self._gap)
        sent_at = time.monotonic()
        while True:
            async for frames in self._unsent_changes():
                sent_at = time.monotonic()
                try:
                    async with asyncio.timeout(SLOW_S):
                        await _send(send, frames)
                except TimeoutError:
                    return "slow"
            now = time.monotonic()
            if now - sent_at >= PING_S:
                sent_at = now
                await _send(send, b": ping\n\n")
            await asyncio.sleep(LOOK_S)

    async def _unsent_changes(self) -> AsyncIterator[bytes]:
        """Read the log, and yield the encoded events of the changes that were not sent yet.

        Stop if the database is unavailable: the next call reads the same changes.
        """
        place: ChangePlace | None = self._from
        while place is not None:
            try:
                changes, place = await self._read(place)
            except Transient as error:
                log.debug("change_stream.delayed", error=str(error))
                return
            new = [change for change in changes if change.place not in self._sent]
            if new:
                yield b"".join(map(frame_of, new))
            self._sent.update(change.place for change in new)
            # `place` moves the stream on past changes of kinds that the client did not ask for.
            self._newest = max(self._newest, *(change.place for change in new), place or self._newest)
            self._from = max(self._from, ChangePlace(self._newest.at_ms - WINDOW_MS))
            self._sent = {each for each in self._sent if each > self._from}


def frame_of(change: PageChangeView) -> bytes:
    """Return the encoded event that shows a change in a stream of Server-Sent Events."""
    data = change_body(change).model_dump_json().encode()
    head = f"id: {place_text(change.place)}\nevent: {change.kind.name.lower()}\n".encode()
    return head + b"data: " + data + b"\n\n"


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _left(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
