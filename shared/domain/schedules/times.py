"""Due times of a schedule, as Unix ms. No clock is read: the time from which to search is an argument.

The library cronsim finds the local times that match a cron expression. The module `zones` converts them to Unix time,
by the same rules of daylight saving for every expression.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

from shared.domain.schedules.spec import ScheduleProblem, ScheduleSpec, Window
from shared.domain.schedules.zones import offset_change, time_of, wall_of, zone_of

MAX_LOOKS: Final = 1_500
"""A search for the next due time gives up after it has found this many due times outside the schedule's window.

The schedule then counts as never due."""

_COMPARED: Final = 100
"""How many due times `jitter_problem` examines to find the shortest interval between two of them."""

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_LAST_YEAR: Final = 9_000
"""The search for the next due time of a cron expression finds nothing from this year on.

The limit is far enough from the year 9999, the last one of Python's dates, that no computation can exceed it."""


def next_due(spec: ScheduleSpec, after_ms: int) -> int | None:
    """Return the first due time after `after_ms`. None: the schedule is never due again."""
    zone = zone_of(spec.zone)
    if spec.cron is not None:
        return _next_of_cron(spec.cron, spec.window, zone, after_ms)
    if spec.every_s is not None:
        return _next_of_interval(spec.every_s * 1000, spec.window, zone, after_ms)
    raise ValueError("a schedule needs cron or every_s")


def due_times(spec: ScheduleSpec, after_ms: int, max_count: int) -> list[int]:
    """Return up to `max_count` due times after `after_ms`, in order."""
    return list(islice(_due_times(spec, after_ms), max_count))


def fires_at(spec: ScheduleSpec, schedule_id: int, due_ms: int) -> int:
    """Return when the due time `due_ms` fires: at most `jitter_s` later. Both are Unix ms.

    The jitter is computed from the schedule and the due time alone, so every call returns the same.
    """
    if not spec.jitter_s:
        return due_ms
    digest = hashlib.blake2b(f"{schedule_id}:{due_ms}".encode(), digest_size=8).digest()
    return due_ms + int.from_bytes(digest) % (spec.jitter_s * 1000 + 1)


def never_due(spec: ScheduleSpec, after_ms: int) -> ScheduleProblem | None:
    """Return a problem if the schedule of a valid declaration has no due time after `after_ms` (Unix ms), else None."""
    if next_due(spec, after_ms) is not None:
        return None
    if spec.window is not None:
        return ScheduleProblem("window", "has none of the schedule's times", "widen the window, or change the times")
    return ScheduleProblem("cron", f"{spec.cron!r} matches no date", "check day of month, month and day of week")


def jitter_problem(spec: ScheduleSpec, after_ms: int) -> ScheduleProblem | None:
    """Return a problem if the jitter of a valid declaration can be as long as the interval between two due times.

    Return None if the jitter is always shorter. Only due times after `after_ms` are compared.
    """
    if not spec.jitter_s:
        return None
    due = due_times(spec, after_ms, _COMPARED)
    shortest_s = min((later - earlier for earlier, later in pairwise(due)), default=0) // 1000
    if len(due) < 2 or spec.jitter_s < shortest_s:
        return None
    return ScheduleProblem("jitter_s", f"is not less than {shortest_s}, the shortest interval", "set a shorter jitter")


def _due_times(spec: ScheduleSpec, after_ms: int) -> Iterator[int]:
    due = next_due(spec, after_ms)
    while due is not None:
        yield due
        due = next_due(spec, due)


def _next_of_cron(cron: str, window: Window | None, zone: ZoneInfo, after_ms: int) -> int | None:
    wall = wall_of(after_ms, zone)
    looks = 0
    while looks < MAX_LOOKS and wall.year < _LAST_YEAR:
        found = next(CronSim(cron, wall), None)
        if found is None:
            return None
        wall = found
        if window is not None and not _within(window, wall.time()):
            wall = _opening(window, wall) - _SECOND
            looks += 1
        elif (due := time_of(wall, zone)) > after_ms:  # else it is a time that comes for the second time
            return due
    return None


def _next_of_interval(every_ms: int, window: Window | None, zone: ZoneInfo, after_ms: int) -> int | None:
    due = (after_ms // every_ms + 1) * every_ms
    for _ in range(MAX_LOOKS):
        wall = wall_of(due, zone)
        if window is None or _within(window, wall.time()):
            return due
        # Stop at a change of the offset: the clock may go back to a time in the window, or before its start.
        opening = offset_change(due, time_of(_opening(window, wall), zone), zone)
        due = max(due + every_ms, -(-opening // every_ms) * every_ms)
    return None


@lru_cache(1_024)
def _clock(text: str) -> time:
    hours, _, minutes = text.partition(":")
    return time(int(hours), int(minutes))


def _within(window: Window, wall: time) -> bool:
    start, end = _clock(window.start), _clock(window.end)
    return start <= wall < end if start < end else wall >= start or wall < end


def _opening(window: Window, wall: datetime) -> datetime:
    """Return when the window opens next after the local time `wall`, which is outside the window."""
    opening = datetime.combine(wall.date(), _clock(window.start))
    return opening if opening > wall else opening + _DAY
