"""Transactions on the changes of crawls: what changed since an earlier read, and the active time of crawls."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.crawl_values import ACTIVE_MS, NEXT_CHANGE
from shared.adapters.sql.frontier.crawl_rows import chunked, rows_of, worked_on
from shared.adapters.sql.frontier.leader_state import positions_and_versions
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow, CrawlVersion
from shared.domain.frontier.states import USES_TIME, CrawlState
from shared.domain.ids import CrawlId, Partition, Revision

OVERLAP: Final = 32
"""Each change of a crawl has a number. A read begins this many numbers before the last number of the previous read.

A transaction gets its number before it commits. So a slow transaction may commit a lower number after that read."""

COMPARED: Final = 10
"""How many crawls each call of `since` checks for changes that earlier calls have missed.

Each change has a number, and `since` looks for new numbers. A slow transaction may commit its number so late that all
calls miss the change. So each call also takes 10 unfinished crawls. The call compares the stored version of each crawl
with the version that the caller has.

The next call takes the next 10 crawls, in the order of their ids. After the last crawl, the first crawl comes again.
The first call of a reader needs no check, because this call returns all unfinished crawls."""

_VERSION: Final = "SELECT crawl_id, change, revision, state FROM crawls WHERE"
_RECENT: Final = text(f"{_VERSION} change > :change ORDER BY change, crawl_id")
_NEWEST: Final = text("SELECT coalesce(max(change), 0) FROM crawls")
_NEXT: Final = text(f"{_VERSION} {schema.WORKED_ON} AND crawl_id > :after ORDER BY crawl_id LIMIT :max_count")
_AMONG: Final = text(f"{_VERSION} crawl_id IN :crawls").bindparams(bindparam("crawls", expanding=True))
_CLOCKS: Final = text("SELECT pool, ms FROM pool_clocks")
_COUNTED: Final = text("SELECT crawl_id FROM crawl_counters WHERE partition = :partition AND changed > :version")

_NEW_CLOCK: Final = text("INSERT INTO pool_clocks (pool, ms) VALUES (:pool, 0) ON CONFLICT (pool) DO NOTHING")
_ADD: Final = text("UPDATE pool_clocks SET ms = ms + :more WHERE pool = :pool AND ms = :ms")
_USES_TIME: Final = ", ".join(f"'{state}'" for state in sorted(USES_TIME))
_START: Final = text(
    "UPDATE crawls SET active_pool = :pool,"
    f" active_zero_ms = (SELECT ms FROM pool_clocks WHERE pool = :pool) - {ACTIVE_MS},"
    f" change = {NEXT_CHANGE} + crawl_id - :first WHERE crawl_id IN :crawls AND state IN ({_USES_TIME})"
).bindparams(bindparam("crawls", expanding=True))


def since(
    connection: Connection,
    mark: ChangeMark,
    known: Callable[[CrawlId], CrawlVersion | None],
    compare: Collection[CrawlId],
) -> CrawlChanges:
    """Return what changed in crawls since an earlier read (Store.crawl_changes).

    - `mark`: the position that the earlier read returned. The default ChangeMark is for the first read.
    - `known`: a function that returns the version of a crawl that the caller has read before, or None. If the stored
      version is the same, the row of the crawl is left out of the result.
    - `compare`: crawls to check even if they do not seem to have changed since `mark`.
    """
    # Each read after the first also compares the next COMPARED crawls that are seeding, running or paused.
    # A slow transaction may commit a low number so late that no later read begins below it. The comparison finds it.
    first = mark == ChangeMark()
    recent = {} if first else _versions(connection.execute(_RECENT, {"change": max(0, mark.change - OVERLAP)}))
    change = max((version.change for version in recent.values()), default=0)
    if not change:  # The crawls with the last numbers were deleted for good: the next change takes a lower number.
        change = int(connection.execute(_NEWEST).scalar_one())
    clocks = {str(pool): int(ms) for pool, ms in connection.execute(_CLOCKS)}
    partitions = positions_and_versions(connection)
    versions = {partition: version for partition, version, _ in partitions}
    counted = set() if first else _counted(connection, mark.versions, versions)
    following: dict[CrawlId, CrawlVersion] = {}
    rows: dict[CrawlId, CrawlRow | None]
    if first:
        rows = {row.crawl_id: row for row in worked_on(connection)}
    else:
        following = _versions(connection.execute(_NEXT, {"after": mark.compared, "max_count": COMPARED}))
        among = _versions(connection.execute(_AMONG, {"crawls": list(compare)})) if compare else {}
        found = recent | following | among
        differing = {crawl_id for crawl_id in {*found, *compare} if known(crawl_id) != found.get(crawl_id)}
        rows = dict.fromkeys(differing)
        for some in chunked(differing):
            rows |= {row.crawl_id: row for row in rows_of(connection, some)}
    return CrawlChanges(
        ChangeMark(change, versions, max(following) if len(following) == COMPARED else CrawlId(0)),
        rows,
        recent,
        {*following, *compare},
        counted,
        clocks,
        {partition: position for partition, _, position in partitions},
    )


def start_active_time(connection: Connection, pools: Mapping[CrawlId, str]) -> None:
    """Begin to measure the active time of crawls by the clocks of their pools (Store.start_active_time).

    A pool's clock is a stored number of ms in the table `pool_clocks`. `add_pool_time` raises it while the pool can
    work. `pools`: the pool of each crawl. Crawls that are not seeding or running are left unchanged.
    """
    by_pool: dict[str, list[CrawlId]] = defaultdict(list)
    for crawl_id, pool in pools.items():
        by_pool[pool].append(crawl_id)
    for pool, crawls in sorted(by_pool.items()):
        connection.execute(_NEW_CLOCK, {"pool": pool})
        for some in chunked(crawls):
            connection.execute(_START, {"pool": pool, "crawls": some, "first": min(some)})


def add_pool_time(connection: Connection, clocks: Mapping[str, int], ms: int) -> None:
    """Add `ms` to the clocks of pools in the table `pool_clocks` (Store.add_pool_time).

    `clocks`: for each pool, the value of the clock that the caller has read. If the stored value differs, the clock is
    not changed, because another leader has added the same time.
    """
    connection.execute(_ADD, [{"pool": pool, "ms": at, "more": ms} for pool, at in sorted(clocks.items())])


def _versions(rows: Iterable[Any]) -> dict[CrawlId, CrawlVersion]:
    return {
        CrawlId(crawl_id): CrawlVersion(change, Revision(revision), CrawlState(state))
        for crawl_id, change, revision, state in rows
    }


def _counted(connection: Connection, before: Mapping[Partition, int], now: Mapping[Partition, int]) -> set[CrawlId]:
    """Return the crawls with counters that have changed since an earlier read.

    Each partition has a version: a number that grows with each transaction in the partition.

    - `before`: the versions at the earlier read. A missing version counts as 0.
    - `now`: the versions that are stored now. Partitions with the same version as before are not read.
    """
    return {
        CrawlId(crawl_id)
        for partition, version in now.items()
        if version != (known := before.get(partition, 0))
        for crawl_id in connection.execute(
            _COUNTED, {"partition": partition, "version": known if known < version else 0}
        ).scalars()
    }
