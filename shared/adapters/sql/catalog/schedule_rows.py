"""Schedules and firings as the rows of the database store them."""

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Row

from shared.domain.crawl.state import Verb
from shared.domain.ids import CrawlId
from shared.domain.schedules.history import CrawlEffect, Firing, FiringOutcome
from shared.domain.schedules.stored import StoredSchedule, UnreadableSchedule, decode_schedule
from shared.ports.schedules import ScheduleUnreadable


def stored_schedule(row: Row[Any]) -> StoredSchedule:
    """Return the schedule that a row of `schedules` stores. Raise ScheduleUnreadable if its spec cannot be decoded."""
    found = readable(row)
    if isinstance(found, UnreadableSchedule):
        raise ScheduleUnreadable(f"the schedule {found.name!r} cannot be used: {found.reason}")
    return found


def readable(row: Row[Any]) -> StoredSchedule | UnreadableSchedule:
    """Return the schedule that a row of `schedules` stores, as UnreadableSchedule if its spec cannot be decoded."""
    try:
        spec = decode_schedule(row.spec)
    except msgspec.MsgspecError as error:
        return UnreadableSchedule(
            schedule_id=row.schedule_id,
            name=row.name,
            reason=f"its spec cannot be read: {error}",
            crawl=row.crawl,
            paused=bool(row.paused),
            fires_ms=row.fires_ms,
            last_ms=row.last_ms,
            created_at_ms=row.created_at_ms,
            created_by=row.created_by,
        )
    return StoredSchedule(
        schedule_id=row.schedule_id,
        name=row.name,
        version=row.version,
        spec=spec,
        paused=bool(row.paused),
        due_ms=row.due_ms,
        fires_ms=row.fires_ms,
        last_ms=row.last_ms,
        created_at_ms=row.created_at_ms,
        created_by=row.created_by,
    )


def stored_firing(row: Row[Any], effects: Iterable[Row[Any]]) -> Firing:
    """Return a firing from its row of `schedule_firings` and the rows of its effects (`schedule_effects`).

    Raise ScheduleUnreadable if the rows have a value that this version of the program does not know.
    """
    try:
        return _firing(row, effects)
    except ValueError as error:
        raise ScheduleUnreadable(
            f"the history of schedule {row.schedule_id} cannot be read at due time {row.due_ms}: {error}"
        ) from error


def _firing(row: Row[Any], effects: Iterable[Row[Any]]) -> Firing:
    return Firing(
        row.schedule_id,
        row.due_ms,
        row.at_ms,
        Verb(row.verb),
        FiringOutcome(row.outcome),
        row.detail,
        row.missed,
        row.until_ms,
        [
            CrawlEffect(
                each.crawl,
                None if each.crawl_id is None else CrawlId(each.crawl_id),
                FiringOutcome(each.outcome),
                each.detail,
                each.at_ms,
                each.command,
            )
            for each in effects
        ],
    )
