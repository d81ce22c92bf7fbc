"""Transactions of an owner: load a partition that it claimed, lease URLs, count grants of leases, and read queues."""

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import AMONG, Arrays, Bulk, Each, inserting, updating
from shared.adapters.sql.engine.fence import FENCE_VERSION, pass_fence
from shared.adapters.sql.engine.url_compression import whole
from shared.adapters.sql.frontier.commands import in_progress
from shared.adapters.sql.frontier.revisits import read_last_fetches, take_due
from shared.adapters.sql.frontier.seed_contexts import read_contexts
from shared.adapters.sql.frontier.url_flags import RANK_DUE
from shared.domain.crawl.spec import Budget
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.states import (
    FOUND_FEWER_HOPS,
    FOUND_NEARER,
    OUTSIDE_BUDGET,
    RETRY,
    Fence,
    Position,
    UrlState,
    extra_hops_of,
    queued_as,
)
from shared.domain.frontier.store_model import Claimed, LeasedUrl, LeaseRequest, LeaseRow, QueueRow
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision, Term
from shared.ports.store import NO_BUDGETS

_FINGERPRINT_BYTES = 16
_lease_id = attrgetter("lease_id")

_LEASED_URLS = text(
    "SELECT fingerprint, url, depth, attempts, hops, priority, flags, rank FROM urls"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND lease_id = :lease_id AND fingerprint IN :fingerprints"
).bindparams(bindparam("fingerprints", expanding=True))

_BEST = (
    "SELECT fingerprint FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 0"
    " {} ORDER BY rank LIMIT :max_count"
)
_TAKEN = "RETURNING urls.lease_id, urls.fingerprint, url, depth, attempts, hops, priority, flags, rank"
TAKE_SQLITE: Final = Bulk(
    "UPDATE urls SET state = 2, lease_id = :lease_id"
    f" WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 0 AND fingerprint IN ({_BEST.format('')})"
    f" {_TAKEN}",
    ("lease_id", "crawl_id", "host_id", "max_count"),
)
_TAKE_REQUISITES: Final = {
    dialect: text(
        "UPDATE urls SET state = 2, lease_id = :lease_id WHERE crawl_id = :crawl_id AND host_id = :host_id"
        f" AND {among.format(_BEST.format('AND rank < 0'))} {_TAKEN}"
    )
    for dialect, among in AMONG.items()
}
# All hosts in one statement, each a step of a loop over two indexes. The outer condition has no state, so that only the
# primary key can find these rows, whatever PostgreSQL's statistics of a host's size are.
TAKE_POSTGRESQL: Final = Arrays(
    "WITH best AS MATERIALIZED (SELECT v.lease_id, v.crawl_id, v.host_id, q.fingerprint FROM {rows} CROSS JOIN LATERAL"
    " (SELECT u.fingerprint FROM urls u WHERE u.crawl_id = v.crawl_id AND u.host_id = v.host_id AND u.state = 0"
    " ORDER BY u.rank LIMIT v.rank) q)"
    " UPDATE urls SET state = 2, lease_id = best.lease_id FROM best WHERE urls.crawl_id = best.crawl_id"
    f" AND urls.host_id = best.host_id AND urls.fingerprint = best.fingerprint {_TAKEN}",
    schema.urls,
    ("lease_id", "crawl_id", "host_id", "rank"),  # `Arrays` needs names of stored columns: `rank` has the right type
)
"""The statement that leases URLs on PostgreSQL. Each input row gives a lease, a queue, and how many URLs to lease at
most. This maximum is passed under the name `rank`. No two rows may have the same queue."""

