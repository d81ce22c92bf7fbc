"""The leader's transactions on schedules. At a due time, a schedule applies its verb (such as `start`) to crawls.

Several schedules may fire in one transaction, which has these steps:

- Check that no later leader has claimed the schedules, and lock the row that says so.
- Move each schedule to its next due time. Skip a schedule that was changed since the leader read it.
- Apply the verb to each crawl, with a line in the audit log.
- Add a line to the history of the schedule, with the schedule and the due time as its key.

So a due time has both its effect and its line in the history, or neither.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, exists, insert, select, text, tuple_, update

from shared.adapters.sql.catalog import access, declared
from shared.adapters.sql.catalog.schedule_rows import readable, stored_firing, stored_schedule
from shared.adapters.sql.engine.access_schema import schedule_effects, schedule_firings, schedules
from shared.adapters.sql.engine.bulk import updating
from shared.adapters.sql.engine.schema import crawl_labels, crawls
from shared.domain.crawl.state import DECIDED_BY_DESIRED, NoRecrawl, Verb
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Term
from shared.domain.reads.declared import Actor, DeclaredCrawl
from shared.domain.schedules.firing import Step, effect_of, outcome_of
from shared.domain.schedules.history import CrawlEffect, Firing, FiringOutcome, HistoryChange
from shared.domain.schedules.spec import BEGINS_RUN, Overlap, ScheduleSpec
from shared.domain.schedules.stored import (
    HISTORY,
    MAX_SELECTED,
    QueuedEffect,
    StoredSchedule,
    UnreadableSchedule,
    WaitingCommand,
)

_CLAIM: Final = text(
    "INSERT INTO leader_fence (id, term) VALUES (1, :term) ON CONFLICT (id)"
    " DO UPDATE SET term = excluded.term WHERE leader_fence.term <= excluded.term"
)
_PASS: Final = text("UPDATE leader_fence SET term = term WHERE id = 1 AND term = :term")
_MOVE: Final = updating(
    schedules,
    ("schedule_id",),
    ("due_ms", "fires_ms", "last_ms"),
    "due_ms = {v}due_ms, fires_ms = {v}fires_ms, last_ms = {v}last_ms",
)
_OLDEST: Final = text(
    "SELECT schedule_id, due_ms FROM (SELECT schedule_id, due_ms, row_number() OVER (PARTITION BY schedule_id"
    " ORDER BY due_ms DESC) AS place FROM schedule_firings WHERE schedule_id IN :schedule_ids) AS placed"
    f" WHERE place = {HISTORY + 1}"
).bindparams(bindparam("schedule_ids", expanding=True))
# The queries repeat the conditions of the partial indexes word for word, so that SQLite uses these, too.
_DUE: Final = text("NOT paused AND fires_ms <= :now")
_TO_PUBLISH: Final = text("command IS NOT NULL AND NOT commanded")
_NEXT: Final = text("SELECT min(fires_ms) FROM schedules WHERE NOT paused AND fires_ms IS NOT NULL")
_QUEUED: Final = text(
    "SELECT e.schedule_id, e.due_ms, e.crawl FROM schedule_effects e WHERE e.outcome = 'queued'"
    " AND EXISTS (SELECT 1 FROM schedules s WHERE s.schedule_id = e.schedule_id AND NOT s.paused)"
    " AND NOT EXISTS (SELECT 1 FROM crawls c WHERE c.name = e.crawl AND c.state <> 'deleted'"
    " AND c.state IN ('seeding', 'running', 'paused'))"
    " AND (e.crawl, e.schedule_id, e.due_ms) > (:crawl, :schedule_id, :due_ms)"
    " ORDER BY e.crawl, e.schedule_id, e.due_ms LIMIT :max_count"
)
_ALL_PUBLISHED: Final = text("(command IS NULL OR commanded)")
_WAITS: Final = text(
    "SELECT 1 FROM schedule_effects WHERE outcome = 'queued' AND crawl = :crawl AND schedule_id = :schedule_id LIMIT 1"
)


def claim(connection: Connection, term: Term) -> None:
    """Claim the schedules for the leader of `term`. Leaders of earlier terms can no longer write.

    Raise OwnershipLost if a leader of a later term has claimed them.
    """
    if connection.execute(_CLAIM, {"term": term}).rowcount != 1:
        raise OwnershipLost(f"schedules are fired under a term later than {term}")


def due(
    connection: Connection, now_ms: int, max_count: int, after: tuple[int, int] | None = None
) -> Sequence[StoredSchedule | UnreadableSchedule]:
    """Return up to `max_count` schedules that fire at `now_ms` or earlier, the earliest first.

    `after`: the place (time to fire, schedule id) after which to begin. None: at the first. A schedule whose spec this
    version cannot read is returned as UnreadableSchedule.
    """
    order = schedules.c.fires_ms, schedules.c.schedule_id
    query = select(schedules).where(_DUE).order_by(*order).limit(max_count)
    if after is not None:
        query = query.where(tuple_(*order) > after)
    return [readable(row) for row in connection.execute(query, {"now": now_ms})]


def next_fires_ms(connection: Connection) -> int | None:
    """Return the time (Unix ms) at which the next schedule fires, or None if no schedule has a time to fire."""
    return connection.execute(_NEXT).scalar()


def fire(
    connection: Connection, term: Term, stored: StoredSchedule, step: Step, now_ms: int, partitions: int
) -> HistoryChange | None:
    """Apply the verb of a schedule to its crawls, if `step` says so. Return the lines that are added to its history.

    `step` says which due times of the schedule are skipped as too late, which due time fires now, and which one comes
    next. Skipped due times are recorded in the history.

    Return None, and write nothing, if the schedule is no longer as `stored`. Raise OwnershipLost if a later leader has
    claimed the schedules. `partitions`: the number of partitions of the cluster.
    """
    return fire_all(connection, term, [(stored, step)], now_ms, partitions)[0]


def fire_all(
    connection: Connection, term: Term, steps: Sequence[tuple[StoredSchedule, Step]], now_ms: int, partitions: int
) -> Sequence[HistoryChange | None]:
    """Apply the verbs of several schedules to their crawls, in one transaction. Return a result for each of `steps`.

    A step says which due times of a schedule are skipped as too late, which due time fires now, and which one comes
    next. No two steps may have the same schedule.

    - If a schedule has changed since it was read: nothing is done for the schedule, and its result is None.
    - Otherwise: the result has the lines that are added to the history of the schedule.
    """
    pass_fence(connection, term)
    taken = take(connection, steps)
    known = known_lines(connection, taken)
    firing = [(stored, step.fires) for stored, step in taken if (stored.schedule_id, step.fires) not in known]
    named = {stored.schedule_id: crawls_of(connection, stored.spec) for stored, fires in firing if fires is not None}
    writing = Writing(connection, _locked(connection, named.values()), now_ms, partitions)
    made: dict[int, HistoryChange] = {}
    for stored, step in taken:
        firings: list[Firing] = []
        if step.missed and (stored.schedule_id, step.missed[0]) not in known:
            firings.append(missed_line(stored, step.missed, now_ms))
        if step.fires is not None and (names := named.get(stored.schedule_id)) is not None:
            firings.append(_apply(writing, stored, names, step.fires))
        made[stored.schedule_id] = HistoryChange(stored.name, firings)
    write_lines(connection, [firing for fired in made.values() for firing in fired.firings])
    _trim(connection, list(made))
    return [made.get(stored.schedule_id) for stored, _ in steps]


def queued(connection: Connection, max_count: int, after: tuple[str, int, int] | None = None) -> Sequence[QueuedEffect]:
    """Return up to `max_count` queued verbs that can be applied now, because the run of their crawl has ended.

    A schedule can queue its verb (`Overlap.QUEUE`) if the crawl is in a run at the due time. `after`: the place (crawl,
    schedule id, due time) after which to begin. None: at the first.
    """
    crawl, schedule_id, due_ms = after or ("", 0, 0)
    values = {"crawl": crawl, "schedule_id": schedule_id, "due_ms": due_ms, "max_count": max_count}
    return [QueuedEffect(*row) for row in connection.execute(_QUEUED, values)]


def fire_queued(
    connection: Connection, term: Term, waiting: QueuedEffect, now_ms: int, partitions: int
) -> HistoryChange | None:
    """Apply a queued verb to its crawl. Record the result in the history of the schedule that queued the verb.

    A schedule can queue its verb for a crawl that is in a run at the due time. `waiting` says which schedule, due time
    and crawl.

    The history has one line for each due time. The line has one outcome for all crawls of the schedule together. The
    outcome is `fired` once the verb was applied to one of the crawls, even if the verb is still queued for others. So
    the first verb that is applied changes the outcome, for example from `queued` to `fired`. The later ones do not
    change it.

    The result has the name of the schedule. The result also has the line if this call has changed the outcome of the
    line.

    Return None, and write nothing, in these cases:

    - The verb is no longer queued.
    - The schedule is paused or deleted.
    - Another run of the crawl has begun.

    Raise OwnershipLost if a later leader has claimed the schedules. Raise ScheduleUnreadable if a later version of this
    program wrote the schedule or the line.
    """
    pass_fence(connection, term)
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
    writing = Writing(connection, _locked(connection, [[waiting.crawl]]), now_ms, partitions)
    made = apply_verb(writing, stored, stored_firing(line, ()).verb, waiting.crawl, waiting.due_ms, waited=True)
    if made.outcome in (FiringOutcome.QUEUED, FiringOutcome.SKIPPED):  # another run of the crawl has begun
        return None
    connection.execute(update(effects).where(here).values(**effect_columns(made)))
    rows = connection.execute(select(effects).where(at).order_by(effects.c.crawl)).all()
    before = stored_firing(line, rows)
    outcome = outcome_of([each.outcome for each in before.effects])
    if outcome is before.outcome:  # with a selector, another of its crawls has changed the outcome before
        return HistoryChange(stored.name, [], waited=True)
    connection.execute(update(lines).where(of_firing).values(outcome=outcome))
    return HistoryChange(stored.name, [replace(before, outcome=outcome)], waited=True)


def commands(connection: Connection, after: tuple[int, int, str] | None, max_count: int) -> Sequence[WaitingCommand]:
    """Return up to `max_count` commands of schedules that are not recorded as published, ordered by place.

    `after`: the place (schedule id, due time, crawl) after which to begin. None: at the first.
    """
    table = schedule_effects
    place = table.c.schedule_id, table.c.due_ms, table.c.crawl
    query = select(table).where(_TO_PUBLISH).order_by(*place).limit(max_count)
    if after is not None:
        query = query.where(tuple_(*place) > after)
    return [
        WaitingCommand(row.schedule_id, row.due_ms, row.crawl, CrawlId(row.crawl_id), row.command)
        for row in connection.execute(query)
    ]


def commanded(connection: Connection, command: WaitingCommand) -> None:
    """Record that a command of a schedule was published, in the row of `schedule_effects` that has this command.

    If the schedule was deleted before, delete this row: it was only kept until the command was published.
    """
    table = schedule_effects
    here = (table.c.schedule_id == command.schedule_id) & (table.c.due_ms == command.due_ms)
    connection.execute(update(table).where(here, table.c.crawl == command.crawl).values(commanded=True))
    of_schedule = select(schedules.c.schedule_id).where(schedules.c.schedule_id == command.schedule_id)
    connection.execute(delete(table).where(here, table.c.crawl == command.crawl, ~exists(of_schedule)))


def forget(connection: Connection, schedule_id: int) -> None:
    """Delete a schedule with its history. Keep the rows of commands that are not published yet."""
    effects = schedule_effects
    for table in (schedules, schedule_firings):
        connection.execute(delete(table).where(table.c.schedule_id == schedule_id))
    connection.execute(delete(effects).where(effects.c.schedule_id == schedule_id, _ALL_PUBLISHED))


def pass_fence(connection: Connection, term: Term) -> None:
    if connection.execute(_PASS, {"term": term}).rowcount != 1:
        raise OwnershipLost(f"schedules are no longer fired under term {term}")


def take(connection: Connection, steps: Sequence[tuple[StoredSchedule, Step]]) -> Sequence[tuple[StoredSchedule, Step]]:
    """Set the next due time of each schedule as its step says. Return the entries of `steps` for which this was done.

    A step says which due times of a schedule are skipped as too late, which due time fires now, and which one comes
    next.

    Skip a schedule that was changed, paused or deleted since it was read. The others stay locked until the transaction
    ends.
    """
    table = schedules
    query = select(table.c.schedule_id, table.c.version, table.c.due_ms, table.c.paused)
    query = query.where(table.c.schedule_id.in_([stored.schedule_id for stored, _ in steps]))
    # Like the fence, the lock is for PostgreSQL: SQLite has one writer.
    rows = connection.execute(query.order_by(table.c.schedule_id).with_for_update())
    present = {row.schedule_id: (row.version, row.due_ms) for row in rows if not row.paused}
    taken = [each for each in steps if present.get(each[0].schedule_id) == (each[0].version, each[0].due_ms)]
    moves = [
        (
            step.next_ms,
            step.next_fires_ms,
            step.missed[-1] if step.fires is None else step.fires,
            stored.schedule_id,
        )
        for stored, step in taken
    ]
    _MOVE.run(connection, moves)
    return taken


def known_lines(connection: Connection, steps: Sequence[tuple[StoredSchedule, Step]]) -> Collection[tuple[int, int]]:
    """Return the due times of `steps` that are already in the histories of their schedules, as (schedule id, time).

    These due times were handled before, so the caller must not handle them again.
    """
    # One line records all missed due times of a step, with the first as its key. So only the first is looked up.
    table = schedule_firings
    first = [(stored.schedule_id, step.missed[0]) for stored, step in steps if step.missed]
    fires = [(stored.schedule_id, step.fires) for stored, step in steps if step.fires is not None]
    query = select(table.c.schedule_id, table.c.due_ms).where(
        tuple_(table.c.schedule_id, table.c.due_ms).in_([*first, *fires])
    )
    return {(row.schedule_id, row.due_ms) for row in connection.execute(query)}


@dataclass(frozen=True, slots=True)
class Writing:
    """The context of a transaction that applies the verbs of schedules.

    - `crawls`: the crawls that the transaction has locked, by name. After a verb, the changed crawl is stored here.
    - `partitions`: the number of partitions of the cluster.
    """

    connection: Connection
    crawls: dict[str, DeclaredCrawl]
    now_ms: int
    partitions: int


def _locked(connection: Connection, names: Iterable[Sequence[str]]) -> dict[str, DeclaredCrawl]:
    """Lock the crawls of several schedules, and return them by name. `names` has the crawls of each schedule.

    Crawls of a schedule with more than MAX_SELECTED crawls are not locked. Their verb is refused later.
    """
    wanted = {name for each in names if len(each) <= MAX_SELECTED for name in each}
    return dict(declared.locked(connection, sorted(wanted)))


def _apply(writing: Writing, stored: StoredSchedule, names: Sequence[str], due_ms: int) -> Firing:
    """Apply the verb of the schedule to its crawls `names`. Return a line for its history, with each crawl's effect.

    If there are no crawls, or more than MAX_SELECTED, apply nothing. The outcome in the line is then REFUSED.
    """
    if not names or len(names) > MAX_SELECTED:
        detail = f"the selector has more than {MAX_SELECTED} crawls: narrow it" if names else "no crawl has the labels"
        return history_line(stored, due_ms, writing.now_ms, FiringOutcome.REFUSED, detail)
    effects = [apply_verb(writing, stored, stored.spec.verb, name, due_ms) for name in names]
    outcome = outcome_of([each.outcome for each in effects])
    return replace(history_line(stored, due_ms, writing.now_ms, outcome), effects=effects)


def missed_line(stored: StoredSchedule, missed: Sequence[int], now_ms: int) -> Firing:
    """Return the entry of the schedule's history for the due times `missed`, which were skipped as too late."""
    detail = f"more than {stored.spec.late_s} s too late"
    line = history_line(stored, missed[0], now_ms, FiringOutcome.MISSED, detail)
    return replace(line, missed=len(missed), until_ms=missed[-1])


