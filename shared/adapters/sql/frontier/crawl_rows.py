"""Transactions on the cluster's row, on rows of crawls, and on their counters."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, text, true, update

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.crawl_values import ACTIVE_MS, NEXT_CHANGE, STOP_TIME
from shared.adapters.sql.engine.stored_crawls import COUNTED, counted, crawl_row
from shared.domain.errors import Unusable
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import RETRY, REVISIT, USES_TIME, CrawlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Term

CRAWLS_A_QUERY: Final = 1_000
"""How many crawls one statement names at most, far below the limits of SQLite and PostgreSQL."""


def open_cluster(connection: Connection, partitions: int, public_suffixes: str, now_ms: int) -> tuple[int, str]:
    """Return the cluster's number of partitions and its public suffix list.

    The first call for a database stores the arguments. Later calls ignore them and return the stored values. The
    partition of a host depends on both values.
    """
    row = connection.execute(select(schema.cluster.c.partitions, schema.cluster.c.public_suffixes)).first()
    if row is not None:
        return int(row[0]), str(row[1])
    connection.execute(
        insert(schema.cluster).values(
            id=1, partitions=partitions, epoch=1, public_suffixes=public_suffixes, created_at_ms=now_ms
        )
    )
    connection.execute(insert(schema.partitions), [{"partition": p} for p in range(partitions)])
    return partitions, public_suffixes


def public_suffixes(connection: Connection) -> str:
    """Return the cluster's public suffix list. Raise Unusable if the database has no cluster yet."""
    suffixes = connection.execute(select(schema.cluster.c.public_suffixes)).scalar()
    if suffixes is None:
        raise Unusable("the database holds no cluster yet")
    return str(suffixes)


_NEWEST_TERMS: Final = text("SELECT max(owner_term) FROM partitions"), text("SELECT max(term) FROM leader_fence")


def newest_term(connection: Connection) -> Term:
    """Return the greatest term under which a partition or the schedules were claimed. 0: there was no claim yet."""
    return Term(max(int(connection.execute(query).scalar() or 0) for query in _NEWEST_TERMS))


def put_crawl(connection: Connection, name: str, spec: str, now_ms: int) -> tuple[CrawlRow, bool]:
    """Create the crawl `name`, or add a revision if `spec` differs. Return the crawl, and True if anything changed.

    A new or changed crawl gets the state SEEDING.
    """
    table = schema.crawls
    stored = _crawl_where(connection, (table.c.name == name) & (table.c.state != CrawlState.DELETED))
    if stored is None:
        crawl_id = connection.execute(
            insert(table)
            .values(name=name, revision=1, state=CrawlState.SEEDING, created_at_ms=now_ms, change=NEXT_CHANGE)
            .returning(table.c.crawl_id)
        ).scalar_one()
        revision = 1
    elif stored.spec == spec:
        return stored, False
    else:
        crawl_id, revision = stored.crawl_id, stored.revision + 1
        connection.execute(
            update(table)
            .where(table.c.crawl_id == crawl_id)
            .values(
                revision=revision,
                state=CrawlState.SEEDING,
                finished_reason=None,
                finished_at_ms=None,
                change=NEXT_CHANGE,
            )
        )
    connection.execute(
        insert(schema.crawl_revisions).values(crawl_id=crawl_id, revision=revision, spec=spec, created_at_ms=now_ms)
    )
    stored = crawl(connection, CrawlId(crawl_id))
    if stored is None:
        raise Unusable(f"crawl {crawl_id} vanished in the transaction that wrote it: the database is damaged")
    return stored, True


def crawl(connection: Connection, crawl_id: CrawlId) -> CrawlRow | None:
    """Return the crawl with this id, deleted or not; None if there is none."""
    return _crawl_where(connection, schema.crawls.c.crawl_id == crawl_id)


def worked_on(connection: Connection) -> Sequence[CrawlRow]:
    """Return the crawls that are seeding, running or paused, oldest first (Store.worked_on)."""
    return [crawl_row(row) for row in connection.execute(_WORKED_ON)]


def rows_of(connection: Connection, crawl_ids: Collection[CrawlId]) -> Sequence[CrawlRow]:
    """Return the rows of the given crawls that are not deleted (Store.crawl_rows)."""
    table = schema.crawls.c
    query = _crawl_query().where(table.crawl_id.in_(crawl_ids), table.state != CrawlState.DELETED)
    return [crawl_row(row) for row in connection.execute(query)]


