"""Transactions of the leader that remove deleted crawls, and that set finished crawls with new URLs to running."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, delete, select, text, update

from shared.adapters.sql.engine import access_schema, schema
from shared.adapters.sql.engine.crawl_values import NEXT_CHANGE
from shared.adapters.sql.frontier.crawl_rows import chunked
from shared.domain.crawl.state import COMPLETE
from shared.domain.frontier.commands import collection_of
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.seed_sets import command_id_of

_AT_ONCE: Final = 100
_QUEUED: Final = "FROM queues q WHERE q.queued + q.waiting > 0 AND q.crawl_id >"
WITH_QUEUES: Final = text(
    f"WITH RECURSIVE ready(crawl_id, n) AS (SELECT min(q.crawl_id), 1 {_QUEUED} :after"
    f" UNION ALL SELECT (SELECT min(q.crawl_id) {_QUEUED} ready.crawl_id), n + 1 FROM ready"
    " WHERE ready.crawl_id IS NOT NULL AND n < :max_count) SELECT crawl_id FROM ready WHERE crawl_id IS NOT NULL"
)
"""The query for the next crawls with queued URLs. By the index queues_ready it steps from crawl to crawl, so it skips
crawls with nothing queued."""

_AGAIN: Final = (
    f"state = '{CrawlState.FINISHED}' AND finished_reason = '{COMPLETE}' AND EXISTS"
    " (SELECT 1 FROM crawl_counters k WHERE k.crawl_id = crawls.crawl_id AND k.queued > 0) AND crawl_id IN :found"
)
_ANY_AGAIN: Final = text(f"SELECT crawl_id FROM crawls WHERE {_AGAIN}").bindparams(bindparam("found", expanding=True))
_REOPEN: Final = text(
    f"UPDATE crawls SET state = COALESCE(resumes_as, '{CrawlState.RUNNING}'), resumes_as = NULL,"
    " finished_reason = NULL, finished_at_ms = NULL,"
    f" change = {NEXT_CHANGE} + crawl_id - :first"
    f" WHERE {_AGAIN} RETURNING crawl_id"
).bindparams(bindparam("found", expanding=True))


def uncollected(connection: Connection) -> Mapping[CrawlId, Sequence[Partition]]:
    """Return deleted crawls whose removal is not finished, at most _AT_ONCE (Store.uncollected).

    The result has for each crawl the partitions that must still remove rows of the crawl. The sequence is empty if all
    partitions are done. The leader must then remove the other rows of the crawl, and call `collected`.
    """
    crawls, commands = schema.crawls.c, schema.commands.c
    every = connection.execute(select(schema.cluster.c.partitions)).scalar_one()
    left = (crawls.state == CrawlState.DELETED) & crawls.collected_at_ms.is_(None)
    query = select(crawls.crawl_id).where(left).order_by(crawls.crawl_id).limit(_AT_ONCE)
    missing: dict[CrawlId, Sequence[Partition]] = {}
    for crawl_id in map(CrawlId, connection.execute(query).scalars()):
        done = set(
            connection.execute(select(commands.partition).where(commands.id == collection_of(crawl_id))).scalars()
        )
        missing[crawl_id] = [Partition(p) for p in range(every) if p not in done]
    return missing


def collected(connection: Connection, crawl_id: CrawlId, now_ms: int) -> bool:
    """Remove the seed sets of a deleted crawl, one in each call. Then record that the crawl is collected.

    Call this only when all partitions have removed their rows of the crawl. Repeat the call until it returns True:

    - If the crawl has seed sets left: remove one of them, and return False.
    - Otherwise: record that all rows of the crawl are removed (collected), and return True.
    """
    sets, members = access_schema.seed_sets.c, access_schema.seed_set_urls
    set_id = connection.execute(select(sets.set_id).where(sets.crawl_id == crawl_id).limit(1)).scalar()
    if set_id is not None:
        connection.execute(delete(members).where(members.c.set_id == set_id))
        connection.execute(delete(access_schema.seed_sets).where(sets.set_id == set_id))
        return False
    drop_seed_set_changes(connection, crawl_id)
    connection.execute(update(schema.crawls).where(schema.crawls.c.crawl_id == crawl_id).values(collected_at_ms=now_ms))
    return True


def drop_seed_set_changes(connection: Connection, crawl_id: CrawlId) -> None:
    """Delete a deleted crawl's changes of seed sets that are not published, and the requests of their commands."""
    changes, requests = access_schema.seed_set_commands.c, access_schema.command_requests
    query = delete(access_schema.seed_set_commands).where(changes.crawl_id == crawl_id).returning(changes.revision)
    dropped = [{"dropped": command_id_of(revision)} for revision in connection.execute(query).scalars()]
    if dropped:
        connection.execute(delete(requests).where(requests.c.id == bindparam("dropped")), dropped)


def to_reopen(
    connection: Connection, after: CrawlId, max_count: int, among: Collection[CrawlId]
) -> tuple[Sequence[CrawlId], CrawlId | None]:
    """Return finished crawls that `reopen` would change, and the id to pass as `after` next (None at the end).

    One call examines two groups of crawls:

    - the next `max_count` crawls that have queued URLs and ids above `after`,
    - in addition, all crawls in `among`.
    """
    queued = connection.execute(WITH_QUEUES, {"after": after, "max_count": max_count}).scalars().all()
    again = [
        CrawlId(crawl_id)
        for some in chunked({*queued, *among})
        for crawl_id in connection.execute(_ANY_AGAIN, {"found": some}).scalars()
    ]
    return again, CrawlId(queued[-1]) if len(queued) == max_count else None


def reopen(connection: Connection, candidates: Sequence[CrawlId]) -> Sequence[CrawlId]:
    """Let crawls run again that finished as complete and have queued URLs. Return their ids (Store.reopen).

    Only crawls in `candidates` are examined.
    """
    return [
        CrawlId(row.crawl_id)
        for some in chunked(candidates)
        for row in connection.execute(_REOPEN, {"found": some, "first": min(some)})
    ]
