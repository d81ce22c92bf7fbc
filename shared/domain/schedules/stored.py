"""Schedules as the database stores them, and what a firing left to do."""

from dataclasses import dataclass
from typing import Final

import msgspec

from shared.domain.ids import CrawlId
from shared.domain.schedules.spec import ScheduleSpec

MAX_SCHEDULES: Final = 20_000
MAX_SELECTED: Final = 100
"""The crawls to which one firing may apply its verb, since it is one transaction."""

HISTORY: Final = 200
"""The lines of history that are kept for each schedule."""

_spec: Final = msgspec.json.Decoder(ScheduleSpec)


def encode_schedule(spec: ScheduleSpec) -> str:
    """Return the spec as the database stores it."""
    return msgspec.json.encode(spec).decode()


def decode_schedule(stored: str) -> ScheduleSpec:
    """Return the spec that `encode_schedule` encoded."""
    return _spec.decode(stored)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule. `version` grows with each change that an operator makes.

    `due_ms` is its next due time, which fires at `fires_ms`, None if there is none. `last_ms` is the last due time that
    was handled, 0 if none was. While it is `paused`, the next due time means nothing.
    """

    schedule_id: int
    name: str
    version: int
    spec: ScheduleSpec
    paused: bool
    due_ms: int | None
    fires_ms: int | None
    last_ms: int
    created_at_ms: int
    created_by: str

    @property
    def tag(self) -> str:
        """The HTTP ETag of this version. A schedule that was deleted and created again has another."""
        return f"{self.schedule_id}-{self.version}"

    @property
    def shown_tag(self) -> str:
        """The ETag of what is shown: it also changes with each due time. If-Match ignores the part after the dot."""
        return f"{self.tag}.{self.last_ms}-{self.due_ms or 0}"


@dataclass(frozen=True, slots=True)
class UnreadableSchedule:
    """A schedule whose spec this version cannot read: a later version wrote it."""

    schedule_id: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueuedEffect:
    """An effect that waited for the end of its crawl's run, which has come."""

    schedule_id: int
    due_ms: int
    crawl: str


@dataclass(frozen=True, slots=True)
class WaitingCommand:
    """A command that a firing recorded, and that may not be published yet."""

    schedule_id: int
    due_ms: int
    crawl: str
    crawl_id: CrawlId
    command: str

    @property
    def place(self) -> tuple[int, int, str]:
        """Its place in the order in which commands are read."""
        return self.schedule_id, self.due_ms, self.crawl
