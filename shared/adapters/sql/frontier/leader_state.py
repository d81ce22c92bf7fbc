"""Transactions of the leader: read or raise the cluster's epoch, read the owners' progress, and move a crawl's state.

- The epoch is the first part of every term, the number of an ownership. The leader raises the epoch if etcd or the
  database was replaced by an older copy.
- The owner of a partition applies the reports of workers from a stream. With them it stores its position: the number
  of the last report that it applied. The leader reads the positions of all partitions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, case, func, select, update

from shared.adapters.sql.engine import access_schema, schema
from shared.adapters.sql.engine.crawl_values import NEXT_CHANGE, STOP_TIME
from shared.domain.errors import Unusable
from shared.domain.frontier.states import USES_TIME, CrawlState, Position
from shared.domain.ids import CrawlId, Partition, Revision

_POSITIONS = select(
    *(
        schema.partitions.c[name]
        for name in (
            *("partition", "version", "stream_created_ns"),
            *("outcome_seq", "outcome_ns", "discovery_seq", "discovery_ns"),
        )
    )
)


def epoch(connection: Connection) -> int:
    """Return the cluster's epoch. Raise Unusable if the database has no cluster yet."""
    stored = connection.execute(select(schema.cluster.c.epoch)).scalar()
    if stored is None:
        raise Unusable("the database holds no cluster yet")
    return int(stored)


def raise_epoch(connection: Connection, at_least: int) -> int:
    """Raise the cluster's epoch to `at_least` if it is less. Return the epoch afterwards."""
    stored = schema.cluster.c.epoch
    connection.execute(update(schema.cluster).values(epoch=case((stored < at_least, at_least), else_=stored)))
    return epoch(connection)


def positions(connection: Connection) -> Mapping[Partition, Position]:
    """Return for each partition the position up to which its owner has applied the stream of reports."""
    return {partition: position for partition, _, position in positions_and_versions(connection)}


def positions_and_versions(connection: Connection) -> Sequence[tuple[Partition, int, Position]]:
    """Return for each partition its version and the position up to which its owner has applied the reports.

    Each write of the owner raises the version.
    """
    rows = connection.execute(_POSITIONS)
    return [(Partition(partition), int(version), Position(*map(int, applied))) for partition, version, *applied in rows]


def advance_crawl(
    connection: Connection,
    crawl_id: CrawlId,
    revision: Revision,
    before: CrawlState,
    after: CrawlState,
    reason: str | None,
    now_ms: int,
    counted: int | None = None,
    change: int | None = None,
    operator_version: int | None = None,
) -> bool:
    """Move a crawl from the state `before` to `after`, with the finish reason `reason`. Return True if it was moved.

    Return False, and write nothing, if the crawl has changed since the caller read it (Store.advance_crawl). These
    values are compared with the stored ones:

    - `before` and `revision`: the state and the revision of the crawl.
    - `counted`: a number that rises when the crawl's counters change. None: not compared.
    - `change`: a number that rises when the crawl's state, declaration or `active_pool` changes. None: not compared.
    - `operator_version`: a number that rises with each change of the crawl by an operator. None: not compared.

    With `counted`, the crawl must also have no change of its seed sets that is still to be published. Otherwise
    return False.
    """
    table, counters = schema.crawls, schema.crawl_counters
    values: dict[str, Any] = {"state": after, "finished_reason": reason}
    if after is CrawlState.RUNNING:
        values["started_at_ms"] = func.coalesce(table.c.started_at_ms, now_ms)
    values["finished_at_ms"] = now_ms if after is CrawlState.FINISHED else None
    values["change"] = NEXT_CHANGE
    if after not in USES_TIME:
        values |= STOP_TIME
    unchanged = (table.c.crawl_id == crawl_id) & (table.c.revision == revision) & (table.c.state == before)
    if change is not None:
        unchanged &= table.c.change == change
    if operator_version is not None:
        unchanged &= table.c.version == operator_version
    if counted is not None:
        version = select(func.coalesce(func.sum(counters.c.version), 0)).where(counters.c.crawl_id == crawl_id)
        unchanged &= version.scalar_subquery() == counted
        changes = access_schema.seed_set_commands.c
        unchanged &= ~select(changes.revision).where(changes.crawl_id == crawl_id).exists()
    return connection.execute(update(table).where(unchanged).values(**values)).rowcount == 1