def living(connection: Connection, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
    """Return the ids of the given crawls that are not deleted (Store.living)."""
    table = schema.crawls.c
    query = select(table.crawl_id).where(table.state != CrawlState.DELETED)
    return {
        CrawlId(crawl_id)
        for some in chunked(crawl_ids)
        for crawl_id in connection.execute(query.where(table.crawl_id.in_(some))).scalars()
    }


_OUTAGES_ANEW = text("UPDATE hosts SET silent_since_ms = 0 WHERE silent_since_ms <> 0")
_UNBLOCK = text("UPDATE hosts SET blocked_until_ms = 0 WHERE blocked_until_ms <> 0")
_WAITING = "crawl_id = :crawl_id AND waiting > 0"
_DUE_NOW = (
    text(
        "UPDATE urls SET rank = :now_ms WHERE crawl_id = :crawl_id AND state = 1 AND rank > :now_ms"
        f" AND (flags & {REVISIT} = 0 OR flags & {RETRY} <> 0)"
        f" AND host_id IN (SELECT host_id FROM queues WHERE {_WAITING})"
    ),
    text(f"UPDATE queues SET next_due_ms = :now_ms WHERE {_WAITING} AND next_due_ms > :now_ms"),
)


def begin_run(connection: Connection, crawl_id: CrawlId, now_ms: int, *, unblock: bool) -> None:
    """Prepare another run of the only crawl in the database, before any partition is claimed (Store.begin_run).

    Reset the durations of hosts' outages. `unblock`: also end the back-off of all hosts, and make URLs due that wait
    for a retry.
    """
    connection.execute(_OUTAGES_ANEW)
    if unblock:
        connection.execute(_UNBLOCK)
        for statement in _DUE_NOW:
            connection.execute(statement, {"crawl_id": crawl_id, "now_ms": now_ms})


def set_state(connection: Connection, crawl_id: CrawlId, state: CrawlState, reason: str | None, now_ms: int) -> None:
    """Set a crawl's state and finish reason. Record when it was first RUNNING, and when it became FINISHED."""
    table = schema.crawls
    values: dict[str, Any] = {"state": state, "finished_reason": reason, "change": NEXT_CHANGE}
    if state not in USES_TIME:
        values |= STOP_TIME
    if state is CrawlState.RUNNING:
        values["started_at_ms"] = func.coalesce(table.c.started_at_ms, now_ms)
    values["finished_at_ms"] = now_ms if state is CrawlState.FINISHED else None
    connection.execute(update(table).where(table.c.crawl_id == crawl_id).values(**values))


def add_active_time(connection: Connection, crawl_id: CrawlId, ms: int) -> None:
    """Add `ms` to the crawl's active time, which its budget limits."""
    table = schema.crawls
    connection.execute(update(table).where(table.c.crawl_id == crawl_id).values(active_ms=table.c.active_ms + ms))


def counters_of(connection: Connection, crawls: Sequence[CrawlId]) -> dict[CrawlId, Counters]:
    """Return the counters of each crawl, summed over partitions. Crawls without counters are left out."""
    return _summed(connection, crawls, true())


def counters_by_partition(
    connection: Connection, crawl_ids: Collection[CrawlId]
) -> Mapping[CrawlId, Mapping[Partition, Counters]]:
    """Return the counters of each crawl by partition. Partitions in which a crawl has none are left out."""
    table = schema.crawl_counters
    result: dict[CrawlId, dict[Partition, Counters]] = {crawl_id: {} for crawl_id in crawl_ids}
    for some in chunked(crawl_ids):
        for row in connection.execute(select(table).where(table.c.crawl_id.in_(some))):
            part = Counters(**{name: getattr(row, name) for name in COUNTED})
            result[CrawlId(row.crawl_id)][Partition(row.partition)] = part
    return result


def counters_in(
    connection: Connection, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
) -> dict[CrawlId, Counters]:
    """Return the counters of each crawl, summed over these partitions. Crawls without counters are left out."""
    return _summed(connection, crawl_ids, schema.crawl_counters.c.partition.in_(partitions))


def _summed(connection: Connection, crawl_ids: Collection[CrawlId], condition: Any) -> dict[CrawlId, Counters]:
    table = schema.crawl_counters
    sums = select(table.c.crawl_id, *(func.sum(table.c[name]).label(name) for name in COUNTED))
    query = sums.where(condition).group_by(table.c.crawl_id)
    return {
        CrawlId(row.crawl_id): counted(row)
        for some in chunked(crawl_ids)
        for row in connection.execute(query.where(table.c.crawl_id.in_(some)))
    }


def chunked(crawl_ids: Collection[CrawlId]) -> Iterator[Sequence[CrawlId]]:
    """Yield the ids in ascending order, in groups of at most CRAWLS_A_QUERY."""
    ordered = sorted(crawl_ids)
    for start in range(0, len(ordered), CRAWLS_A_QUERY):
        yield ordered[start : start + CRAWLS_A_QUERY]


def _crawl_query() -> Any:
    crawls, revisions = schema.crawls, schema.crawl_revisions
    return select(crawls, ACTIVE_MS.label("active"), revisions.c.spec).join(
        revisions, (revisions.c.crawl_id == crawls.c.crawl_id) & (revisions.c.revision == crawls.c.revision)
    )


_WORKED_ON = _crawl_query().where(text(f"crawls.{schema.WORKED_ON}")).order_by(schema.crawls.c.crawl_id)


def _crawl_where(connection: Connection, condition: Any) -> CrawlRow | None:
    row = connection.execute(_crawl_query().where(condition)).first()
    return None if row is None else crawl_row(row)
