"""Reads for monitoring the whole cluster: states of crawls, counters, lag, new dead letters, the audit log."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, bindparam, func, select, text

from shared.adapters.sql.catalog.host_waits import some_host_states
from shared.adapters.sql.catalog.list_bytes import ByteLength, first_page
from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.access_schema import audit_log
from shared.adapters.sql.engine.executor import SqlAdapter, polled, read
from shared.adapters.sql.frontier import crawl_rows
from shared.adapters.sql.frontier import leader_state as control
from shared.domain.frontier.lag import FrontierLag, Waiting
from shared.domain.frontier.states import USES_TIME, CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.audit import AuditFilter, AuditLine
from shared.domain.reads.declared import DeadLetterView
from shared.ports.overview import CrawlOverview

SCANNED: Final = 5_000
"""One read of the audit log examines at most this many lines."""

QUEUES: Final = 10_000
"""One read of the lag examines at most this many queues."""

_BUSY_PARTS = text(
    "SELECT crawl_id, partition FROM crawl_counters WHERE crawl_id IN :crawls AND queued > 0"
    " ORDER BY crawl_id, partition"
).bindparams(bindparam("crawls", expanding=True))
OLDEST_QUEUES = text(
    "SELECT queued, active_at_ms FROM queues"
    " WHERE crawl_id = :crawl_id AND partition = :partition AND queued + waiting > 0"
    " ORDER BY active_at_ms LIMIT :max_count"
)
"""The query for a crawl's queues in a partition, least recently served first. A queue is served when a shard of its
URLs is sent out or comes back. The query reads the index queues_ready."""

_PARTS_AT_ONCE: Final = 200
"""One statement reads at most this many pairs of crawl and partition, with one SELECT for each. SQLite allows at most
500 SELECTs in one UNION ALL."""

_VALUE: Final = re.compile(r":(\w+)")

LEASES = text(
    "SELECT CASE WHEN grants = 0 THEN 0 ELSE 1 END AS begun, count(*) AS n, min(issued_at_ms) AS oldest_ms"
    " FROM leases WHERE crawl_id IN :crawls GROUP BY 1"
).bindparams(bindparam("crawls", expanding=True))
"""The query that counts the leases of crawls (`n`), with the time of the oldest one. It returns at most two rows:
`begun` = 0 for the leases without a grant, `begun` = 1 for the leases with a grant."""

_LETTERS = text(
    "SELECT id, partition, crawl_id, kind, at_ms, url, evidence FROM dead_letters WHERE id > :after ORDER BY id"
    " LIMIT :max_count"
)


def _crawl_overviews(connection: Connection, which: Collection[CrawlId] | None = None) -> Sequence[CrawlOverview]:
    crawls = schema.crawls.c
    query = select(
        crawls.crawl_id,
        crawls.name,
        crawls.revision,
        crawls.version,
        crawls.state,
        crawls.finished_reason,
        crawls.created_at_ms,
    ).where(crawls.state != CrawlState.DELETED)
    parts = [query] if which is None else [query.where(crawls.crawl_id.in_(some)) for some in crawl_rows.chunked(which)]
    return [
        CrawlOverview(
            CrawlId(row.crawl_id),
            row.name,
            Revision(row.revision),
            row.version,
            CrawlState(row.state),
            row.finished_reason,
            row.created_at_ms,
        )
        for part in parts
        for row in connection.execute(part.order_by(crawls.crawl_id))
    ]


def _lag(connection: Connection, crawl_id: CrawlId | None, now_ms: int) -> FrontierLag:
    states = _states(connection, crawl_id)
    shards = {row.begun: row for row in connection.execute(LEASES, {"crawls": list(states)})}
    # The URLs of a paused or ended crawl do not wait for workers. Its shards may still be with workers.
    return FrontierLag(
        due=_due(connection, [each for each, state in states.items() if state in USES_TIME], now_ms),
        pending=_shards(shards.get(0), now_ms),
        in_flight=_shards(shards.get(1), now_ms),
        positions=control.positions(connection),
    )


def _states(connection: Connection, crawl_id: CrawlId | None) -> dict[CrawlId, str]:
    """Return the state of one crawl, or of all crawls that are seeding, running or paused if `crawl_id` is None."""
    crawls = schema.crawls.c
    which = text(schema.WORKED_ON) if crawl_id is None else crawls.crawl_id == crawl_id
    query = select(crawls.crawl_id, crawls.state).where(which)
    return {CrawlId(row.crawl_id): row.state for row in connection.execute(query)}


def _due(connection: Connection, crawls: Sequence[CrawlId], now_ms: int) -> Waiting:
    """Return how many URLs of the crawls are due, and for how many seconds the longest-waiting queue has waited.

    A queue has the URLs of one crawl on one host. It has waited since a shard of its URLs was last sent out or came
    back. URLs whose due time is in the future do not count.

    One call reads at most QUEUES queues. If the call leaves out queues, the field `more` is True. Then more URLs may be
    due than the returned count says.
    """
    # Each pair of crawl and partition gets an equal share of QUEUES. Its least recently served queues are read first.
    parts = connection.execute(_BUSY_PARTS, {"crawls": crawls}).all()
    max_queues = max(1, QUEUES // max(1, len(parts)))
    count, oldest_ms, more = 0, None, len(parts) > QUEUES
    for at in range(0, min(len(parts), QUEUES), _PARTS_AT_ONCE):
        seen: Counter[int] = Counter()
        for part, queued, active_at_ms in connection.execute(
            _oldest_queues_query(parts[at : at + _PARTS_AT_ONCE], max_queues)
        ):
            seen[part] += 1
            if seen[part] > max_queues:
                more = True
            elif queued:
                count += queued
                oldest_ms = active_at_ms if oldest_ms is None else min(oldest_ms, active_at_ms)
    return Waiting(count, None if oldest_ms is None else _age_s(oldest_ms, now_ms), more)


def _oldest_queues_query(parts: Sequence[Row[Any]], max_queues: int) -> TextClause:
    """Return a query for queues of each pair of crawl and partition in `parts`: the least recently served queues.

    The query returns up to `max_queues` + 1 queues of each pair. The caller uses only `max_queues` of these. If
    the query returns one more, the caller's count of URLs is incomplete. A row has these columns:

    - `part`: the index of the pair in `parts`.
    - `queued`: the number of URLs in the queue that are due.
    - `active_at_ms`: when the queue was last served (Unix ms): a shard of its URLs was sent out or came back.
    """
    selections = []
    for place, part in enumerate(parts):
        values = {"crawl_id": part.crawl_id, "partition": part.partition, "max_count": max_queues + 1}
        one = _VALUE.sub(lambda name, values=values: str(int(values[name[1]])), OLDEST_QUEUES.text)  # type: ignore[misc]  # bound now
        selections.append(f"SELECT {place} AS part, queued, active_at_ms FROM ({one}) AS part_{place}")
    return text(" UNION ALL ".join(selections) + " ORDER BY part, active_at_ms")


def _shards(row: Row[Any] | None, now_ms: int) -> Waiting:
    return Waiting(0, None) if row is None else Waiting(row.n, _age_s(row.oldest_ms, now_ms))


def _age_s(since_ms: int, now_ms: int) -> float:
    return max(0, now_ms - since_ms) / 1000


def _newest_letter(connection: Connection) -> int:
    return connection.execute(select(func.max(schema.dead_letters.c.id))).scalar() or 0


def _letters(connection: Connection, after: int, max_count: int) -> Sequence[DeadLetterView]:
    return [
        DeadLetterView(**row._mapping) for row in connection.execute(_LETTERS, {"after": after, "max_count": max_count})
    ]


def _audit(
    connection: Connection, which: AuditFilter, *, before: int, max_count: int
) -> tuple[Sequence[AuditLine], int | None]:
    scanned = select(audit_log).where(audit_log.c.id < before).order_by(audit_log.c.id.desc()).limit(SCANNED).subquery()
    size = (ByteLength(scanned.c.before) + ByteLength(scanned.c.after)).label("size")
    query = select(scanned.c.id, size).order_by(scanned.c.id.desc()).limit(max_count)
    for condition in _conditions(scanned.c, which):
        query = query.where(condition)
    listed = [(int(row.id), int(row.size)) for row in connection.execute(query)]
    shown = first_page(listed)
    these = select(audit_log).where(audit_log.c.id.in_(shown)).order_by(audit_log.c.id.desc())
    lines = [AuditLine(**row._mapping) for row in connection.execute(these)]
    if len(shown) < len(listed) or len(listed) == max_count:
        return lines, shown[-1]
    last = select(audit_log.c.id).where(audit_log.c.id < before).order_by(audit_log.c.id.desc()).offset(SCANNED - 1)
    return lines, connection.execute(last.limit(1)).scalar()


def _conditions(columns: Any, which: AuditFilter) -> list[Any]:
    conditions = []
    if which.actor is not None:
        # Actor writes the name, then the id in brackets: 16 characters or none.
        named = columns.actor.startswith(f"{which.actor} (", autoescape=True)
        named &= func.length(columns.actor).in_([len(which.actor) + 3, len(which.actor) + 19])
        conditions.append(named | columns.actor.endswith(f" ({which.actor})", autoescape=True))
    if which.action is not None:
        prefix = which.action.endswith(".")
        same = columns.action == which.action
        conditions.append(columns.action.startswith(which.action, autoescape=True) if prefix else same)
    if which.target is not None:
        conditions.append(columns.target == which.target)
    if which.since_ms is not None:
        conditions.append(columns.at_ms >= which.since_ms)
    if which.until_ms is not None:
        conditions.append(columns.at_ms < which.until_ms)
    return conditions


class SqlOverview(SqlAdapter):
    """Reads of the whole cluster for monitoring, on SQL (`shared.ports.overview.Overview`)."""

    crawl_overviews = polled(_crawl_overviews)
    counters = polled(crawl_rows.counters_of)
    host_states = read(some_host_states)
    lag = read(_lag)
    letters = polled(_letters)
    newest_letter = read(_newest_letter)
    audit = read(_audit)