_LEASE_COLUMNS = (
    "lease_id", "partition", "term", "crawl_id", "spec", "host_id", "slot", "pool", "delay_ms", "grants", "expired",
    "fingerprints", "issued_at_ms",
)  # fmt: skip
LEASE: Final = inserting(schema.leases, _LEASE_COLUMNS)
LEASE_QUEUE: Final = updating(
    schema.queues,
    ("crawl_id", "host_id"),
    ("leased", "active_at_ms"),
    "queued = {t}.queued - {v}leased, leased = {t}.leased + {v}leased, active_at_ms = {v}active_at_ms",
)
_LEASE_COUNTERS = text(
    "UPDATE crawl_counters SET queued = queued - :n, leased = leased + :n, retries = retries - :retries,"
    " revisits = revisits - :revisits, requisites = requisites - :requisites,"
    " revisiting = revisiting + :revisiting, version = version + 1,"
    f" changed = {FENCE_VERSION} WHERE crawl_id = :crawl_id AND partition = :partition"
)
_COUNTED_APART: Final = RETRY | OUTSIDE_BUDGET
_LOCK_CRAWL = text("SELECT 1 FROM crawls WHERE crawl_id = :crawl_id FOR NO KEY UPDATE")
_SPENT = text(
    "SELECT coalesce(sum(pages + leased - revisiting), 0) AS pages, coalesce(sum(bytes), 0) AS bytes"
    " FROM crawl_counters WHERE crawl_id = :crawl_id"
)
_GRANT = "UPDATE leases SET grants = grants + 1 WHERE lease_id"
GRANT: Final = Each(
    schema.leases,
    ("lease_id",),
    sqlite=f"{_GRANT} = :lease_id",
    postgresql=f"{_GRANT} = ANY(ARRAY(SELECT v.lease_id FROM {{rows}}))",
)

_QUEUE_COLUMNS = (
    "SELECT q.crawl_id, q.host_id, h.host, q.queued, q.waiting, q.next_due_ms, q.pages, q.leased, q.shard_cap,"
    " h.crawl_delay_ms, h.operator_delay_ms, h.latency_ms, h.failures, h.unreachable,"
    " h.last_failure_ms, h.blocked_until_ms, h.visited_at_ms, h.recent, h.slowed_ms, h.asked_ms, h.silent_since_ms,"
    " q.signals, q.found_ms, h.operator_blocked_until_ms, h.operator_slots"
    " FROM queues q JOIN hosts h ON h.host_id = q.host_id"
)
_READY_QUEUES = (
    f"{_QUEUE_COLUMNS} WHERE q.crawl_id = :crawl_id AND q.partition = :partition AND q.queued + q.waiting > 0"
    " ORDER BY CASE WHEN h.blocked_until_ms <= :soon_ms AND h.operator_blocked_until_ms <= :soon_ms"
    " AND (q.queued > 0 OR q.next_due_ms <= :soon_ms)"
    " THEN 0 ELSE 1 END, q.active_at_ms LIMIT :max_count"
)
# SQLite has no statistics here and prefers the primary key, which would read the queues of all partitions.
_READY = {
    "sqlite": text(_READY_QUEUES.replace("FROM queues q", "FROM queues q INDEXED BY queues_ready")),
    "postgresql": text(_READY_QUEUES),
}
_ONE_QUEUE = text(f"{_QUEUE_COLUMNS} WHERE q.crawl_id = :crawl_id AND q.host_id = :host_id")
QUEUES_POSTGRESQL: Final = Arrays(
    f"{_QUEUE_COLUMNS} JOIN {{rows}} ON q.crawl_id = v.crawl_id AND q.host_id = v.host_id ORDER BY v.i",
    schema.queues,
    ("crawl_id", "host_id"),
)

_PROMOTED_AT_ONCE = 5_000
_DUE = (
    "SELECT fingerprint FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 1 AND rank <= :now_ms"
    " ORDER BY rank LIMIT :max_count"
)
_PROMOTE = {
    dialect: text(
        f"UPDATE urls SET state = 0, rank = {RANK_DUE}"
        f" WHERE crawl_id = :crawl_id AND host_id = :host_id AND {among.format(_DUE)}"
    )
    for dialect, among in AMONG.items()
}
_PROMOTE_QUEUE = text(
    "UPDATE queues SET queued = queued + :n, waiting = waiting - :n, next_due_ms = coalesce((SELECT min(rank) FROM urls"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND state = 1), 0)"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id"
)


