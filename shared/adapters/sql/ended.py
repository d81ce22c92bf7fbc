"""Transactions of the leader on crawls that are over: deleted ones whose rows are to be removed, finished ones that
have something to do again."""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, select, text, update

from shared.adapters.sql import schema
from shared.domain.command import collection_of
from shared.domain.crawl_state import COMPLETE
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Partition

_AT_ONCE: Final = 100
_AGAIN: Final = (
    f"state = '{CrawlState.FINISHED}' AND finished_reason = '{COMPLETE}' AND EXISTS"
    " (SELECT 1 FROM crawl_counters k WHERE k.crawl_id = crawls.crawl_id AND k.queued > 0)"
)
_ANY_AGAIN: Final = text(f"SELECT crawl_id FROM crawls WHERE {_AGAIN} LIMIT 1")
_REOPEN: Final = text(
    f"UPDATE crawls SET state = '{CrawlState.RUNNING}', finished_reason = NULL, finished_at_ms = NULL"
    f" WHERE {_AGAIN} RETURNING crawl_id"
)


def uncollected(connection: Connection) -> Mapping[CrawlId, Sequence[Partition]]:
    """See Store.uncollected."""
    crawls, commands = schema.crawls.c, schema.commands.c
    every = connection.execute(select(schema.cluster.c.partitions)).scalar_one()
    left = (crawls.state == CrawlState.DELETED) & crawls.collected_at_ms.is_(None)
    query = select(crawls.crawl_id).where(left).order_by(crawls.crawl_id).limit(_AT_ONCE)
    found: dict[CrawlId, Sequence[Partition]] = {}
    for crawl_id in map(CrawlId, connection.execute(query).scalars()):
        done = set(
            connection.execute(select(commands.partition).where(commands.id == collection_of(crawl_id))).scalars()
        )
        found[crawl_id] = [Partition(p) for p in range(every) if p not in done]
    return found


def collected(connection: Connection, crawl_id: CrawlId, now_ms: int) -> None:
    """See Store.collected."""
    connection.execute(update(schema.crawls).where(schema.crawls.c.crawl_id == crawl_id).values(collected_at_ms=now_ms))


def any_to_reopen(connection: Connection) -> bool:
    """Whether `reopen` would change anything."""
    return connection.execute(_ANY_AGAIN).first() is not None


def reopen(connection: Connection) -> Sequence[CrawlId]:
    """See Store.reopen."""
    return [CrawlId(row.crawl_id) for row in connection.execute(_REOPEN)]
