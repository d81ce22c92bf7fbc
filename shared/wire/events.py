"""Events that happened in the cluster, published on `events.<kind>.<id>` as JSON, since users read the stream as well.

Unknown fields are ignored and unknown kinds may come. An event is published at most once and may be missing: the facts
are in the database, or in the coordinator.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from shared.wire.messages import decoder

EVENTS: Final = "EVENTS"
EVERY_EVENT: Final = "events.>"

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


class EventKind(StrEnum):
    """The kind of an event. Each kind has subjects of its own.

    An event's `about` is the id of a crawl (the first three kinds), a partition (ALARM), a member (the next four), a
    key (CONFIG) or a schedule.
    """

    CRAWL = "crawl"
    PROGRESS = "progress"
    DEAD_LETTER = "dead_letter"
    ALARM = "alarm"
    MASTER = "master"
    WORKER = "worker"
    LEADER = "leader"
    RESOURCE_PRESSURE = "resource_pressure"
    CONFIG = "config"
    SCHEDULE = "schedule"


OF_A_CRAWL: Final = (EventKind.CRAWL, EventKind.PROGRESS, EventKind.DEAD_LETTER)


class Event(msgspec.Struct, frozen=True, tag_field="type", tag="event/1", omit_defaults=True):
    """Something that happened in the cluster. `about`: the id of what it concerns (EventKind).

    `at_ms`: when the master `member` noticed it. `crawl`: the crawl's name, if it concerns one.
    """

    kind: str
    about: str
    action: str
    at_ms: int
    member: str = ""
    crawl: str = ""
    data: dict[str, Any] = {}


def event_subject(kind: str, about: str) -> str:
    """Return the subject on which an event is published.

    A character not allowed in a subject is written as `=` and its code point.
    """
    return f"events.{kind}.{_UNFIT.sub(lambda match: f'={ord(match[0]):X}', about)}"


def events_of(kind: EventKind) -> str:
    """Return the pattern that matches the subjects of all events of a kind."""
    return f"events.{kind}.*"


encode_event: Final[Callable[[Event], bytes]] = msgspec.json.Encoder().encode
decode_event: Final[Callable[[bytes], Event]] = decoder(Event, msgspec.json.Decoder)