def load(connection: Connection, partition: Partition, term: Term) -> Claimed:
    """Return the stored state of a partition: position, leases, commands in progress, and next free numbers.

    Raise OwnershipLost if the partition's term is no longer `term`.
    """
    row = connection.execute(
        text("SELECT * FROM partitions WHERE partition = :partition"), {"partition": partition}
    ).one()
    if row.owner_term != term:
        raise OwnershipLost(f"partition {partition} was claimed under term {row.owner_term}")
    position = Position(row.stream_created_ns, row.outcome_seq, row.outcome_ns, row.discovery_seq, row.discovery_ns)
    leases = connection.execute(
        text("SELECT l.*, h.host FROM leases l JOIN hosts h ON h.host_id = l.host_id WHERE l.partition = :partition"),
        {"partition": partition},
    ).all()
    rows = [_lease_row(connection, lease) for lease in sorted(leases, key=_lease_id)]
    read_contexts(connection, partition, rows)
    return Claimed(
        fence=Fence(partition, term, row.version),
        position=position,
        next_host=row.next_host,
        next_lease=row.next_lease,
        leases=tuple(rows),
        commands=in_progress(connection, partition),
    )


def dispatch(
    connection: Connection,
    fence: Fence,
    next_free_lease: int,
    requests: Sequence[LeaseRequest],
    now_ms: int,
    budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
) -> list[LeaseRow]:
    """Lease the best-ranked URLs of each request's queue, within the budgets of their crawls (Store.dispatch).

    Return the leases that got URLs.

    - `requests`: each request already has the id of its lease, which the caller made from a lease number.
    - `next_free_lease`: the number for the first lease after these requests. For example, the requests use the numbers
      7, 8 and 9, and `next_free_lease` is 10. The call stores it, so that the next owner of the partition continues
      with it.
    - `budgets`: the budgets of the crawls that have one.
    """
    pass_fence(connection, fence)
    connection.execute(
        text("UPDATE partitions SET next_lease = :next_lease WHERE partition = :partition"),
        {"next_lease": next_free_lease, "partition": fence.partition},
    )
    left = {crawl_id: _left(connection, crawl_id, budgets[crawl_id]) for crawl_id in sorted(budgets)}
    rows: list[LeaseRow] = []
    for request in requests:
        if request.max_revisits or request.requisites:
            row = _take_mixed(connection, request, left, now_ms)
            rows += () if row is None else (row,)
    for some in _together([each for each in requests if not (each.max_revisits or each.requisites)], left):
        max_count = [min(request.max_urls, left.get(request.crawl_id, request.max_urls)) for request in some]
        taken = _take(connection, [(request, n) for request, n in zip(some, max_count, strict=True) if n > 0], now_ms)
        for row in taken:
            if row.crawl_id in left:
                left[row.crawl_id] -= len(row.order)
        rows += taken
    compared = {request.lease_id for request in requests if request.compared}
    if compared:
        read_last_fetches(connection, [row for row in rows if row.lease_id in compared])
    if rows:
        _record(connection, fence, rows, now_ms)
    return rows


def _take_mixed(
    connection: Connection, request: LeaseRequest, left: dict[CrawlId, int], now_ms: int
) -> LeaseRow | None:
    """Lease a mix of URLs for one request. Return the lease, or None if no URL could be leased.

    The mix has stored pages that are due, then requisites, then other URLs. Only the other URLs use the crawl's budget.

    `left`: how many more URLs each crawl may lease within its budget. This call updates the entry of the request's
    crawl. Crawls without a budget have no entry.
    """
    # Each kind of URL needs its own statement, so requests for a mix are not part of the groups of `_together`.
    taken = [*take_due(connection, request, now_ms)] if request.max_revisits else []
    if request.requisites and len(taken) < request.max_together:
        keys = {"lease_id": request.lease_id, "crawl_id": request.crawl_id, "host_id": request.host_id}
        keys["max_count"] = request.max_together - len(taken)
        taken += connection.execute(_TAKE_REQUISITES[connection.dialect.name], keys).all()
    max_count = min(request.max_urls, request.max_together - len(taken), left.get(request.crawl_id, request.max_urls))
    if max_count > 0:
        new = list(_taken(connection, [(request, max_count)]))
        if request.crawl_id in left:
            left[request.crawl_id] -= len(new)
        taken += new
    return _leased(request, taken, now_ms) if taken else None


def _together(requests: Sequence[LeaseRequest], bounded: Collection[CrawlId]) -> Iterable[Sequence[LeaseRequest]]:
    """Yield the requests in groups. PostgreSQL leases the URLs of a group in one statement.

    - Two requests for the same queue are never in one group, because both would take the same URLs.
    - Each request of a crawl with a budget begins a new group. The statements of the groups before it must run first,
      because only then is it known what is left of the budget.

    `bounded`: the crawls that have a budget.
    """
    part: dict[tuple[CrawlId, HostId], LeaseRequest] = {}
    for request in requests:
        key = (request.crawl_id, request.host_id)
        if part and (key in part or request.crawl_id in bounded):
            yield list(part.values())
            part = {}
        part[key] = request
    if part:
        yield list(part.values())


