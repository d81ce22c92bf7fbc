"""Events, as the stream shows them."""

from datetime import datetime
from typing import Any, Final

import msgspec
from pydantic import Field

from api.control.following import Gap
from api.schemas.model import Model, moment_of
from shared.ports.broker import Delivered
from shared.wire.events import Event, decode_event
from shared.wire.messages import Malformed


class EventBody(Model):
    """The `data` of an event; its `event` is `kind`, its `id` the place in the stream."""

    kind: str = Field(examples=["crawl"])
    about: str = Field(description="The id of the crawl, member, partition or key it is about.", examples=["7"])
    action: str = Field(examples=["paused"])
    at: datetime = Field(description="When it was noticed.")
    member: str = Field(description="The master that told it.", examples=["m1"])
    crawl: str | None = Field(description="The crawl's name, where it is about one.", examples=["docs"])
    data: dict[str, Any] = Field(description="What there is to say besides, by kind.")


EXAMPLE: Final = """\
retry: 1000

event: crawl
data: {"kind":"crawl","about":"7","action":"finished","at":"2030-01-01T00:00:00Z","member":"m1","crawl":"docs",\
"data":{"state":"finished","reason":"complete","revision":1}}
id: 1893456000000042

: ping
id: 1893456000000042

event: gap
data: {"reason":"expired","after":1893456000000042,"resumes_at":1893456000004711}
id: 1893456000004710

event: end
data: {"reason":"shutdown"}

"""


def frame_of(item: Delivered | Gap) -> tuple[bytes, Event | None]:
    """An event or a gap as it is sent, and the event; nothing for one that cannot be read."""
    if isinstance(item, Gap):
        return frame("gap", msgspec.json.encode(item), item.resumes_at - 1), None
    try:
        event = decode_event(item.data)
    except Malformed:
        return b"", None
    shown = {
        "kind": event.kind,
        "about": event.about,
        "action": event.action,
        "at": moment_of(event.at_ms),
        "member": event.member,
        "crawl": event.crawl or None,
        "data": event.data,
    }
    return frame(event.kind, msgspec.json.encode(shown), item.sequence), event


def frame(name: str, data: bytes, sequence: int | None = None) -> bytes:
    """One event of a stream. JSON has no line breaks of its own, so `data` is one line."""
    place = b"" if sequence is None else b"id: %d\n" % sequence
    return b"event: %s\ndata: %s\n%s\n" % (name.encode(), data, place)


PAST_KEPT: Final = b": past what was kept\n\n"
"""A comment, once, behind the last event that was kept when the stream was opened in the past: who wants no more may
go."""


def ping(sequence: int) -> bytes:
    """A sign of life, which also tells the client from where it may go on."""
    return b": ping\nid: %d\n\n" % sequence