def history_line(stored: StoredSchedule, due_ms: int, at_ms: int, outcome: FiringOutcome, detail: str = "") -> Firing:
    """Return the entry of the schedule's history for one due time. The caller adds its effects on crawls.

    `outcome` is what became of the due time. `at_ms` is when that was decided.
    """
    return Firing(stored.schedule_id, due_ms, at_ms, stored.spec.verb, outcome, detail, 0, due_ms)


def apply_verb(
    writing: Writing, stored: StoredSchedule, verb: Verb, name: str, due_ms: int, *, waited: bool = False
) -> CrawlEffect:
    """Apply the verb to the crawl `name`, and return the effect: fired, queued, skipped or refused.

    A refused effect has the reason, such as a crawl that does not exist. The verb RETRY_FAILED also requests its
    command. `waited`: True if this effect was queued before and is carried out now.
    """
    connection, now_ms = writing.connection, writing.now_ms
    actor = Actor(f"schedule-{stored.schedule_id}", f"schedule {stored.name}", f"{stored.schedule_id}-{due_ms}")
    crawl = writing.crawls.get(name)
    if crawl is None:
        return CrawlEffect(name, None, FiringOutcome.REFUSED, f"there is no crawl {name!r}", now_ms)
    if crawl.desired is not None and verb in DECIDED_BY_DESIRED:
        detail = f"the crawl declares `desired: {crawl.desired}`, so no schedule applies {verb} to it"
        return CrawlEffect(name, crawl.crawl_id, FiringOutcome.REFUSED, detail, now_ms)
    waits = not waited and _has_queued(connection, stored, verb, name)
    effect = effect_of(verb, stored.spec.overlap, crawl.status, waiting=waits)
    if effect.outcome is not FiringOutcome.FIRED:
        return CrawlEffect(name, crawl.crawl_id, effect.outcome, effect.detail, now_ms)
    try:
        writing.crawls[name] = declared.turn_locked(connection, crawl, verb, actor=actor, now_ms=now_ms)
    except NoRecrawl as error:
        return CrawlEffect(name, crawl.crawl_id, FiringOutcome.REFUSED, str(error), now_ms)
    command = None
    if verb is Verb.RETRY_FAILED:
        command = f"retry-{stored.schedule_id}-{due_ms}-{crawl.crawl_id}"
        kind = CommandKind.RETRY_FAILED
        access.ask(connection, command, crawl.crawl_id, kind, "{}", writing.partitions, actor=actor, now_ms=now_ms)
    return CrawlEffect(name, crawl.crawl_id, FiringOutcome.FIRED, "", now_ms, command)