def _left(connection: Connection, crawl_id: CrawlId, budget: Budget) -> int:
    """Return how many URLs of the crawl may still be leased within `budget`. 0 if its limit of bytes is reached.

    The limit of pages covers the stored pages and the leased URLs of all partitions. On PostgreSQL the crawl's row
    stays locked until the commit, so that no other owner leases URLs of the crawl meanwhile.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_LOCK_CRAWL, {"crawl_id": crawl_id})
    spent = connection.execute(_SPENT, {"crawl_id": crawl_id}).one()
    if budget.max_bytes is not None and spent.bytes >= budget.max_bytes:
        return 0
    return sys.maxsize if budget.max_pages is None else budget.max_pages - spent.pages


def _take(connection: Connection, requests: Sequence[tuple[LeaseRequest, int]], now_ms: int) -> list[LeaseRow]:
    """Lease URLs of each request's queue, up to the number given with the request. Return the leases that got URLs.

    No two requests may have the same queue.
    """
    if not requests:
        return []
    taken: dict[int, list[Any]] = defaultdict(list)
    for row in _taken(connection, requests):
        taken[row.lease_id].append(row)
    return [_leased(request, taken[request.lease_id], now_ms) for request, _ in requests if request.lease_id in taken]


def _taken(connection: Connection, requests: Sequence[tuple[LeaseRequest, int]]) -> Iterable[Any]:
    keys = [(request.lease_id, request.crawl_id, request.host_id, max_count) for request, max_count in requests]
    if connection.dialect.name == "postgresql":
        return TAKE_POSTGRESQL.run(connection, keys)
    return TAKE_SQLITE.returned(connection, keys)


def _leased(request: LeaseRequest, rows: Sequence[Any], now_ms: int) -> LeaseRow:
    taken = sorted(rows, key=lambda row: int(row.rank))
    order = tuple(Fingerprint(row.fingerprint) for row in taken)
    return LeaseRow(
        lease_id=request.lease_id,
        crawl_id=request.crawl_id,
        spec=request.spec,
        host_id=request.host_id,
        host=request.host,
        slot=request.slot,
        pool=request.pool,
        delay_ms=request.delay_ms,
        order=order,
        urls={fingerprint: _leased_url(row, request.host) for fingerprint, row in zip(order, taken, strict=True)},
        issued_at_ms=now_ms,
    )


def _record(connection: Connection, fence: Fence, rows: Sequence[LeaseRow], now_ms: int) -> None:
    """Insert the rows of new leases, and update the numbers of their queues and the counters of their crawls."""
    LEASE.run(
        connection,
        [
            (
                row.lease_id, fence.partition, fence.term, row.crawl_id, row.spec, row.host_id, row.slot, row.pool,
                row.delay_ms, 0, 0, b"".join(row.order), now_ms,
            )
            for row in rows
        ],
    )  # fmt: skip
    out = Counter[tuple[CrawlId, HostId]]()
    for row in rows:
        out[row.crawl_id, row.host_id] += len(row.order)
    LEASE_QUEUE.run(connection, [(n, now_ms, *key) for key, n in sorted(out.items())])
    counts: dict[CrawlId, Counter[str]] = {}
    for row in rows:
        count = counts.setdefault(row.crawl_id, Counter(n=0, retries=0, revisits=0, requisites=0, revisiting=0))
        count["n"] += len(row.order)
        for url in row.urls.values():
            if url.flags & _COUNTED_APART and (part := queued_as(url.flags)):
                count[part] += 1
                count["revisiting"] += url.flags & OUTSIDE_BUDGET != 0
    connection.execute(
        _LEASE_COUNTERS,
        [{"crawl_id": crawl_id, "partition": fence.partition, **count} for crawl_id, count in counts.items()],
    )


def grant(connection: Connection, fence: Fence, leases: Sequence[LeaseId]) -> None:
    """Count one more grant of each lease. Raise OwnershipLost if the partition has another owner."""
    pass_fence(connection, fence)
    GRANT.run(connection, [(lease_id,) for lease_id in leases])


def still_owner(connection: Connection, fence: Fence) -> bool:
    """Return True if the partition's term is still that of `fence`: no other master has claimed the partition."""
    term = connection.execute(
        text("SELECT owner_term FROM partitions WHERE partition = :partition"), {"partition": fence.partition}
    ).scalar()
    return bool(term == fence.term)


