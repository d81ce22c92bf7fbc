"""Reads crawls, their counters and their counts by reason: for masters, and for commands that read a crawl's folder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from shared.adapters.sql.engine.query import Query
from shared.domain.frontier.counters import Counters
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Revision

if TYPE_CHECKING:
    from shared.adapters.sql.engine.query import ReadConnection

ACTIVE_MS: Final = (
    "coalesce((SELECT p.ms FROM pool_clocks p WHERE p.pool = crawls.active_pool) - crawls.active_zero_ms,"
    " crawls.active_ms)"
)
"""An SQL expression for a row of `crawls`: the active time of the crawl until now, in ms. Time in which its pool could
not work does not count."""

COUNTED: Final = Counters.__struct_fields__
"""The columns of `crawl_counters` that are summed over partitions."""

_CRAWLS: Final = Query(
    f"SELECT crawls.*, {ACTIVE_MS} AS active, r.spec FROM crawls"
    " JOIN crawl_revisions r ON r.crawl_id = crawls.crawl_id AND r.revision = crawls.revision"
    f" WHERE crawls.state <> '{CrawlState.DELETED}' ORDER BY crawls.crawl_id"
)
_COUNTERS: Final = Query(
    f"SELECT {', '.join(f'coalesce(sum({name}), 0) AS {name}' for name in COUNTED)} FROM crawl_counters"
    " WHERE crawl_id = :crawl_id"
)
_TALLIES: Final = Query(
    "SELECT kind, key, sum(n) AS n FROM crawl_tallies WHERE crawl_id = :crawl_id"
    " GROUP BY kind, key HAVING sum(n) <> 0 ORDER BY kind, key"
)


def crawls(connection: "ReadConnection") -> Sequence[CrawlRow]:
    """Return all crawls that are not deleted, oldest first. The database of a crawl's folder has one crawl."""
    return [crawl_row(row) for row in _CRAWLS.rows(connection)]


def counters(connection: "ReadConnection", crawl_id: CrawlId) -> Counters:
    """Return the crawl's counters, summed over partitions; all are zero for an unknown crawl."""
    (row,) = _COUNTERS.rows(connection, crawl_id=crawl_id)
    return counted(row)


def counted(row: Any) -> Counters:
    """Return the counters from a row that has the sum of each counter as a column."""
    return Counters(**{name: int(getattr(row, name)) for name in COUNTED})


def tallies(connection: "ReadConnection", crawl_id: CrawlId) -> dict[str, dict[str, int]]:
    """Return the crawl's counts by reason, summed over partitions: kind -> key -> count, such as failed -> dns -> 3."""
    result: dict[str, dict[str, int]] = {}
    for row in _TALLIES.rows(connection, crawl_id=crawl_id):
        result.setdefault(row.kind, {})[row.key] = int(row.n)
    return result


def crawl_row(row: Any) -> CrawlRow:
    """Return the crawl that `row` describes: a row of `crawls` with two more columns.

    `spec`: the spec of the active revision. `active`: the active time in ms.
    """
    return CrawlRow(
        crawl_id=CrawlId(row.crawl_id),
        name=row.name,
        revision=Revision(row.revision),
        state=CrawlState(row.state),
        spec=row.spec,
        finished_reason=row.finished_reason,
        created_at_ms=row.created_at_ms,
        started_at_ms=row.started_at_ms,
        finished_at_ms=row.finished_at_ms,
        active_ms=int(row.active),
        active_pool=row.active_pool,
        active_zero_ms=row.active_zero_ms,
        change=row.change,
        refresh_ms=row.refresh_ms,
        operator_version=row.version,
    )