def _has_queued(connection: Connection, stored: StoredSchedule, verb: Verb, crawl: str) -> bool:
    """Return True if `verb` must not be queued for `crawl`, because the schedule has already queued one for it.

    A schedule queues at most one verb for each crawl. The verb that is queued already may be a different one.

    Return False otherwise, and always if `verb` is one that is never queued. A verb is queued only if the schedule has
    the setting `Overlap.QUEUE` and the verb begins a run of a crawl, such as `start`.
    """
    if stored.spec.overlap is not Overlap.QUEUE or verb not in BEGINS_RUN:
        return False
    return connection.execute(_WAITS, {"crawl": crawl, "schedule_id": stored.schedule_id}).first() is not None


def crawls_of(connection: Connection, spec: ScheduleSpec) -> Sequence[str]:
    """Return the names of the crawls of a schedule: the one that its spec names, or all that have its labels.

    Return at most MAX_SELECTED + 1 names. More than MAX_SELECTED mean that the schedule selects too many.
    """
    if spec.crawl is not None:
        return [spec.crawl]
    query = select(crawls.c.name).where(crawls.c.state != CrawlState.DELETED)
    for label, value in spec.selector.items():
        of_crawl = (crawl_labels.c.crawl_id == crawls.c.crawl_id) & (crawl_labels.c.label == label)
        query = query.where(exists().where(of_crawl & (crawl_labels.c.value == value)))
    return connection.execute(query.order_by(crawls.c.name).limit(MAX_SELECTED + 1)).scalars().all()


