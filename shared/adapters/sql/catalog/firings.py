"""The leader's transactions on schedules: what is due, and what becomes of it.

A firing is one transaction. Its first statement is the fence: it locks the row of the newest term, so a deposed leader
writes nothing. The second moves the schedule to its next due time, on condition that the stored one is still that which
was decided on. Then come the line of the history, whose key is the schedule and the due time, and the verb itself with
its line of the audit log. So a due time has its effect and its line, or neither.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, exists, insert, select, text, update

from shared.adapters.sql.catalog import access, declared
from shared.adapters.sql.engine.access_schema import schedule_effects, schedule_firings, schedules
from shared.adapters.sql.engine.schema import crawl_labels, crawls
from shared.domain.crawl.state import CrawlStatus, IllegalTransition, Verb
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Term
from shared.domain.reads.declared import Actor
from shared.domain.schedules.firing import Step, effect_of, outcome_of
from shared.domain.schedules.history import CrawlEffect, Fired, Firing, FiringOutcome
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import (
    HISTORY,
    MAX_SELECTED,
    QueuedEffect,
    StoredSchedule,
    UnreadableSchedule,
    WaitingCommand,
    decode_schedule,
)
from shared.ports.catalog import Missing

_CLAIM: Final = text(
    "INSERT INTO leader_fence (id, term) VALUES (1, :term) ON CONFLICT (id)"
    " DO UPDATE SET term = excluded.term WHERE leader_fence.term <= excluded.term"
)
_PASS: Final = text("UPDATE leader_fence SET term = term WHERE id = 1 AND term = :term")
_TAKE: Final = text(
    "UPDATE schedules SET due_ms = :next_ms, fires_ms = :next_fires_ms, last_ms = :last_ms"
    " WHERE schedule_id = :schedule_id AND version = :version AND due_ms = :due_ms AND NOT paused"
)
_LINE: Final = text(
    "INSERT INTO schedule_firings (schedule_id, due_ms, at_ms, verb, outcome, detail, missed, until_ms)"
    " VALUES (:schedule_id, :due_ms, :at_ms, :verb, :outcome, :detail, :missed, :until_ms)"
    " ON CONFLICT (schedule_id, due_ms) DO NOTHING"
)
_OLDEST: Final = text(
    "SELECT due_ms FROM schedule_firings WHERE schedule_id = :schedule_id ORDER BY due_ms DESC LIMIT 1 OFFSET :kept"
)
# The queries repeat the conditions of the partial indexes word for word, so that SQLite uses these, too.
_DUE: Final = text("NOT paused AND fires_ms <= :now")
_TO_PUBLISH: Final = text("command IS NOT NULL AND NOT commanded")
_NEXT: Final = text("SELECT min(fires_ms) FROM schedules WHERE NOT paused AND fires_ms IS NOT NULL")
_QUEUED: Final = text(
    "SELECT e.schedule_id, e.due_ms, e.crawl FROM schedule_effects e WHERE e.outcome = 'queued'"
    " AND EXISTS (SELECT 1 FROM schedules s WHERE s.schedule_id = e.schedule_id AND NOT s.paused)"
    " AND NOT EXISTS (SELECT 1 FROM crawls c WHERE c.name = e.crawl AND c.state <> 'deleted'"
    " AND c.state IN ('seeding', 'running', 'paused'))"
    " ORDER BY e.crawl, e.schedule_id, e.due_ms LIMIT :max_count"
)
_ALL_PUBLISHED: Final = text("(command IS NULL OR commanded)")
_WAITS: Final = text(
    "SELECT 1 FROM schedule_effects WHERE outcome = 'queued' AND crawl = :crawl AND schedule_id = :schedule_id LIMIT 1"
)


def claim(connection: Connection, term: Term) -> None:
    """Let only leaders of `term` or later write (Schedules.claim)."""
    if connection.execute(_CLAIM, {"term": term}).rowcount != 1:
        raise OwnershipLost(f"schedules are fired under a term later than {term}")


def due(connection: Connection, now_ms: int, max_count: int) -> Sequence[StoredSchedule | UnreadableSchedule]:
    """Return the schedules that fire at `now_ms` or earlier, the earliest first (Schedules.due)."""
    order = schedules.c.fires_ms, schedules.c.schedule_id
    query = select(schedules).where(_DUE).order_by(*order).limit(max_count)
    return [_readable(row) for row in connection.execute(query, {"now": now_ms})]


def next_fires_ms(connection: Connection) -> int | None:
    """Return when the next schedule fires, None if none does (Schedules.next_fires_ms)."""
    return connection.execute(_NEXT).scalar()


def fire(
    connection: Connection, term: Term, stored: StoredSchedule, step: Step, now_ms: int, partitions: int
) -> Fired | None:
    """Carry out a step of a schedule (Schedules.fire)."""
    _pass(connection, term)
    last_ms = step.missed[-1] if step.fires is None else step.fires
    taken = {"next_ms": step.next_ms, "next_fires_ms": step.next_fires_ms, "last_ms": last_ms}
    here = {"schedule_id": stored.schedule_id, "version": stored.version, "due_ms": stored.due_ms}
    if connection.execute(_TAKE, here | taken).rowcount != 1:
        return None
    firings: list[Firing] = []
    if step.missed:
        detail = f"more than {stored.spec.late_s} s too late"
        missed, until_ms = len(step.missed), step.missed[-1]
        line = _line(stored, step.missed[0], now_ms, FiringOutcome.MISSED, detail, missed, until_ms)
        if _write(connection, line):
            firings.append(line)
    if step.fires is not None:
        line = _line(stored, step.fires, now_ms, FiringOutcome.REFUSED, "", 0, step.fires)
        if _write(connection, line):
            firings.append(_apply(connection, stored, line, now_ms, partitions))
    _trim(connection, stored.schedule_id)
    return Fired(stored.name, firings)


def queued(connection: Connection, max_count: int) -> Sequence[QueuedEffect]:
    """Return effects that waited for the end of a run that is over now (Schedules.queued)."""
    return [QueuedEffect(*row) for row in connection.execute(_QUEUED, {"max_count": max_count})]


def fire_queued(
    connection: Connection, term: Term, waiting: QueuedEffect, now_ms: int, partitions: int
) -> Fired | None:
    """Carry out an effect that waited (Schedules.fire_queued)."""
    _pass(connection, term)
    effects, lines = schedule_effects, schedule_firings
    of_firing = (lines.c.schedule_id == waiting.schedule_id) & (lines.c.due_ms == waiting.due_ms)
    at = (effects.c.schedule_id == waiting.schedule_id) & (effects.c.due_ms == waiting.due_ms)
    here = at & (effects.c.crawl == waiting.crawl)
    still = connection.execute(select(effects.c.crawl).where(here, effects.c.outcome == FiringOutcome.QUEUED)).first()
    row = connection.execute(select(schedules).where(schedules.c.schedule_id == waiting.schedule_id)).first()
    line = connection.execute(select(lines).where(of_firing)).first()
    if still is None or row is None or line is None or row.paused:
        return None
    stored = stored_schedule(row)
    made = _on_crawl(connection, stored, Verb(line.verb), waiting.crawl, waiting.due_ms, now_ms, partitions, True)
    if made.outcome in (FiringOutcome.QUEUED, FiringOutcome.SKIPPED):  # another run of the crawl has begun
        return None
    connection.execute(update(effects).where(here).values(**_effect_columns(made)))
    all_effects = connection.execute(select(effects.c.outcome).where(at)).scalars()
    outcome = outcome_of([FiringOutcome(each) for each in all_effects])
    connection.execute(update(lines).where(of_firing).values(outcome=outcome))
    line = connection.execute(select(lines).where(of_firing)).one()
    rows = connection.execute(select(effects).where(here)).all()
    return Fired(stored.name, [stored_firing(line, rows)])


def commands(connection: Connection, max_count: int) -> Sequence[WaitingCommand]:
    """Return commands that are not published for certain (Schedules.commands)."""
    table = schedule_effects
    query = select(table).where(_TO_PUBLISH).order_by(table.c.schedule_id, table.c.due_ms).limit(max_count)
    return [
        WaitingCommand(row.schedule_id, row.due_ms, row.crawl, CrawlId(row.crawl_id), row.command)
        for row in connection.execute(query)
    ]


def commanded(connection: Connection, command: WaitingCommand) -> None:
    """Record that a command was published (Schedules.commanded). Of a deleted schedule nothing is kept then."""
    table = schedule_effects
    here = (table.c.schedule_id == command.schedule_id) & (table.c.due_ms == command.due_ms)
    connection.execute(update(table).where(here, table.c.crawl == command.crawl).values(commanded=True))
    of_schedule = select(schedules.c.schedule_id).where(schedules.c.schedule_id == command.schedule_id)
    connection.execute(delete(table).where(here, table.c.crawl == command.crawl, ~exists(of_schedule)))


def forget(connection: Connection, schedule_id: int) -> None:
    """Delete a schedule with its history, except for commands that are not published yet."""
    effects = schedule_effects
    for table in (schedules, schedule_firings):
        connection.execute(delete(table).where(table.c.schedule_id == schedule_id))
    connection.execute(delete(effects).where(effects.c.schedule_id == schedule_id, _ALL_PUBLISHED))


def stored_schedule(row: Row[Any]) -> StoredSchedule:
    """Return the schedule of a row."""
    return StoredSchedule(
        schedule_id=row.schedule_id,
        name=row.name,
        version=row.version,
        spec=decode_schedule(row.spec),
        paused=bool(row.paused),
        due_ms=row.due_ms,
        fires_ms=row.fires_ms,
        last_ms=row.last_ms,
        created_at_ms=row.created_at_ms,
        created_by=row.created_by,
    )


def _readable(row: Row[Any]) -> StoredSchedule | UnreadableSchedule:
    try:
        return stored_schedule(row)
    except msgspec.MsgspecError as error:
        return UnreadableSchedule(row.schedule_id, row.name, f"its spec cannot be read: {error}")


def stored_firing(row: Row[Any], effects: Iterable[Row[Any]]) -> Firing:
    """Return the line of the history of a row and the rows of its effects."""
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


def _pass(connection: Connection, term: Term) -> None:
    if connection.execute(_PASS, {"term": term}).rowcount != 1:
        raise OwnershipLost(f"schedules are no longer fired under term {term}")


def _apply(connection: Connection, stored: StoredSchedule, line: Firing, now_ms: int, partitions: int) -> Firing:
    """Apply the verb of a firing to its crawls. Return its line with what became of each."""
    names = _crawls_of(connection, stored.spec)
    if not names or len(names) > MAX_SELECTED:
        detail = f"the selector has more than {MAX_SELECTED} crawls: narrow it" if names else "no crawl has the labels"
        made, effects = FiringOutcome.REFUSED, []
    else:
        detail, verb = "", stored.spec.verb
        effects = [_on_crawl(connection, stored, verb, name, line.due_ms, now_ms, partitions, False) for name in names]
        key = {"schedule_id": stored.schedule_id, "due_ms": line.due_ms}
        connection.execute(insert(schedule_effects), [key | _effect_columns(each) for each in effects])
        made = outcome_of([each.outcome for each in effects])
    done = Firing(line.schedule_id, line.due_ms, now_ms, line.verb, made, detail, 0, line.due_ms, effects)
    table = schedule_firings
    here = (table.c.schedule_id == line.schedule_id) & (table.c.due_ms == line.due_ms)
    connection.execute(update(table).where(here).values(outcome=made, detail=detail))
    return done


def _on_crawl(
    connection: Connection,
    stored: StoredSchedule,
    verb: Verb,
    name: str,
    due_ms: int,
    now_ms: int,
    partitions: int,
    waited: bool,
) -> CrawlEffect:
    """Apply the verb to one crawl, if its state allows that. `waited`: this effect itself waited for the crawl."""
    actor = Actor(f"schedule-{stored.schedule_id}", f"schedule {stored.name}", f"{stored.schedule_id}-{due_ms}")
    try:
        crawl = declared.locked(connection, name)
        status = CrawlStatus(crawl.state, crawl.resumes_as, crawl.finished_reason)
        key = {"crawl": name, "schedule_id": stored.schedule_id}
        waits = not waited and connection.execute(_WAITS, key).first() is not None
        effect = effect_of(verb, stored.spec.overlap, status, waiting=waits)
        if effect.outcome is not FiringOutcome.FIRED:
            return CrawlEffect(name, crawl.crawl_id, effect.outcome, effect.detail, now_ms)
        declared.turn(connection, name, verb, expected=None, actor=actor, now_ms=now_ms)
    except (Missing, IllegalTransition) as error:  # nothing is written by then
        return CrawlEffect(name, None, FiringOutcome.REFUSED, f"{error}", now_ms)
    command = None
    if verb is Verb.RETRY_FAILED:
        command = f"retry-{stored.schedule_id}-{due_ms}-{crawl.crawl_id}"
        kind = CommandKind.RETRY_FAILED
        access.ask(connection, command, crawl.crawl_id, kind, "{}", partitions, actor=actor, now_ms=now_ms)
    return CrawlEffect(name, crawl.crawl_id, FiringOutcome.FIRED, "", now_ms, command)


def _crawls_of(connection: Connection, spec: ScheduleSpec) -> Sequence[str]:
    """Return the names of the crawls of a schedule, at most one more than may be selected."""
    if spec.crawl is not None:
        return [spec.crawl]
    query = select(crawls.c.name).where(crawls.c.state != CrawlState.DELETED)
    for label, value in spec.selector.items():
        of_crawl = (crawl_labels.c.crawl_id == crawls.c.crawl_id) & (crawl_labels.c.label == label)
        query = query.where(exists().where(of_crawl & (crawl_labels.c.value == value)))
    return connection.execute(query.order_by(crawls.c.name).limit(MAX_SELECTED + 1)).scalars().all()


def _line(
    stored: StoredSchedule, due_ms: int, at_ms: int, outcome: FiringOutcome, detail: str, missed: int, until_ms: int
) -> Firing:
    return Firing(stored.schedule_id, due_ms, at_ms, stored.spec.verb, outcome, detail, missed, until_ms)


def _write(connection: Connection, line: Firing) -> bool:
    """Add a line of the history. Return False if the due time has one."""
    columns = ("schedule_id", "due_ms", "at_ms", "verb", "outcome", "detail", "missed", "until_ms")
    return connection.execute(_LINE, {name: getattr(line, name) for name in columns}).rowcount == 1


def _trim(connection: Connection, schedule_id: int) -> None:
    """Delete the lines of the history beyond those that are kept, except for what is still to be done."""
    oldest = connection.execute(_OLDEST, {"schedule_id": schedule_id, "kept": HISTORY}).scalar()
    if oldest is None:
        return
    effects, lines = schedule_effects, schedule_firings
    old = (effects.c.schedule_id == schedule_id) & (effects.c.due_ms <= oldest)
    connection.execute(delete(effects).where(old, effects.c.outcome != FiringOutcome.QUEUED, _ALL_PUBLISHED))
    left = exists().where(effects.c.schedule_id == lines.c.schedule_id, effects.c.due_ms == lines.c.due_ms)
    connection.execute(delete(lines).where(lines.c.schedule_id == schedule_id, lines.c.due_ms <= oldest, ~left))


def _effect_columns(made: CrawlEffect) -> dict[str, Any]:
    return {
        "crawl": made.crawl,
        "crawl_id": made.crawl_id,
        "outcome": made.outcome,
        "detail": made.detail,
        "at_ms": made.at_ms,
        "command": made.command,
    }
