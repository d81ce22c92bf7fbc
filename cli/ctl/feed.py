"""Parses Server-Sent Events as the HTML standard defines them, and follows a stream of them across lost connections.

After a lost connection the client connects again, to another master if necessary, and sends the id of the last event
that it received. So every event that the server stores is received once, without a gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import httpx

from cli.ctl.client import Client, Query, cause_of
from cli.ctl.problems import ANOTHER, Refusal
from cli.terminal.exits import Environment
from cli.terminal.printable import printable

SILENCE_S: Final = 45.0
"""Seconds of silence after which a connection counts as dead: three times the interval of the server's heartbeats."""

LONGEST_EVENT: Final = 4 << 20
_MEDIA_TYPE: Final = "text/event-stream"
_PAST_STORED: Final = ("past what was kept", "ping")
"""Two comments in a stream, each of which shows that the server has sent all stored events.

The server sends the first comment right after the stored events. The second comment is its heartbeat, which it sends
while it has no event to send.
"""

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0


ENDED: Final = "end"
"""The kind of the event with which a master ends a stream. Its data has the reason."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One Server-Sent Event. If it was sent without an id, `id` is the last id that was sent before it, or ""."""

    kind: str
    data: str
    id: str


class NoEventStream(Environment):
    """Raised if a server does not answer with an event stream. As in the HTML standard, no retry follows."""


class EventParser:
    """Parses an event stream. The caller passes the bytes to `feed`, in pieces of any size.

    - `last_id`: the id of the last complete event or heartbeat. A new connection with this id resumes the stream.
    - `retry_s`: the seconds that the server asks clients to wait before a new connection, None if it has not asked.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_s: float | None = None
        self.past_stored = False
        """True once the server has sent the comment that follows all stored events, whose text is in `_PAST_STORED`."""
        self._id = last_id
        self._rest = b""
        self._kind = ""
        self._data: list[str] = []
        self._begun = False

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """Add a piece of the stream, and yield the events that it completes.

        Raise Environment if an event is too large, probably because the bytes are no event stream.
        """
        data = self._rest + piece
        if not self._begun and len(data) >= 3:
            self._begun = True
            data = data.removeprefix(b"\xef\xbb\xbf")
        pending = b""
        if data.endswith(b"\r"):  # a \n of the same line end may follow
            data, pending = data[:-1], b"\r"
        *lines, rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + pending
        if len(self._rest) > LONGEST_EVENT or sum(map(len, self._data)) > LONGEST_EVENT:
            raise Environment("the server did not answer with a stream of events.")
        for line in lines:
            event = self._line(line.decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _line(self, line: str) -> SseEvent | None:
        if not line:
            kind, data, self._kind, self._data = self._kind, self._data, "", []
            self.last_id = self._id
            return SseEvent(kind or "message", "\n".join(data), self.last_id) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._kind = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry_s = int(value) / 1000
            case "" if value in _PAST_STORED:
                self.past_stored = True
            case _:
                pass  # another comment, or a field of a later standard
        return None


def follow(client: Client, at: str, query: Query | None, *, last_id: str | None) -> Iterator[SseEvent | str]:
    """Yield the events of the stream at the API path `at`, and reconnect after each lost connection.

    Before each reconnection, yield a text that tells the user why the connection was lost. End when the server reports
    that the crawl was deleted.

    `last_id`: yield only events after the event with this id. None: yield only new events.

    Raise Refusal or Environment if the first connection fails. If a reconnection fails, try again. Only two errors of a
    reconnection are raised: NoEventStream, and Refusal with a status such as 403 or 404, which a retry cannot change.
    """
    seen, wait, begun = last_id or "", _FIRST_WAIT_S, False
    while True:
        parser = EventParser(seen)
        try:
            with client.stream(at, query, headers=_headers(seen), answer_s=SILENCE_S) as response:
                _check_kind(client, response)
                begun = True
                for piece in response.iter_raw():
                    for event in parser.feed(piece):
                        wait = _FIRST_WAIT_S
                        yield event
                        if event.kind == ENDED and "deleted" in event.data:
                            return
            lost = f"{client.server} ended the stream"
        except httpx.RequestError as error:
            lost = f"{client.server} closed the connection ({cause_of(error)})"
        except Refusal as refusal:
            if not begun or refusal.problem.status in (401, 403, 404, 422):
                raise
            lost = refusal.problem.detail
        except NoEventStream:
            raise
        except Environment as error:
            if not begun:
                raise
            lost = str(error).rstrip(".")
        seen = parser.last_id
        yield f"{lost}; reconnecting"
        client.sleep(max(parser.retry_s or 0.0, wait))
        wait = min(_LONGEST_WAIT_S, wait * 2)


def kept(client: Client, at: str, query: Query | None, *, last_id: str | None) -> Iterator[SseEvent]:
    """Yield the events that the server has stored, and end after the last one. Do not wait for new events.

    End earlier when the server reports that the crawl was deleted.

    `last_id`: yield only events after the event with this id; None for all events.

    Raise Environment if the stream ends before all stored events were received. Raise NoEventStream if the answer is no
    event stream.
    """
    parser = EventParser()
    with client.stream(at, query, headers=_headers(last_id or "0"), answer_s=SILENCE_S) as response:
        _check_kind(client, response)
        try:
            for piece in response.iter_raw():
                for event in parser.feed(piece):
                    if event.kind == ENDED and "deleted" in event.data:
                        return
                    if event.kind != ENDED:
                        yield event
                if parser.past_stored:
                    return
        except httpx.RequestError as error:
            raise Environment(f"{client.server} closed the connection ({cause_of(error)}).") from error
    raise Environment(f"{client.server} ended the stream too early: repeat the command.")


def _check_kind(client: Client, response: httpx.Response) -> None:
    """Raise NoEventStream if the media type of the response is not that of Server-Sent Events."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _MEDIA_TYPE:
        raise NoEventStream(
            f"{client.server} did not answer with a stream of events, but with {printable(kind) or 'no media type'}, "
            f"so it is not an Orbweaver API; {ANOTHER}."
        )


def _headers(last_id: str) -> dict[str, str]:
    headers = {"Accept": _MEDIA_TYPE, "Cache-Control": "no-store"}
    return {**headers, "Last-Event-ID": last_id} if last_id else headers
