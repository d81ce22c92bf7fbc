"""Streams of events over HTTP (Server-Sent Events): limited in number, and ended cleanly when the master stops.

Events are read from the broker only as fast as the client reads, so a slow client keeps only one batch in memory. A
client that reads nothing for `SLOW_S` seconds is disconnected. It may connect again, and continue after the last id
that it received.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.events.reader import EventCursor, EventGap
from api.http.errors import ApiProblem, ProblemKind
from api.schemas.events import PAST_STORED, frame, frame_of, ping
from shared.domain.errors import Transient
from shared.ports.events import Events, EventsState
from shared.runtime.supervise import Tasks
from shared.wire.events import Event

log = structlog.get_logger("orb.api")

PING_S: Final = 15.0
CHECK_S: Final = 5.0
SLOW_S: Final = 30.0
STREAMS: Final = 64
_DOUBT_S: Final = 1.0
_END_S: Final = 1.0
_RETRY_MS: Final = 1_000

Allowed = Callable[[], Awaitable[bool]]
"""Returns True while the client's key is valid; called about every `CHECK_S`."""

Last = Callable[[Event], bool]
"""Returns True if no event can follow this one."""


class StreamLimit:
    """Limits how many streams this master sends at the same time: at most `max_count`.

    A stream is a long response: an event stream, an export, or a download of a WARC file. A master has two limits: one
    for event streams, and one for exports and downloads. Once the master stops, no further stream is opened.
    """

    def __init__(self, max_count: int = STREAMS) -> None:
        self.open = 0
        self.closing = asyncio.Event()
        self._max_count = max_count

    def __repr__(self) -> str:
        return f"<StreamLimit {self.open} of {self._max_count}{' closing' if self.closing.is_set() else ''}>"

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count a stream as open during the `with` block.

        Raise ApiProblem if `max_count` streams are open already, or if this master is stopping.
        """
        if self.closing.is_set():
            raise ApiProblem(ProblemKind.UNAVAILABLE, "this master is stopping", headers={"Retry-After": "1"})
        if self.open >= self._max_count:
            detail = f"{self._max_count} streams are open on this master already"
            hint = "ask another master, or close a stream"
            raise ApiProblem(ProblemKind.BUSY, detail, hint=hint, headers={"Retry-After": "5"})
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    @contextmanager
    def until_closed(self) -> Iterator[None]:
        """Close all streams when the `with` block ends: open ones end, and `slot` refuses new ones."""
        try:
            yield
        finally:
            self.closing.set()


class EventStream(Response):
    """A response that streams events until the client disconnects or no event can follow.

    - `following`: the cursor that yields the events to send. The caller opens it, and the response closes it.
    - `gap`: the events that may be missing before the first event. The gap is sent first. None: no event is missing.
    - `events`: the broker's stream of all events. The response only asks it for the number of the newest event. While
      no event is for this client, the response sends this number as the id of a ping. So a client that connects again
      resumes from a recent place.
    - `streams`: the limit of open streams. The response ends when `streams` is closed, because the master stops.
    - `allowed` is called repeatedly. If it returns False, the client's key is no longer valid, and the response ends.
    - `last` returns True for an event after which no other can follow.
    - `unsent`: the kinds of events that are read only for `last`, and not sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        following: EventCursor,
        gap: EventGap | None,
        *,
        events: Events,
        streams: StreamLimit,
        allowed: Allowed,
        last: Last,
        unsent: Collection[str] = (),
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._following = following
        self._gap = gap
        self._events = events
        self._streams = streams
        self._allowed = allowed
        self._last = last
        self._unsent = unsent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason: str | None = None
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with Tasks() as tasks:
                sending = tasks.start("events.sent", self._send_events(send))
                left = tasks.start("events.client", _left(receive))
                revoked = tasks.start("events.key", until_revoked(self._allowed))
                stop = tasks.start("events.stop", self._streams.closing.wait())
                await asyncio.wait([sending, left, revoked, stop], return_when=asyncio.FIRST_COMPLETED)
                if not left.done():
                    reason = await sending if sending.done() else "revoked" if revoked.done() else "shutdown"
        finally:
            await self._following.close()
        log.info(
            "event_stream.closed", path=scope["path"], position=self._following.position, reason=reason or "client left"
        )
        if reason is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await _send(send, frame("end", b'{"reason":"%s"}' % reason.encode()))
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> str:
        """Send events until the stream must end. Return the reason, which is one of two:

        - `slow`: the client read nothing for `SLOW_S` seconds.
        - `deleted`: the last event was read. This is the event that says that the crawl was deleted.

        The caller cancels this method if the client disconnects, its key becomes invalid, or the master stops.
        """
        gap = b"" if self._gap is None else frame_of(self._gap)[0]
        past_stored = self._following.is_past_stored
        await _send(send, b"retry: %d\n\n%s%s" % (_RETRY_MS, gap, PAST_STORED if past_stored else b""))
        sent_at = time.monotonic()
        state: EventsState | None = None
        while True:
            if state is None:
                state, looked_at = await self._state(), time.monotonic()
            items = await self._following.next(max(0.0, sent_at + PING_S - time.monotonic()))
            if not items and time.monotonic() - sent_at < PING_S:
                state = None  # The broker is unavailable.
                continue
            frames, ended = [], False
            for item in items:
                sent, event = frame_of(item)
                if event is None or event.kind not in self._unsent:
                    frames.append(sent)
                if event is not None and self._last(event):
                    ended = True
                    break
            if not items:
                if state is not None and time.monotonic() - looked_at >= PING_S / 2:
                    self._following.skip_others(state)
                frames, state = [ping(self._following.position)], None
            if not past_stored and self._following.is_past_stored:
                past_stored = True
                frames.append(PAST_STORED)
            if any(frames):  # Events that are not sent do not postpone the next ping.
                sent_at = time.monotonic()
                try:
                    async with asyncio.timeout(SLOW_S):
                        await _send(send, b"".join(frames))
                except TimeoutError:
                    log.warning("event_client.disconnected", position=self._following.position, waited_s=SLOW_S)
                    return "slow"
                if time.monotonic() - sent_at > _DOUBT_S:
                    self._following.doubt()
            if ended:
                return "deleted"

    async def _state(self) -> EventsState | None:
        try:
            return await self._events.state()
        except Transient:
            return None


async def until_revoked(allowed: Allowed) -> None:
    """Return once the client's key is no longer valid. Until then, call `allowed` after every `CHECK_S` seconds."""
    while True:
        await asyncio.sleep(CHECK_S)
        if not await allowed():
            return


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _left(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
