"""Events that happened in the cluster, published as JSON on `events.<kind>.<id>`. Users may read the stream as well.

Unknown fields are ignored, and events of unknown kinds may arrive. An event is published at most once, so it may be
lost. The database and etcd contain the present state.
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
    """The kind of an event. Each kind has its own subjects.

    The kind decides what the field `about` of an event contains:

    - CRAWL, PROGRESS, DEAD_LETTER: the id of a crawl.
    - ALARM: a partition.
    - MASTER, WORKER, LEADER, RESOURCE_PRESSURE: the id of a member.
    - CONFIG: what was changed, such as `settings` or `exclusions`.
    - SCHEDULE: the id of a schedule.
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
    """Something that happened in the cluster. `about` is the id of what the event concerns (see EventKind).

    - `action`: what happened, such as `started`. `data`: details, by name.
    - `member`: the master that noticed the event. `at_ms`: when it did (Unix ms).
    - `crawl`: the name of the crawl, empty if the event concerns none.
    """

    kind: str
    about: str
    action: str
    at_ms: int
    member: str = ""
    crawl: str = ""
    data: dict[str, Any] = {}


def event_subject(kind: str, about: str) -> str:
    """Return the subject on which an event is published. `kind` and `about` are fields of the event.

    In `about`, each character other than a letter, digit, `_` or `-` is written as `=` and its code point in hex.
    """
    return f"events.{kind}.{_UNFIT.sub(lambda match: f'={ord(match[0]):X}', about)}"


def events_of(kind: EventKind) -> str:
    """Return the pattern that matches the subjects of all events of a kind."""
    return f"events.{kind}.*"


encode_event: Final[Callable[[Event], bytes]] = msgspec.json.Encoder().encode
decode_event: Final[Callable[[bytes], Event]] = decoder(Event, msgspec.json.Decoder)
