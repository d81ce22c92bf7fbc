"""Checks the invariants of a whole database on one snapshot. It only reads.

Memory is bounded by a page of rows and the number of counters. Every table is read once or twice, in the order of its
keys. The check skips crawls that are deleted and whose rows are being removed.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, select, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.snapshot import DatabaseSnapshot
from shared.domain.frontier.states import (
    COUNTED_AS_PAGE,
    IS_REQUISITE,
    OUTSIDE_BUDGET,
    RETRY,
    REVISIT,
    CrawlState,
    UrlState,
)
from shared.domain.ids import MAX_PARTITIONS, Partition, partition_of_id
from shared.domain.ops.integrity import Damage, Findings

_PAGE: Final = 1_000
_MOST: Final = 1_000
"""The most rows that a query for orphaned rows, such as a page without its URL, reads. Further ones are not counted."""

_FINGERPRINT_BYTES: Final = 16
_PARTS: Final = ("retries", "revisits", "revisiting", "requisites")
_COUNTED: Final = ("queued", "waiting", "leased", "done", "failed", "excluded")

_HOST_URLS: Final = text(
    "SELECT g.*, h.host_id AS known, h.partition, q.host_id AS queue, q.queued AS q_queued, q.waiting AS q_waiting,"
    " q.leased AS q_leased, q.pages AS q_pages, q.next_due_ms FROM (SELECT u.crawl_id, u.host_id, count(*) AS n, "
    + ", ".join(f"count(*) FILTER (WHERE u.state = {UrlState[name.upper()]}) AS {name}" for name in _COUNTED)
    + f", count(*) FILTER (WHERE u.flags & {COUNTED_AS_PAGE} <> 0) AS pages,"
    f" count(*) FILTER (WHERE u.state IN (0, 1) AND u.flags & {RETRY | IS_REQUISITE} = {RETRY}) AS retries,"
    " count(*) FILTER (WHERE u.state IN (0, 1)"
    f" AND u.flags & {RETRY | REVISIT | IS_REQUISITE} = {REVISIT}) AS revisits,"
    f" count(*) FILTER (WHERE u.state = 2 AND u.flags & {OUTSIDE_BUDGET} <> 0) AS revisiting,"
    f" count(*) FILTER (WHERE u.state IN (0, 1) AND u.flags & {IS_REQUISITE} <> 0) AS requisites,"
    " min(u.rank) FILTER (WHERE u.state = 1) AS first_due,"
    " count(*) FILTER (WHERE u.state <> 2 AND u.lease_id IS NOT NULL) AS named,"
    " count(*) FILTER (WHERE u.state = 2 AND"
    " (l.lease_id IS NULL OR l.crawl_id <> u.crawl_id OR l.host_id <> u.host_id)) AS astray,"
    " count(*) FILTER (WHERE u.state = 3 AND f.fingerprint IS NULL) AS unfetched"
    " FROM urls u LEFT JOIN leases l ON l.lease_id = u.lease_id"
    " LEFT JOIN fetches f ON f.crawl_id = u.crawl_id AND f.host_id = u.host_id AND f.fingerprint = u.fingerprint"
    " WHERE (u.crawl_id, u.host_id) > (:crawl_id, :host_id)"
    " GROUP BY u.crawl_id, u.host_id ORDER BY u.crawl_id, u.host_id LIMIT :max_count) g"
    " LEFT JOIN hosts h ON h.host_id = g.host_id"
    " LEFT JOIN queues q ON q.crawl_id = g.crawl_id AND q.host_id = g.host_id ORDER BY g.crawl_id, g.host_id"
)
_QUEUES: Final = text(
    "SELECT q.crawl_id, q.host_id, q.partition, q.queued, q.waiting, q.leased, q.pages, h.partition AS h_partition,"
    " EXISTS (SELECT 1 FROM urls u WHERE u.crawl_id = q.crawl_id AND u.host_id = q.host_id) AS has_urls"
    " FROM queues q LEFT JOIN hosts h ON h.host_id = q.host_id WHERE (q.crawl_id, q.host_id) > (:crawl_id, :host_id)"
    " ORDER BY q.crawl_id, q.host_id LIMIT :max_count"
)
_HOSTS: Final = text(
    "SELECT host_id, partition, host FROM hosts WHERE host_id > :host_id ORDER BY host_id LIMIT :max_count"
)
_LEASES: Final = text(
    "SELECT l.*, h.host_id AS known FROM leases l LEFT JOIN hosts h ON h.host_id = l.host_id"
    " WHERE l.lease_id > :lease_id ORDER BY l.lease_id LIMIT :max_count"
)
_OUT: Final = text(
    "SELECT fingerprint FROM urls"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND lease_id = :lease_id AND state = 2"
)
_UNKNOWN_URL: Final = text(
    "SELECT f.crawl_id, f.host_id, f.fingerprint FROM fetches f WHERE NOT EXISTS (SELECT 1 FROM urls u WHERE"
    " u.crawl_id = f.crawl_id AND u.host_id = f.host_id AND u.fingerprint = f.fingerprint) LIMIT :max_count"
)
_UNREVISED: Final = text(
    "SELECT c.crawl_id, c.revision FROM crawls c WHERE c.state <> :deleted AND NOT EXISTS (SELECT 1 FROM"
    " crawl_revisions r WHERE r.crawl_id = c.crawl_id AND r.revision = c.revision) ORDER BY c.crawl_id LIMIT :max_count"
)
_UNKNOWN_PAGE: Final = text(
    "SELECT i.crawl_id, i.host_id, i.item_id FROM items i WHERE NOT EXISTS (SELECT 1 FROM item_pages p WHERE"
    " p.crawl_id = i.crawl_id AND p.host_id = i.host_id AND p.fingerprint = i.fingerprint) LIMIT :max_count"
)
_PARTED: Final = ("urls", "fetches", "queues", "leases", "crawl_counters", "items", "item_pages", "item_drafts",
    "page_versions", "page_changes", "seed_contexts", "url_contexts",
)  # fmt: skip
"""Tables whose rows each have the id of a crawl. An id that is not in the table `crawls` is an error."""


async def examine(snapshot: DatabaseSnapshot, placed: Callable[[str, int], int]) -> Findings:
    """Check the invariants of the whole database, and return all violations that were found.

    `placed` returns the partition of a host, given the host's name and the number of partitions.
    """
    found = Findings()
    every = await snapshot.read(lambda c: int(c.execute(select(schema.cluster.c.partitions)).scalar_one()))
    crawls = await snapshot.read(_crawls)
    removing = {crawl_id for crawl_id, removed in crawls.items() if removed is False}
    greatest: defaultdict[str, Counter[int]] = defaultdict(Counter)
    counted = await _urls(snapshot, found, removing)
    await _queues(snapshot, found, removing)
    await _hosts(snapshot, found, greatest["host"], lambda host: placed(host, every))
    await _leases(snapshot, found, greatest["lease"], removing)
    await snapshot.read(lambda c: _counters(c, found, counted, removing))
    await snapshot.read(lambda c: _numbers(c, found, greatest, every))
    await snapshot.read(lambda c: _orphans(c, found, removing))
    await snapshot.read(lambda c: _leftovers(c, found, crawls))
    return found


def _crawls(connection: Connection) -> dict[int, bool | None]:
    """Return all crawls in the table by id, each with one of these values:

    - None: the crawl is not deleted.
    - False: the crawl is deleted, and its rows are being removed.
    - True: the crawl is deleted, and its rows were removed.
    """
    columns = schema.crawls.c
    rows = connection.execute(select(columns.crawl_id, columns.state, columns.collected_at_ms))
    return {
        int(row.crawl_id): None if row.state != CrawlState.DELETED else row.collected_at_ms is not None for row in rows
    }


async def _urls(snapshot: DatabaseSnapshot, found: Findings, removing: set[int]) -> dict[tuple[int, int], Counter[str]]:
    """Check the URLs of each host in each crawl, except the crawls in `removing`. Add violations to `found`.

    The URLs are compared with the row of their queue and with its leases. Return the counted numbers of URLs, such as
    `queued`, by (crawl id, partition).
    """
    counted: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    after = {"crawl_id": -1, "host_id": -1}
    while True:
        rows = await snapshot.read(partial(_read, _HOST_URLS, after))
        for row in rows:
            found.looked_at["urls"] += row.n
            if row.crawl_id in removing:
                continue
            _host_urls(row, found)
            if row.known is not None:
                numbers = counted[(row.crawl_id, row.partition)]
                numbers.update({name: row._mapping[name] for name in (*_COUNTED[2:], "pages", *_PARTS)})
                numbers.update(queued=row.queued + row.waiting, discovered=row.n)
        if len(rows) < _PAGE:
            return counted
        after = {"crawl_id": rows[-1].crawl_id, "host_id": rows[-1].host_id}


def _host_urls(row: Row[Any], found: Findings) -> None:
    where = f"crawl {row.crawl_id}, host {row.host_id}"
    if row.known is None:
        found.add(Damage.ORPHAN, where, f"{row.n} URLs of a host that does not exist")
    if row.queue is None:
        found.add(Damage.ORPHAN, where, f"{row.n} URLs without a queue")
    else:
        names = ("queued", "waiting", "leased", "pages")
        kept = {name: row._mapping[f"q_{name}"] for name in names}
        found.add_differences(Damage.QUEUE, where, {name: row._mapping[name] for name in names}, kept)
        if row.waiting and not 0 < row.next_due_ms <= row.first_due:
            text = f"the queue is due at {row.next_due_ms}, and its first URL is due at {row.first_due}"
            found.add(Damage.QUEUE_SLEEPS, where, text)
    if row.astray:
        found.add(Damage.LEASE, where, f"{row.astray} URLs are leased without a lease of their queue")
    if row.named:
        found.add(Damage.LEASE, where, f"{row.named} URLs name a lease and are not leased")
    if row.unfetched:
        found.add(Damage.UNFETCHED, where, f"{row.unfetched} URLs are done and were never fetched")


async def _queues(snapshot: DatabaseSnapshot, found: Findings, removing: set[int]) -> None:
    after = {"crawl_id": -1, "host_id": -1}
    while True:
        rows = await snapshot.read(partial(_read, _QUEUES, after))
        for row in rows:
            found.looked_at["queues"] += 1
            where = f"crawl {row.crawl_id}, host {row.host_id}"
            if row.h_partition is None:
                found.add(Damage.ORPHAN, where, "a queue of a host that does not exist")
            elif row.h_partition != row.partition:
                found.add(Damage.PLACE, where, f"a queue in partition {row.partition}, its host in {row.h_partition}")
            if not row.has_urls and row.crawl_id not in removing:
                kept = {name: row._mapping[name] for name in ("queued", "waiting", "leased", "pages")}
                found.add_differences(Damage.QUEUE, where, {}, kept)
        if len(rows) < _PAGE:
            return
        after = {"crawl_id": rows[-1].crawl_id, "host_id": rows[-1].host_id}


async def _hosts(
    snapshot: DatabaseSnapshot, found: Findings, greatest: Counter[int], placed: Callable[[str], int]
) -> None:
    after = -1
    while True:
        rows = await snapshot.read(partial(_read, _HOSTS, {"host_id": after}))
        for row in rows:
            found.looked_at["hosts"] += 1
            partition = partition_of_id(row.host_id)
            greatest[partition] = max(greatest[partition], row.host_id // MAX_PARTITIONS)
            meant = placed(row.host)
            if not row.partition == partition == meant:
                text = f"in partition {row.partition}, numbered for {partition}, belongs to {meant}"
                found.add(Damage.PLACE, f"host {row.host_id} {row.host}", text)
        if len(rows) < _PAGE:
            return
        after = rows[-1].host_id


async def _leases(snapshot: DatabaseSnapshot, found: Findings, greatest: Counter[int], removing: set[int]) -> None:
    after = -1
    while True:
        rows = await snapshot.read(partial(_leased, after))
        for row, out in rows:
            found.looked_at["leases"] += 1
            where = f"lease {row.lease_id}, crawl {row.crawl_id}, host {row.host_id}"
            partition = partition_of_id(row.lease_id)
            greatest[partition] = max(greatest[partition], row.lease_id // MAX_PARTITIONS)
            if not row.partition == partition == partition_of_id(row.host_id):
                hosts = partition_of_id(row.host_id)
                text = f"in partition {row.partition}, numbered for {partition}, of a host numbered for {hosts}"
                found.add(Damage.PLACE, where, text)
            if row.known is None:
                found.add(Damage.ORPHAN, where, "a lease of a host that does not exist")
            if row.crawl_id not in removing and (unnamed := out - set(_parts(row.fingerprints))):
                found.add(Damage.LEASE, where, f"{len(unnamed)} URLs are leased under it, and it does not name them")
        if len(rows) < _PAGE:
            return
        after = rows[-1][0].lease_id


def _read(query: TextClause, after: Mapping[str, int], connection: Connection) -> Sequence[Row[Any]]:
    """Return the next rows of `query`, at most _PAGE.

    `after`: the key of the last row that was read before, as parameters of the query.
    """
    return connection.execute(query, {**after, "max_count": _PAGE}).all()


def _leased(after: int, connection: Connection) -> Sequence[tuple[Row[Any], set[bytes]]]:
    """Return at most _PAGE leases with ids above `after`, each with the fingerprints of the URLs leased under it."""
    leases = connection.execute(_LEASES, {"lease_id": after, "max_count": _PAGE}).all()
    keys = ("crawl_id", "host_id", "lease_id")
    return [
        (lease, set(connection.execute(_OUT, {key: lease._mapping[key] for key in keys}).scalars())) for lease in leases
    ]


def _parts(fingerprints: bytes) -> Iterator[bytes]:
    for start in range(0, len(fingerprints), _FINGERPRINT_BYTES):
        yield fingerprints[start : start + _FINGERPRINT_BYTES]


def _counters(
    connection: Connection, found: Findings, counted: dict[tuple[int, int], Counter[str]], removing: set[int]
) -> None:
    names = ("discovered", "queued", "leased", "done", "failed", "excluded", "pages", *_PARTS)
    kept = {
        (int(row.crawl_id), int(row.partition)): row
        for row in connection.execute(select(schema.crawl_counters))
        if row.crawl_id not in removing
    }
    found.looked_at["crawl_counters"] += len(kept)
    for crawl_id, partition in sorted({*kept, *counted}):
        where, row = f"crawl {crawl_id}, partition {partition}", kept.get((crawl_id, partition))
        numbers = {} if row is None else {name: int(row._mapping[name]) for name in names}
        found.add_differences(Damage.COUNTER, where, dict(counted.get((crawl_id, partition), {})), numbers)
        if row is None:
            continue
        states = row.queued + row.leased + row.done + row.failed + row.excluded
        if row.discovered != states:
            found.add(Damage.URL_IDENTITY, where, f"discovered is {row.discovered}, the sum of the states is {states}")
        total = row.new + row.known + row.refused
        if row.accepted != total:
            found.add(Damage.LINK_IDENTITY, where, f"accepted is {row.accepted}, new + known + refused is {total}")


def _numbers(connection: Connection, found: Findings, greatest: defaultdict[str, Counter[int]], every: int) -> None:
    columns = schema.partitions.c
    rows = connection.execute(select(columns.partition, columns.next_host, columns.next_lease)).all()
    if len(rows) != every or {row.partition for row in rows} != set(range(every)):
        found.add(Damage.ORPHAN, "partitions", f"{len(rows)} rows of a cluster of {every} partitions")
    for row in rows:
        for what, following in (("host", row.next_host), ("lease", row.next_lease)):
            given = greatest[what][Partition(row.partition)]
            if following <= given:
                text = f"the next {what} would be number {following}, and {given} is in use"
                found.add(Damage.NUMBER, f"partition {row.partition}", text)


def _orphans(connection: Connection, found: Findings, removing: set[int]) -> None:
    for row in connection.execute(_UNKNOWN_URL, {"max_count": _MOST}):
        if row.crawl_id not in removing:
            where = f"crawl {row.crawl_id}, host {row.host_id}"
            found.add(Damage.ORPHAN, where, f"a fetch of a URL that does not exist ({bytes(row.fingerprint).hex()})")
    for row in connection.execute(_UNKNOWN_PAGE, {"max_count": _MOST}):
        if row.crawl_id not in removing:
            where = f"crawl {row.crawl_id}, host {row.host_id}"
            found.add(Damage.ORPHAN, where, f"an item of a page that does not exist ({bytes(row.item_id).hex()})")
    for row in connection.execute(_UNREVISED, {"deleted": CrawlState.DELETED.value, "max_count": _MOST}):
        found.add(Damage.ORPHAN, f"crawl {row.crawl_id}", f"its revision {row.revision} does not exist")


def _leftovers(connection: Connection, found: Findings, crawls: dict[int, bool | None]) -> None:
    """Find rows of crawls that never existed or whose deletion is complete.

    Add a violation to `found` for each such crawl and table. Leases and counters of a deleted crawl are no violation,
    because the deletion may leave them behind. `crawls`: the result of `_crawls`.
    """
    # Each table is read by its index, with one small query for each crawl in it.
    for table in _PARTED:
        crawl_id = connection.execute(text(f"SELECT min(crawl_id) FROM {table}")).scalar()
        while crawl_id is not None:
            if crawl_id not in crawls:
                found.add(Damage.ORPHAN, table, f"rows of crawl {crawl_id}, which never existed")
            elif crawls[crawl_id] and table not in ("leases", "crawl_counters"):
                found.add(Damage.LEFTOVER, table, f"rows of crawl {crawl_id}, whose rows were removed")
            beyond = text(f"SELECT min(crawl_id) FROM {table} WHERE crawl_id > :crawl_id")
            crawl_id = connection.execute(beyond, {"crawl_id": crawl_id}).scalar()
