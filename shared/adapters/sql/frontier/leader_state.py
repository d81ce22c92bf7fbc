"""Transactions of the leader: the cluster's epoch, the positions of partitions, and a crawl's next state."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, case, func, select, update

from shared.adapters.sql.engine import schema
from shared.domain.errors import Unusable
from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ids import CrawlId, Partition, Revision


def epoch(connection: Connection) -> int:
    """Return the cluster's epoch. Raise Unusable before the cluster was opened."""
    stored = connection.execute(select(schema.cluster.c.epoch)).scalar()
    if stored is None:
        raise Unusable("the database holds no cluster yet")
    return int(stored)


def raise_epoch(connection: Connection, at_least: int) -> int:
    """Raise the epoch to `at_least` if it is less. Return the epoch."""
    stored = schema.cluster.c.epoch
    connection.execute(update(schema.cluster).values(epoch=case((stored < at_least, at_least), else_=stored)))
    return epoch(connection)


def positions(connection: Connection) -> Mapping[Partition, Position]:
    """Return up to where each partition's subjects are applied."""
    columns = schema.partitions.c
    rows = connection.execute(
        select(
            columns.partition,
            columns.stream_created_ns,
            columns.outcome_seq,
            columns.outcome_ns,
            columns.discovery_seq,
            columns.discovery_ns,
        )
    )
    return {Partition(partition): Position(*(int(value) for value in applied)) for partition, *applied in rows}


def advance_crawl(
    connection: Connection,
    crawl_id: CrawlId,
    revision: Revision,
    before: CrawlState,
    after: CrawlState,
    reason: str | None,
    now_ms: int,
    counted: int | None = None,
) -> bool:
    """See `Store.advance_crawl`."""
    table, counters = schema.crawls, schema.crawl_counters
    values: dict[str, Any] = {"state": after, "finished_reason": reason}
    if after is CrawlState.RUNNING:
        values["started_at_ms"] = func.coalesce(table.c.started_at_ms, now_ms)
    values["finished_at_ms"] = now_ms if after is CrawlState.FINISHED else None
    unchanged = (table.c.crawl_id == crawl_id) & (table.c.revision == revision) & (table.c.state == before)
    if counted is not None:
        version = select(func.coalesce(func.sum(counters.c.version), 0)).where(counters.c.crawl_id == crawl_id)
        unchanged &= version.scalar_subquery() == counted
    return connection.execute(update(table).where(unchanged).values(**values)).rowcount == 1