def write_lines(connection: Connection, lines: Sequence[Firing]) -> None:
    """Insert lines into the histories of their schedules. Also insert a row for each effect on a crawl in a line.

    This only records the effects. The crawls are not changed.
    """
    columns = ("schedule_id", "due_ms", "at_ms", "verb", "outcome", "detail", "missed", "until_ms")
    if lines:
        connection.execute(
            insert(schedule_firings), [{name: getattr(line, name) for name in columns} for line in lines]
        )
    effects = [
        {"schedule_id": line.schedule_id, "due_ms": line.due_ms} | effect_columns(each)
        for line in lines
        for each in line.effects
    ]
    if effects:
        connection.execute(insert(schedule_effects), effects)


def _trim(connection: Connection, schedule_ids: Sequence[int]) -> None:
    """Delete old lines from the histories of these schedules. Keep the newest HISTORY lines of each.

    Also keep a line while its verb is queued for a crawl, or while one of its commands is not published.
    """
    rows = connection.execute(_OLDEST, {"schedule_ids": schedule_ids}).all()
    if not rows:
        return
    effects, lines = schedule_effects, schedule_firings
    oldest = [{"schedule": row.schedule_id, "oldest_ms": row.due_ms} for row in rows]
    old = (effects.c.schedule_id == bindparam("schedule")) & (effects.c.due_ms <= bindparam("oldest_ms"))
    connection.execute(delete(effects).where(old, effects.c.outcome != FiringOutcome.QUEUED, _ALL_PUBLISHED), oldest)
    left = exists().where(effects.c.schedule_id == lines.c.schedule_id, effects.c.due_ms == lines.c.due_ms)
    old = (lines.c.schedule_id == bindparam("schedule")) & (lines.c.due_ms <= bindparam("oldest_ms"))
    connection.execute(delete(lines).where(old, ~left), oldest)


def effect_columns(made: CrawlEffect) -> dict[str, Any]:
    return {
        "crawl": made.crawl,
        "crawl_id": made.crawl_id,
        "outcome": made.outcome,
        "detail": made.detail,
        "at_ms": made.at_ms,
        "command": made.command,
    }
