"""The declaration of a schedule by an operator, and the problems of a declaration, each with its field and a remedy."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from cronsim import CronSim, CronSimError

from shared.domain.crawl.state import Verb
from shared.domain.schedules.zones import UTC_NAME, zone_names
from shared.domain.suggestions import nearest

MIN_EVERY_S: Final = 60
"""The least interval between two due times, in seconds. The due times of a cron expression are whole minutes apart."""

MAX_EVERY_S: Final = 366 * 86_400
MAX_JITTER_S: Final = 86_400
MAX_LATE_S: Final = 86_400
MAX_CRON_CHARS: Final = 200
_LATE_S: Final = 120
_CRON_FIELDS: Final = 5


class Overlap(StrEnum):
    """What a firing does if its verb begins a run of a crawl, and the crawl's present run has not ended.

    SKIP: the firing is dropped. QUEUE: it waits for the end of the run.
    """

    SKIP = "skip"
    QUEUE = "queue"


class CatchUp(StrEnum):
    """What happens to late due times, such as those that passed during an outage of the masters.

    A due time is late once more than `late_s` seconds have passed since the time at which it should have fired.

    - NONE: late due times never fire.
    - LAST: the last of the late due times fires, unless a due time that is not late fires now.

    Example: a schedule is due every hour, without jitter, and `late_s` is 120. An outage begins at 9:30.

    - The outage ends at 12:30. The due times 10:00, 11:00 and 12:00 are late. With NONE none of them fires, with LAST
      12:00 fires.
    - The outage ends at 12:01. Only 10:00 and 11:00 are late. With NONE and with LAST only 12:00 fires.
    """

    NONE = "none"
    LAST = "last"


SCHEDULED: Final = (Verb.START, Verb.REFRESH, Verb.RESET, Verb.RETRY_FAILED, Verb.PAUSE, Verb.RESUME)
"""The verbs that a schedule may apply."""

BEGINS_RUN: Final = frozenset({Verb.START, Verb.REFRESH, Verb.RESET})
"""The verbs that begin a run of a crawl. `ScheduleSpec.overlap` says what they do if an earlier run has not ended."""


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of each day in which a schedule may fire: from `start` (included) to `end` (excluded), as HH:MM.

    If `end` is before `start`, the window spans midnight.
    """

    start: str
    end: str


class ScheduleSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The declaration of a schedule, as the database stores it.

    - `crawl` is the name of a crawl, or `selector` the labels that the crawls must have. Exactly one of them is set.
    - `cron` is an expression of five fields, or `every_s` an interval. Intervals are counted from 1970-01-01T00:00:00Z.
    - `jitter_s`: each due time fires up to this many seconds later.
    - `late_s`: a due time is late if it is handled more than this many seconds after its firing time (the due time plus
      its jitter).
    - `catch_up`: what happens to late due times.
    """

    verb: Verb
    crawl: str | None = None
    selector: Mapping[str, str] = {}
    cron: str | None = None
    every_s: int | None = None
    zone: str = UTC_NAME
    window: Window | None = None
    jitter_s: int = 0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.NONE
    late_s: int = _LATE_S

    @property
    def timing(self) -> tuple[object, ...]:
        """The fields on which the due times depend. Two specs with equal values have the same due times."""
        return self.cron, self.every_s, self.zone, self.window, self.jitter_s


class ScheduleProblem(msgspec.Struct, frozen=True):
    """One problem of a declaration: the field, what is wrong, and what to write instead."""

    path: str
    message: str
    hint: str


def problems_of(spec: ScheduleSpec) -> Iterator[ScheduleProblem]:
    """Yield the problems of a declaration whose fields have the right types.

    It does not check if the schedule is ever due. `times.never_due` does.
    """
    if (spec.crawl is None) == (not spec.selector):
        yield ScheduleProblem("crawl", "expected a crawl or a selector, and not both", "set one of both")
    if spec.verb not in SCHEDULED:
        yield ScheduleProblem(
            "verb", f"expected one of {', '.join(SCHEDULED)}, got {str(spec.verb)!r}", "use one of these verbs"
        )
    if (spec.cron is None) == (spec.every_s is None):
        yield ScheduleProblem("cron", "expected cron or every_s, and not both", "set one of both")
    if spec.cron is not None and (wrong := _cron_problem(spec.cron)) is not None:
        yield wrong
    if spec.zone not in zone_names():
        meant = nearest(spec.zone, zone_names())
        hint = f"did you mean {meant}?" if meant is not None else "use a name such as Europe/Berlin or UTC"
        yield ScheduleProblem("zone", f"there is no IANA time zone {spec.zone!r}", hint)
    if spec.window is not None and spec.window.start == spec.window.end:
        yield ScheduleProblem("window.end", "is equal to window.start", "set another time, or leave the window out")
    if spec.every_s is not None and spec.jitter_s >= spec.every_s:
        yield ScheduleProblem("jitter_s", "is not less than every_s", "set a shorter jitter, or a longer interval")


def _cron_problem(cron: str) -> ScheduleProblem | None:
    fields = cron.split()
    if len(fields) == _CRON_FIELDS + 1:
        return ScheduleProblem(
            "cron", f"has 6 fields; the shortest interval is {MIN_EVERY_S} s", "leave out the field of the seconds"
        )
    if len(fields) != _CRON_FIELDS:
        hint = "write minute, hour, day of month, month and day of week, such as 30 2 * * *"
        return ScheduleProblem("cron", f"expected 5 fields, got {len(fields)}", hint)
    try:
        CronSim(cron, datetime(2000, 1, 1))
    except CronSimError as error:
        hint = "write minute, hour, day of month, month and day of week, such as 30 2 * * *"
        reason = str(error).lower().replace("bad ", "")
        return ScheduleProblem("cron", f"the field {reason} has no valid value in {cron!r}", hint)
    return None