def queues_by_readiness(
    connection: Connection, partition: Partition, crawl_id: CrawlId, max_count: int, *, soon_ms: int
) -> list[QueueRow]:
    """Return up to `max_count` queues of a crawl in a partition: first the ready queues, then the other queues.

    A queue is ready if its host may be visited by `soon_ms` (Unix ms), and a URL is queued or due by then.

    The ready queues are sorted by the time of their last service, the longest ago first. So are the other queues.
    Queues without queued or waiting URLs are left out.
    """
    keys = {"crawl_id": crawl_id, "partition": partition, "max_count": max_count, "soon_ms": soon_ms}
    rows = connection.execute(_READY[connection.dialect.name], keys)
    return [QueueRow(*row) for row in rows]


def queue_rows(connection: Connection, keys: Sequence[tuple[CrawlId, HostId]]) -> list[QueueRow]:
    """Return the queues with these keys (crawl, host). Keys without a queue are left out."""
    if connection.dialect.name == "postgresql":
        rows: Iterable[Any] = QUEUES_POSTGRESQL.run(connection, keys) if keys else ()
        return [QueueRow(*row) for row in rows]
    queues: list[QueueRow] = []
    for crawl_id, host_id in keys:
        row = connection.execute(_ONE_QUEUE, {"crawl_id": crawl_id, "host_id": host_id}).first()
        if row is not None:
            queues.append(QueueRow(*row))
    return queues


def promote(connection: Connection, fence: Fence, crawl_id: CrawlId, host_id: HostId, now_ms: int) -> int:
    """Queue the waiting URLs of a host queue that are due now, the longest due first. Return how many were queued.

    One transaction queues at most _PROMOTED_AT_ONCE. If more are due, the queue stays due (Store.promote).
    """
    pass_fence(connection, fence)
    keys = {"crawl_id": crawl_id, "host_id": host_id, "now_ms": now_ms}
    n = connection.execute(_PROMOTE[connection.dialect.name], keys | {"max_count": _PROMOTED_AT_ONCE}).rowcount
    connection.execute(_PROMOTE_QUEUE, keys | {"n": n})
    return n


def _lease_row(connection: Connection, row: Any) -> LeaseRow:
    blob = bytes(row.fingerprints)
    order = tuple(Fingerprint(blob[i : i + _FINGERPRINT_BYTES]) for i in range(0, len(blob), _FINGERPRINT_BYTES))
    urls = connection.execute(
        _LEASED_URLS,
        {"crawl_id": row.crawl_id, "host_id": row.host_id, "lease_id": row.lease_id, "fingerprints": list(order)},
    )
    left = {Fingerprint(bytes(url.fingerprint)): _leased_url(url, row.host) for url in urls}
    lease = LeaseRow(
        lease_id=LeaseId(row.lease_id),
        crawl_id=CrawlId(row.crawl_id),
        spec=Revision(row.spec),
        host_id=HostId(row.host_id),
        host=row.host,
        slot=row.slot,
        pool=row.pool,
        delay_ms=row.delay_ms,
        order=order,
        urls=left,
        grants=row.grants,
        expired=row.expired,
        issued_at_ms=row.issued_at_ms,
    )
    read_last_fetches(connection, [lease])
    return lease


def _leased_url(row: Any, host: str) -> LeasedUrl:
    return LeasedUrl(
        url=whole(row.url, host),
        depth=row.depth + 1 if row.flags & FOUND_NEARER else row.depth,
        least=row.depth,
        attempt=row.attempts + 1,
        hops=row.hops,
        priority=row.priority,
        flags=row.flags & ~(FOUND_NEARER | FOUND_FEWER_HOPS),
        rank=row.rank,
        extra=extra_hops_of(row.flags) + (row.flags & FOUND_FEWER_HOPS != 0),
    )


assert [*map(int, UrlState)][:3] == [0, 1, 2], "the SQL above has these state numbers"
