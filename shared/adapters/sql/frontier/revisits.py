"""Leases stored pages that are fetched again, and writes the outcomes of these fetches, in an owner's transaction.

A stored page waits until the due time of its next fetch. If more of its links may be in scope than at its last fetch,
the page becomes due at once (`make_due`). The page then has two flags (DUE_AT_ONCE):

- REVISIT marks a page that is stored already. So the new fetch uses no page of the crawl's budget.
- RETRY marks a retry. A running refresh fetches only pages that were due when the refresh began, but it fetches every
  retry. So the refresh fetches this page, too.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import AMONG, Bulk, updating
from shared.adapters.sql.engine.fence import FENCE_VERSION
from shared.adapters.sql.frontier.url_flags import RANK_DUE
from shared.domain.frontier.page_history import decoded, packed
from shared.domain.frontier.recrawl_pages import COUNTED, PageCounts, counted, without_rate
from shared.domain.frontier.revisits import LastFetch
from shared.domain.frontier.states import COUNTED_AS_PAGE, DUE_AT_ONCE, RETRY, REVISIT, UrlState, queued_as
from shared.domain.frontier.store_model import Changes, DiscoveryResult, LeaseRequest, LeaseRow
from shared.domain.ids import CrawlId, Fingerprint, HostId, Partition

_OF_HOST: Final = "crawl_id = :crawl_id AND host_id = :host_id"
_PROMOTED_AT_ONCE: Final = 5_000
_DUE: Final = (
    f"SELECT fingerprint FROM urls WHERE {_OF_HOST} AND state = 1 AND rank <= :now_ms AND flags & {REVISIT} {{}} 0"
    f" AND (rank <= :until_ms OR flags & {RETRY} <> 0) ORDER BY rank LIMIT :max_count"
)
_PROMOTE: Final = {
    dialect: text(f"UPDATE urls SET state = 0, rank = {RANK_DUE} WHERE {_OF_HOST} AND {among.format(_DUE.format('='))}")
    for dialect, among in AMONG.items()
}
_TAKE: Final = {
    dialect: text(
        f"UPDATE urls SET state = 2, lease_id = :lease_id WHERE {_OF_HOST} AND {among.format(_DUE.format('<>'))}"
        " RETURNING lease_id, fingerprint, url, depth, attempts, hops, priority, flags, rank"
    )
    for dialect, among in AMONG.items()
}
_QUEUE: Final = text(
    "UPDATE queues SET queued = queued + :n, waiting = waiting - :n, next_due_ms = coalesce((SELECT min(rank) FROM urls"
    f" WHERE {_OF_HOST} AND state = 1), 0) WHERE {_OF_HOST}"
)
_LAST: Final = text(
    "SELECT fingerprint, at_ms, digest, etag, last_modified, recrawl, reason FROM fetches"
    f" WHERE {_OF_HOST} AND fingerprint IN :fingerprints AND (page OR recrawl IS NOT NULL)"
).bindparams(bindparam("fingerprints", expanding=True))

_HISTORIES: Final = text(
    f"SELECT fingerprint, at_ms, recrawl FROM fetches WHERE {_OF_HOST} AND fingerprint IN :fingerprints"
    " AND recrawl IS NOT NULL"
).bindparams(bindparam("fingerprints", expanding=True))
_AT_ONCE: Final = 500

_KEYS: Final = ("crawl_id", "host_id", "fingerprint")
HISTORY: Final = updating(schema.fetches, _KEYS, ("recrawl",), "recrawl = {v}recrawl")
_VERSION_COLUMNS: Final = (
    "at_ms", "status", "size", "mime", "digest", "title", "truncated", "segment", '"offset"', "length"
)  # fmt: skip
_KEEP: Final = Bulk(
    f"INSERT INTO page_versions (crawl_id, host_id, fingerprint, version, {', '.join(_VERSION_COLUMNS)})"
    f" SELECT crawl_id, host_id, fingerprint, CAST(:version AS INTEGER), {', '.join(_VERSION_COLUMNS)} FROM fetches"
    f" WHERE {_OF_HOST} AND fingerprint = :fingerprint AND page AND segment IS NOT NULL"
    " ON CONFLICT (crawl_id, host_id, fingerprint, version) DO NOTHING",
    (*_KEYS, "version"),
)
_FORGET: Final = Bulk(
    f"DELETE FROM page_versions WHERE {_OF_HOST} AND fingerprint = :fingerprint AND version <= :forget",
    (*_KEYS, "forget"),
)
_REVISITED: Final = updating(
    schema.fetches,
    _KEYS,
    ("recrawl", "etag", "last_modified", "items_at_ms"),
    "recrawl = {v}recrawl, etag = coalesce({v}etag, {t}.etag),"
    " last_modified = coalesce({v}last_modified, {t}.last_modified),"
    " items_at_ms = coalesce({v}items_at_ms, {t}.items_at_ms)",
)
_SIGNALS: Final = updating(schema.queues, _KEYS[:2], ("signals",), "signals = {v}signals")
_LOG: Final = text(
    "INSERT INTO page_changes (crawl_id, at_ms, partition, number, entries)"
    f" VALUES (:crawl_id, :at_ms, :partition, {FENCE_VERSION}, :entries)"
)
_DUE_AT_ONCE: Final = updating(
    schema.urls,
    _KEYS,
    ("rank",),
    f"state = {int(UrlState.WAITING)}, rank = {{v}}rank, attempts = 0, flags = {{t}}.flags | {DUE_AT_ONCE}",
)
_UNCONDITIONAL: Final = updating(
    schema.fetches, _KEYS, ("etag", "last_modified"), "etag = {v}etag, last_modified = {v}last_modified"
)
_ALSO_WAITING: Final = text(
    "UPDATE queues SET waiting = waiting + :waiting, next_due_ms = CASE WHEN next_due_ms = 0 OR next_due_ms > :due_ms"
    " THEN :due_ms ELSE next_due_ms END WHERE crawl_id = :crawl_id AND host_id = :host_id"
)
_NO_LONGER_WAITING: Final = text(
    "UPDATE queues SET waiting = waiting - :n WHERE crawl_id = :crawl_id AND host_id = :host_id"
)
_place = attrgetter(*_KEYS)
_new_values = attrgetter("recrawl", "etag", "last_modified", "items_at_ms")
_Key = tuple[CrawlId, HostId, Fingerprint]


_DUE_BEFORE: Final = text(
    "SELECT 1 FROM queues WHERE crawl_id = :crawl_id AND waiting > 0 AND next_due_ms <= :before_ms LIMIT 1"
)

_RETRIED: Final = text(
    "SELECT 1 FROM urls WHERE crawl_id = :crawl_id AND state = 1"
    f" AND flags & {RETRY | REVISIT} = {RETRY | REVISIT} LIMIT 1"
)
_RATES: Final = text(
    "SELECT kind, key, n FROM crawl_tallies WHERE crawl_id = :crawl_id AND partition = :partition AND kind IN :kinds"
    " AND n > 0"
).bindparams(bindparam("kinds", expanding=True))


def page_counts(connection: Connection, crawl_id: CrawlId, partition: Partition) -> PageCounts:
    """Return numbers of pages and sitemaps of a crawl in a partition, from which the owner computes due times.

    `result[kind][bucket]` is a number. A bucket is a range of rates. For example, bucket 70 may be the range of about 4
    to 5 changes a day. Then `result["rates"][70]` is the number of pages that change about 4 to 5 times a day.

    The kinds are the constants in `recrawl_pages.COUNTED`. A sign is a date in a sitemap that shows a change of a page.

    - `rates`: the number of pages, by their rate of changes without a sign.
    - `followed`: the number of pages that have signs, by their rate of all changes.
    - `signalled`: how many of their changes have signs, as a sum over the pages, by their rate of all changes.
    - `sitemap_rates`: the number of sitemaps and feeds, by their rate of fetches.
    """
    counts: dict[str, dict[int, int]] = {kind: {} for kind in COUNTED}
    for row in connection.execute(_RATES, {"crawl_id": crawl_id, "partition": partition, "kinds": list(COUNTED)}):
        counts[row.kind][int(row.key)] = int(row.n)
    return counts


def forget_rates(
    connection: Connection, crawl_id: CrawlId, host_id: int, ended: Mapping[bytes, int]
) -> dict[tuple[CrawlId, str, str], int]:
    """Delete the stored rates of change of pages and sitemaps that the crawl no longer fetches.

    Return what to add to the crawl's counts by reason (`add_tallies`). These numbers are negative.

    `ended`: the URLs of the host that are no longer fetched: the flags of each, by fingerprint.
    """
    tallies: dict[tuple[CrawlId, str, str], int] = defaultdict(int)
    stored = [key for key, flags in ended.items() if flags & (COUNTED_AS_PAGE | REVISIT)]
    for start in range(0, len(stored), _AT_ONCE):
        histories = []
        keys = {"crawl_id": crawl_id, "host_id": host_id, "fingerprints": stored[start : start + _AT_ONCE]}
        for row in connection.execute(_HISTORIES, keys):
            fingerprint = bytes(row.fingerprint)
            history = decoded(bytes(row.recrawl), row.at_ms)
            for kind, bucket, n in counted(history, page=bool(ended[fingerprint] & COUNTED_AS_PAGE)):
                tallies[crawl_id, kind, str(bucket)] -= n
            if history.rate:
                histories.append((without_rate(history).encoded(), crawl_id, host_id, fingerprint))
        HISTORY.run(connection, histories)
    return dict(tallies)


def due_before(connection: Connection, crawl_id: CrawlId, before_ms: int) -> bool:
    """Return True if a retry or a next fetch of the crawl's URLs may be due by `before_ms` (Unix ms).

    False is certain, True may be wrong. The cost grows with the crawl's number of hosts (Store.due_before).
    """
    return connection.execute(_DUE_BEFORE, {"crawl_id": crawl_id, "before_ms": before_ms}).first() is not None


def waits_for_retry(connection: Connection, crawl_id: CrawlId) -> bool:
    """Return True if a stored page or a sitemap of the crawl waits for a retry (Store.waits_for_retry).

    The cost grows with the crawl's number of waiting URLs.
    """
    return connection.execute(_RETRIED, {"crawl_id": crawl_id}).first() is not None


def take_due(connection: Connection, request: LeaseRequest, now_ms: int) -> Sequence[Row[Any]]:
    """Lease the stored pages and the sitemaps that are due for their next fetch. Return the rows of these URLs.

    The URLs come from the queue of `request`, the longest due first. Each URL was waiting, and is leased now under
    `request.lease_id`. The caller must do the rest:

    - Insert the row of the lease.
    - Correct the counts of the queue (table `queues`). This call counts the leased URLs as `queued` there. The caller
      subtracts their number from `queued`, and adds it to `leased`.

    This call also queues the retries of the queue that are due, and updates the counts for them. The caller has nothing
    to do for these retries, and the result does not contain them.
    """
    keys = {"crawl_id": request.crawl_id, "host_id": request.host_id, "now_ms": now_ms, "until_ms": now_ms}
    dialect = connection.dialect.name
    n = connection.execute(_PROMOTE[dialect], keys | {"max_count": _PROMOTED_AT_ONCE}).rowcount
    keys["until_ms"] = request.due_until_ms or now_ms
    max_count = min(request.max_revisits, request.max_together)
    rows = connection.execute(_TAKE[dialect], keys | {"lease_id": request.lease_id, "max_count": max_count}).all()
    connection.execute(_QUEUE, keys | {"n": n + len(rows)})
    return rows


def read_last_fetches(connection: Connection, leases: Iterable[LeaseRow]) -> None:
    """Read the stored fetch of each leased URL whose page is stored, and set `last` of the URL to it."""
    for lease in leases:
        stored = {key: url for key, url in lease.urls.items() if url.flags & (COUNTED_AS_PAGE | REVISIT)}
        if not stored:
            continue
        place = {"crawl_id": lease.crawl_id, "host_id": lease.host_id, "fingerprints": list(stored)}
        for row in connection.execute(_LAST, place):
            stored[Fingerprint(bytes(row.fingerprint))].last = LastFetch(
                row.at_ms,
                bytes(row.digest or b""),
                row.etag,
                row.last_modified,
                decoded(None if row.recrawl is None else bytes(row.recrawl), row.at_ms),
                row.reason or "",
            )


def keep_versions(connection: Connection, changes: Changes) -> None:
    """Save the old versions of changed pages in the table `page_versions`, before new versions overwrite them.

    Then delete the oldest saved versions of these pages, so that each page keeps only the allowed number. Call this
    before the new fetches are written.
    """
    replaced = sorted(changes.superseded, key=_place)
    _KEEP.run(connection, [(*_place(each), each.version) for each in replaced])
    _FORGET.run(connection, [(*_place(each), each.forget) for each in replaced if each.forget > 0])


def write(connection: Connection, partition: Partition, changes: Changes) -> None:
    """Write three parts of `changes` that only crawls with repeated fetches have.

    - `revisited`: fetches that brought no new version. Each page gets its new history, ETag and Last-Modified. If the
      body came, the items of the fetch are accepted. Fetches with a new version are in `fetches`, which `apply.write`
      writes.
    - `page_changes`: new entries of the log of changes, for pages that were new, had changed or were gone.
    - `signals`: for each queue, how reliable the dates in sitemaps and feeds were as signs of change.
    """
    revisited = sorted(changes.revisited, key=_place)
    _REVISITED.run(connection, [(*_new_values(each), *_place(each)) for each in revisited])
    _SIGNALS.run(connection, [(signals, *key) for key, signals in sorted(changes.signals.items())])
    if changes.page_changes:
        connection.execute(
            _LOG,
            [
                {"crawl_id": crawl_id, "at_ms": changes.at_ms, "partition": partition, "entries": packed(entries)}
                for crawl_id, entries in sorted(changes.page_changes.items())
            ],
        )


def make_due(connection: Connection, keys: Iterable[_Key], now_ms: int) -> None:
    """Make stored pages due at `now_ms` (Unix ms). Their next requests have no validators, so that the body comes.

    The caller corrects the counts of the queues and of the crawl. The pages count as `retries`.
    """
    ordered = sorted(keys)
    _DUE_AT_ONCE.run(connection, [(now_ms, *key) for key in ordered])
    _UNCONDITIONAL.run(connection, [("", "", *key) for key in ordered])


class PagesAgain:
    """Queues known pages again after a batch of discoveries, for example if a shorter way to a page was found.

    Call `add` for each page and then `write` once. There are two cases:

    - The page counts in the budget, and its crawl fetches pages repeatedly: `write` makes the page due at once.
    - Otherwise: the caller queues the page as a new URL. `write` only corrects the number of waiting pages.

    `recrawled`: the crawls that fetch pages repeatedly.
    """

    __slots__ = ("_due", "_moved", "_recrawled", "_waiting")

    def __init__(self, recrawled: Container[CrawlId]) -> None:
        self._recrawled = recrawled
        self._due: list[_Key] = []
        self._waiting: dict[tuple[CrawlId, HostId], int] = defaultdict(int)
        self._moved: dict[tuple[CrawlId, HostId], int] = defaultdict(int)

    def add(
        self, key: _Key, flags: int, deltas: dict[str, int], queued: dict[tuple[CrawlId, HostId], int], *, stored: bool
    ) -> None:
        """Record a known page that is queued again. Correct the caller's counts for the page.

        - `flags`: the flags of the page before.
        - `deltas`: what the caller adds to the counters of the crawl, such as `done`.
        - `queued`: what the caller adds to the number of queued URLs of each queue.
        - `stored`: the state of the page before. True: the page waited for its next fetch. False: the page was done.
        """
        crawl_id, host_id, _ = key
        if stored:
            deltas[queued_as(flags) or "revisits"] -= 1
        else:
            deltas["done"] -= 1
            deltas["queued"] += 1
        if crawl_id in self._recrawled and flags & COUNTED_AS_PAGE:
            deltas["retries"] += 1
            self._due.append(key)
            self._waiting[crawl_id, host_id] += not stored
        else:
            queued[crawl_id, host_id] += 1
            self._moved[crawl_id, host_id] += stored

    def write(self, connection: Connection, result: DiscoveryResult, now_ms: int) -> None:
        """Write the changes of all added pages. Call this after the rows of the pages were written as queued.

        If a queue has more waiting pages now, enter its new due time in `result.due`.
        """
        make_due(connection, self._due, now_ms)
        for (crawl_id, host_id), n in sorted(self._waiting.items()):
            keys = {"crawl_id": crawl_id, "host_id": host_id, "waiting": n, "due_ms": now_ms}
            connection.execute(_ALSO_WAITING, keys)
            result.due[crawl_id, host_id] = now_ms
        for (crawl_id, host_id), n in sorted(self._moved.items()):
            if n:
                connection.execute(_NO_LONGER_WAITING, {"crawl_id": crawl_id, "host_id": host_id, "n": n})
