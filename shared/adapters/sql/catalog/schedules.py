"""Schedules as operators declare them, on SQL. The module `firings` has the leader's transactions on them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from shared.adapters.sql.catalog import access, firings
from shared.adapters.sql.catalog.schedule_rows import readable, stored_firing, stored_schedule
from shared.adapters.sql.engine.access_schema import schedule_effects, schedule_firings, schedules
from shared.adapters.sql.engine.executor import SqlAdapter, polled, read, write
from shared.domain.reads.declared import Actor, Repeatable
from shared.domain.schedules.history import Firing
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import (
    MAX_SCHEDULES,
    StoredSchedule,
    UnreadableSchedule,
    encode_schedule,
    schedule_tag,
)
from shared.domain.schedules.times import fires_at, next_due
from shared.ports.catalog import Exists, Full, Missing, Stale


def one(connection: Connection, name: str) -> StoredSchedule:
    """Return the schedule of this name. Raise Missing if there is none."""
    row = _find(connection, name)
    if row is None:
        raise _missing(name)
    return stored_schedule(row)


def listing(
    connection: Connection, *, after: str, max_count: int, crawl: str | None = None
) -> Sequence[StoredSchedule | UnreadableSchedule]:
    """Return up to `max_count` schedules after the name `after`, ordered by name.

    A schedule whose spec this version cannot read is returned as UnreadableSchedule.
    With `crawl`, return only schedules that name this crawl, not those that select it by labels.
    """
    query = select(schedules).where(schedules.c.name > after).order_by(schedules.c.name).limit(max_count)
    if crawl is not None:
        query = query.where(schedules.c.crawl == crawl)
    return [readable(row) for row in connection.execute(query)]


def create(
    connection: Connection,
    name: str,
    spec: ScheduleSpec,
    *,
    paused: bool,
    actor: Actor,
    now_ms: int,
    repeatable: Repeatable | None = None,
) -> StoredSchedule:
    """Create a schedule and return it. Its first due time comes after `now_ms`.

    Raise Exists if the name is taken, Full at MAX_SCHEDULES. A repeat of the request `repeatable` returns the schedule
    as it was created. Raise ReusedKey if the idempotency key was used for another request.
    """
    access.lock_creation(connection, schedules)
    taken = _find(connection, name) is not None
    if repeatable is not None and (before := access.answered(connection, actor, repeatable, now_ms)) is not None:
        return msgspec.json.decode(before, type=StoredSchedule)
    if taken:
        raise Exists(f"there is a schedule {name!r} already")
    if connection.execute(select(func.count()).select_from(schedules)).scalar_one() >= MAX_SCHEDULES:
        raise Full(
            f"there are {MAX_SCHEDULES} schedules already, as many as there may be",
            "delete schedules that are no longer needed",
        )
    due_ms = next_due(spec, now_ms)
    values: dict[str, Any] = {"name": name, "version": 1, "paused": paused, "due_ms": due_ms, **_spec_columns(spec)}
    created: dict[str, Any] = {"created_at_ms": now_ms, "created_by": str(actor)}
    query = insert(schedules).values(**values, **created).returning(schedules.c.schedule_id)
    schedule_id = int(connection.execute(query).scalar_one())
    _set_times(connection, schedule_id, spec, due_ms)
    made = one(connection, name)
    access.record(connection, actor, "schedule.create", name, None, _described(encode_schedule(spec), paused), now_ms)
    if repeatable is not None:
        access.answer(connection, actor, repeatable, msgspec.json.encode(made).decode(), now_ms)
    return made


def put(
    connection: Connection,
    name: str,
    spec: ScheduleSpec,
    *,
    paused: bool,
    expected: frozenset[str] | None,
    actor: Actor,
    now_ms: int,
    new: bool = False,
) -> tuple[StoredSchedule, bool]:
    """Create the schedule or replace it. Return it, and True if it was created.

    `expected`: tags (HTTP ETags). Raise Stale if the schedule has none of them, Missing if it does not exist. None: no
    condition. `new`: raise Stale if the schedule exists already. Raise Full if there are MAX_SCHEDULES already. Write
    nothing if neither `spec` nor `paused` differs. A schedule that cannot be read is replaced.
    """
    row = _find(connection, name, lock=True)
    if row is None and expected is not None:
        raise _missing(name)
    if row is None:
        access.lock_creation(connection, schedules)
        row = _find(connection, name, lock=True)  # another transaction may have created it meanwhile
    if row is None:
        return create(connection, name, spec, paused=paused, actor=actor, now_ms=now_ms), True
    _check(row, frozenset() if new else expected)
    stored = readable(row)
    before = stored.spec if isinstance(stored, StoredSchedule) else None
    if isinstance(stored, StoredSchedule) and (before, stored.paused) == (spec, paused):
        return stored, False
    return _replace(connection, row, before, spec, paused, "schedule.replace", actor, now_ms), False


def pause(
    connection: Connection, name: str, *, paused: bool, expected: frozenset[str] | None, actor: Actor, now_ms: int
) -> StoredSchedule:
    """Pause the schedule, or resume it if `paused` is False. Return it. A repeat changes nothing.

    Raise Missing if there is no such schedule, and Stale if its HTTP ETag is not in `expected` (None: no condition).
    """
    row = _find(connection, name, lock=True)
    if row is None:
        raise _missing(name)
    _check(row, expected)
    stored = stored_schedule(row)
    if stored.paused == paused:
        return stored
    action = "schedule.pause" if paused else "schedule.resume"
    return _replace(connection, row, stored.spec, stored.spec, paused, action, actor, now_ms)


def remove(connection: Connection, name: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int) -> None:
    """Delete the schedule with its history. Raise Missing if there is none.

    Raise Stale if the schedule's HTTP ETag is not in `expected` (None: no condition).
    """
    row = _find(connection, name, lock=True)
    if row is None:
        raise _missing(name)
    _check(row, expected)
    firings.forget(connection, row.schedule_id)
    access.record(connection, actor, "schedule.delete", name, _described(row.spec, row.paused), None, now_ms)


def history(connection: Connection, schedule_id: int, *, before_ms: int, max_count: int) -> Sequence[Firing]:
    """Return up to `max_count` firings with due times before `before_ms` (Unix ms), newest first."""
    table = schedule_firings
    here = (table.c.schedule_id == schedule_id) & (table.c.due_ms < before_ms)
    rows = connection.execute(select(table).where(here).order_by(table.c.due_ms.desc()).limit(max_count)).all()
    times = [row.due_ms for row in rows]
    effects = schedule_effects
    query = select(effects).where(effects.c.schedule_id == schedule_id, effects.c.due_ms.in_(times))
    by_due: dict[int, list[Row[Any]]] = {}
    for row in connection.execute(query.order_by(effects.c.crawl)):
        by_due.setdefault(row.due_ms, []).append(row)
    return [stored_firing(row, by_due.get(row.due_ms, ())) for row in rows]


def _replace(
    connection: Connection,
    row: Row[Any],
    before: ScheduleSpec | None,
    spec: ScheduleSpec,
    paused: bool,
    action: str,
    actor: Actor,
    now_ms: int,
) -> StoredSchedule:
    """Store a new version of the schedule, and write it to the audit log under `action`. Return it.

    `row`: the schedule's row. `before`: its present spec, None if it cannot be read.

    Compute the next due time anew if the timing changes, the schedule was paused, or `before` is None.
    """
    here = schedules.c.schedule_id == row.schedule_id
    columns = _spec_columns(spec)
    connection.execute(update(schedules).where(here).values(version=row.version + 1, paused=paused, **columns))
    if row.paused or before is None or spec.timing != before.timing:
        # If the clock was set back, `last_ms` is later than now: a due time that was handled does not come again.
        _set_times(connection, row.schedule_id, spec, next_due(spec, max(now_ms, row.last_ms)))
    described = _described(row.spec, row.paused), _described(columns["spec"], paused)
    access.record(connection, actor, action, row.name, *described, now_ms)
    return one(connection, row.name)


def _spec_columns(spec: ScheduleSpec) -> dict[str, Any]:
    return {"spec": encode_schedule(spec), "crawl": spec.crawl}


def _set_times(connection: Connection, schedule_id: int, spec: ScheduleSpec, due_ms: int | None) -> None:
    at = None if due_ms is None else fires_at(spec, schedule_id, due_ms)
    here = schedules.c.schedule_id == schedule_id
    connection.execute(update(schedules).where(here).values(due_ms=due_ms, fires_ms=at))


def _find(connection: Connection, name: str, *, lock: bool = False) -> Row[Any] | None:
    query = select(schedules).where(schedules.c.name == name)
    # SQLite has one writer and no row locks. On PostgreSQL two operators of one schedule take turns on its row.
    return connection.execute(query.with_for_update() if lock else query).first()


def _missing(name: str) -> Missing:
    return Missing(f"there is no schedule {name!r}")


def _check(row: Row[Any], expected: frozenset[str] | None) -> None:
    tag = schedule_tag(row.schedule_id, row.version)
    if expected is not None and tag not in expected:
        raise Stale(tag)


def _described(spec: str, paused: bool) -> str:
    """Return the declaration of a schedule as JSON for the audit log: its spec and whether it is paused.

    `spec`: the spec as JSON, which a later version may have written.
    """
    declared: dict[str, Any] = msgspec.json.decode(spec)
    return msgspec.json.encode(declared | {"paused": bool(paused)}).decode()


class SqlSchedules(SqlAdapter):
    """Schedules and their history, on SQL (`shared.ports.schedules.Schedules`)."""

    schedule = read(one)
    listing = read(listing)
    create = write(create)
    put = write(put)
    pause = write(pause)
    delete = write(remove)
    history = read(history)
    claim = write(firings.claim)
    due = read(firings.due)
    next_fires_ms = polled(firings.next_fires_ms)
    fire = write(firings.fire)
    fire_all = write(firings.fire_all)
    queued = polled(firings.queued)
    fire_queued = write(firings.fire_queued)
    commands = polled(firings.commands)
    commanded = write(firings.commanded)
