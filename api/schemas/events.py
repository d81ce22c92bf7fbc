"""The messages of event streams (Server-Sent Events), and the `data` in them."""

from datetime import datetime
from typing import Any, Final

import msgspec

from api.events.reader import EventGap
from api.schemas.model import Model, field, moment_of
from shared.ports.broker import Delivered
from shared.wire.events import Event, decode_event
from shared.wire.messages import Malformed


class EventBody(Model):
    """Something that happened in the cluster. It is the `data:` field of a message of Server-Sent Events.

    The message has two more fields. `event:` repeats `kind`. `id:` is the position in the stream of events.
    """

    kind: str = field("What the event is about.", "crawl")
    about: str = field("The id of the crawl, schedule, member, partition or key that the event is about.", "7")
    action: str = field("What happened to it.", "paused")
    at: datetime = field("When the master noticed it.", "2030-01-01T08:00:00Z")
    member: str = field("The id of the master that published the event.", "m1")
    crawl: str | None = field("The crawl's name. Null if the event is not about a crawl.", "docs")
    data: dict[str, Any] = field("Further values, which depend on `kind`.", {"state": "paused"})


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


def frame_of(item: Delivered | EventGap) -> tuple[bytes, Event | None]:
    """Return a message of a Server-Sent Events stream for an event or a gap, and the decoded event.

    For a gap, the second value is None. For an event that cannot be decoded, return empty bytes and None.
    """
    if isinstance(item, EventGap):
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
    """Return one message of a Server-Sent Events stream.

    - `name`: the value of its `event` field.
    - `data`: the value of its `data` field: JSON, so it has no line breaks.
    - `sequence`: the value of its `id` field. None: the message has no id.
    """
    place = b"" if sequence is None else b"id: %d\n" % sequence
    return b"event: %s\ndata: %s\n%s\n" % (name.encode(), data, place)


PAST_STORED: Final = b": past what was kept\n\n"
"""A comment of an event stream, sent once after the last event that was stored when the stream was opened.

A client that needs only stored events may disconnect then.
"""


def ping(sequence: int) -> bytes:
    """Return a keep-alive message of a Server-Sent Events stream: a comment, and `sequence` as its id.

    `sequence` is the position of the last event that the server has read for this client. A client that connects again
    sends this id, and gets the events after it.
    """
    return b": ping\nid: %d\n\n" % sequence
