"""Schedules as the database stores them, and the work that a firing leaves for later."""

from dataclasses import dataclass
from typing import Final

import msgspec

from shared.domain.ids import CrawlId
from shared.domain.schedules.spec import ScheduleSpec

MAX_SCHEDULES: Final = 20_000
MAX_SELECTED: Final = 100
"""The maximum number of crawls to which one firing may apply its verb. All of them change in one transaction."""

HISTORY: Final = 200
"""How many lines of history are kept for each schedule."""

_spec: Final = msgspec.json.Decoder(ScheduleSpec)


def encode_schedule(spec: ScheduleSpec) -> str:
    """Return the spec as the JSON that the database stores."""
    return msgspec.json.encode(spec).decode()


def decode_schedule(stored: str) -> ScheduleSpec:
    """Return the spec that `encode_schedule` encoded."""
    return _spec.decode(stored)


def schedule_tag(schedule_id: int, version: int) -> str:
    """Return the HTTP ETag of a version of a schedule (`StoredSchedule.tag`)."""
    return f"{schedule_id}-{version}"


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as stored. `version` grows with each change that an operator makes.

    - `due_ms`: the next due time, computed from the spec. None: the schedule is never due again.
    - `fires_ms`: when the schedule fires for `due_ms`: up to the spec's `jitter_s` seconds later. For example, with
      `due_ms` at 08:00:00 and a `jitter_s` of 60, this may be 08:00:23. None if `due_ms` is None.
    - `last_ms`: the last due time that was processed, 0 if none was.
    - `paused`: no due time fires, and `due_ms` has no meaning.
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
    def place(self) -> tuple[int, int]:
        """The place of the schedule in the order in which due schedules are read: when it fires, and its id."""
        return self.fires_ms or 0, self.schedule_id

    @property
    def tag(self) -> str:
        """The HTTP ETag of this version. A schedule that was deleted and created again has another tag."""
        return schedule_tag(self.schedule_id, self.version)

    @property
    def shown_tag(self) -> str:
        """The ETag of the schedule as the API shows it: `tag`, a dot, and its due times.

        If-Match ignores the part after the dot.
        """
        return f"{self.tag}.{self.last_ms}-{self.due_ms or 0}"


@dataclass(frozen=True, slots=True)
class UnreadableSchedule:
    """A schedule whose spec this version cannot read: a later version wrote it.

    - `reason`: what is wrong with the spec.
    - `crawl`: the crawl that the spec names. None if it selects crawls by labels.

    The other fields are as in StoredSchedule.
    """

    schedule_id: int
    name: str
    reason: str
    crawl: str | None
    paused: bool
    fires_ms: int | None
    last_ms: int
    created_at_ms: int
    created_by: str

    @property
    def place(self) -> tuple[int, int]:
        """The place of the schedule in the order in which due schedules are read: when it fires, and its id."""
        return self.fires_ms or 0, self.schedule_id


@dataclass(frozen=True, slots=True)
class QueuedEffect:
    """A postponed effect of a firing on a crawl: it waited until the crawl's run ended, and can be applied now."""

    schedule_id: int
    due_ms: int
    crawl: str

    @property
    def place(self) -> tuple[str, int, int]:
        """The place of the effect in the order in which effects are read."""
        return self.crawl, self.schedule_id, self.due_ms


@dataclass(frozen=True, slots=True)
class WaitingCommand:
    """A command that a firing stored in the database, and that is not recorded as published yet."""

    schedule_id: int
    due_ms: int
    crawl: str
    crawl_id: CrawlId
    command: str

    @property
    def place(self) -> tuple[int, int, str]:
        """The command's sort key: commands are read from the database in ascending order of it."""
        return self.schedule_id, self.due_ms, self.crawl
