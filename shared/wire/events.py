"""Events: what happened in the cluster, for whoever wants to know, on `events.<kind>.<id>`.

JSON, for users' own consumers read the stream as well. Unknown fields are ignored and unknown kinds may come. An event
is told at most once and may be missing: what it tells of stands in SQL, or in the coordinator.
"""

import re
from enum import StrEnum
from typing import Any, Final

import msgspec

from shared.wire.messages import Malformed

EVENTS: Final = "EVENTS"
EVERY_EVENT: Final = "events.>"

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


class EventKind(StrEnum):
    """What an event is about; its `about` is then the id of a crawl (the first three), a partition, a member (the next
    four), a key."""

    CRAWL = "crawl"
    PROGRESS = "progress"
    DEAD_LETTER = "dead-letter"
    ALARM = "alarm"
    MASTER = "master"
    WORKER = "worker"
    LEADER = "leader"
    ROOM = "room"
    CONFIG = "config"


OF_A_CRAWL: Final = (EventKind.CRAWL, EventKind.PROGRESS, EventKind.DEAD_LETTER)


class Event(msgspec.Struct, frozen=True, tag_field="type", tag="event/1", omit_defaults=True):
    """Something that happened. `at_ms`: when the master `member` noticed. `crawl`: its name, where it is about one."""

    kind: str
    about: str
    action: str
    at_ms: int
    member: str = ""
    crawl: str = ""
    data: dict[str, Any] = {}


_encode = msgspec.json.Encoder().encode
_event = msgspec.json.Decoder(Event)


def event_subject(kind: str, about: str) -> str:
    """Where an event goes. What a subject's part may not hold is written as `=` and its code point."""
    return f"events.{kind}.{_UNFIT.sub(lambda found: f'={ord(found[0]):X}', about)}"


def events_of(kind: EventKind) -> str:
    """Every event of a kind."""
    return f"events.{kind}.*"


def encode_event(event: Event) -> bytes:
    """The event's bytes."""
    return _encode(event)


def decode_event(data: bytes) -> Event:
    """A message of the stream. Raises Malformed."""
    try:
        return _event.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
