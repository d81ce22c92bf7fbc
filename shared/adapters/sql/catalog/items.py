"""The table of the items that were extracted from pages. One process writes it (`shared.ports.items.ItemTable`).

The items of a fetch replace the stored items of its page, unless the stored items are of a later fetch. So a repeated
or late message does no harm. A fetch is accepted when the owner of its page stores the outcome. Before that, the items
of the fetch wait in the table `item_drafts`. If the lease of the fetch ends without an outcome, the items are dropped.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, LargeBinary, Row, TextClause, bindparam, select, text

from shared.adapters.sql.catalog.list_bytes import byte_length, first_page
from shared.adapters.sql.engine import page_schema, schema
from shared.adapters.sql.engine.bulk import Bulk
from shared.adapters.sql.engine.context_joins import joined
from shared.adapters.sql.engine.executor import SqlAdapter, bound, read, write
from shared.adapters.sql.frontier.apply import bury, storable
from shared.adapters.sql.frontier.crawl_rows import chunked
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.seed_contexts import decoded
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import DeadLetterRow
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Term
from shared.domain.reads.items import (
    CrawlItems,
    ItemChanges,
    ItemFence,
    ItemFilter,
    ItemLetter,
    ItemPosition,
    PageItems,
    StoredItem,
    TakenItem,
)
from shared.domain.web.robots import NotIndexed

SCANNED: Final = 5_000
"""The most items that one read of the list examines."""

LETTER: Final = "items"
_ONLY: Final = 1
_AT_ONCE: Final = 5_000
"""The greatest number of fingerprints that one query gets as parameters."""

_LETTERS_OF: Final = Partition(0)
"""The partition under which all dead letters of items are stored. Its owner replays and discards them."""

_Place = tuple[CrawlId, HostId, Fingerprint]
_Fetched = tuple[CrawlId, PageItems]

_CLAIM: Final = text(
    f"INSERT INTO item_writer (id, term, version) VALUES ({_ONLY}, :term, 1) ON CONFLICT (id)"
    " DO UPDATE SET term = excluded.term, version = item_writer.version + 1 WHERE item_writer.term <= excluded.term"
)
_PASS: Final = text(
    "UPDATE item_writer SET version = version + 1, stream_created_ns = :stream_created_ns, sequence = :sequence,"
    f" timed_sequence = :timed_sequence, at_ns = :at_ns WHERE id = {_ONLY} AND term = :term AND version = :version"
)
_NOT_INDEXED: Final = ", ".join(f"'{reason}'" for reason in NotIndexed)
_READ: Final = f"(f.page OR f.reason IN ({_NOT_INDEXED}))"
"""An SQL condition for fetches that found a page, indexed or not. Only such fetches replace the items of a page."""

_LIVING: Final = text("SELECT lease_id FROM leases WHERE lease_id IN :leases").bindparams(
    bindparam("leases", expanding=True)
)
_ACCEPTED: Final = text(
    "SELECT fingerprint, at_ms, items_at_ms FROM fetches f"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint IN :fingerprints"
    f" AND {_READ}"
).bindparams(bindparam("fingerprints", expanding=True))
_PUT_DRAFT: Final = Bulk(
    "INSERT INTO item_drafts (crawl_id, host_id, fingerprint, lease_id, grants, url, at_ms, items)"
    " VALUES (:crawl_id, :host_id, :fingerprint, :lease_id, :grants, :url, :at_ms, :items)"
    " ON CONFLICT (crawl_id, host_id, fingerprint, lease_id, grants) DO UPDATE SET url = excluded.url,"
    " at_ms = excluded.at_ms, items = excluded.items",
    ("crawl_id", "host_id", "fingerprint", "lease_id", "grants", "url", "at_ms", "items"),
)
_DROP_DRAFT: Final = Bulk(
    "DELETE FROM item_drafts WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
    " AND lease_id = :lease_id AND grants = :grants",
    ("crawl_id", "host_id", "fingerprint", "lease_id", "grants"),
)
_DECIDED: Final = text(
    "SELECT d.*, f.at_ms IS NOT NULL AS accepted FROM item_drafts d"
    " LEFT JOIN leases l ON l.lease_id = d.lease_id"
    " LEFT JOIN fetches f ON f.crawl_id = d.crawl_id AND f.host_id = d.host_id AND f.fingerprint = d.fingerprint"
    f" AND {_READ} AND d.at_ms IN (f.at_ms, f.items_at_ms)"
    " WHERE l.lease_id IS NULL OR f.at_ms IS NOT NULL"
    " ORDER BY d.crawl_id, d.host_id, d.fingerprint, d.lease_id, d.grants LIMIT :max_count"
)
_WITH_DRAFTS: Final = text(
    "SELECT c.crawl_id FROM crawls c WHERE c.crawl_id IN :crawl_ids"
    " AND EXISTS (SELECT 1 FROM item_drafts d WHERE d.crawl_id = c.crawl_id)"
).bindparams(bindparam("crawl_ids", expanding=True))
_taken: Final = msgspec.msgpack.Decoder(tuple[TakenItem, ...])
_KNOWN: Final = text(
    "SELECT fingerprint, lease_id, grants FROM item_pages"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint IN :fingerprints"
).bindparams(bindparam("fingerprints", expanding=True))
_CLEAR: Final = Bulk(
    "DELETE FROM items WHERE crawl_id = :crawl_id AND fingerprint = :fingerprint AND host_id = :host_id",
    ("crawl_id", "host_id", "fingerprint"),
)
_PUT_PAGE: Final = Bulk(
    "INSERT INTO item_pages (crawl_id, host_id, fingerprint, url, lease_id, grants, at_ms)"
    " VALUES (:crawl_id, :host_id, :fingerprint, :url, :lease_id, :grants, :at_ms)"
    " ON CONFLICT (crawl_id, host_id, fingerprint) DO UPDATE SET url = excluded.url, lease_id = excluded.lease_id,"
    " grants = excluded.grants, at_ms = excluded.at_ms",
    ("crawl_id", "host_id", "fingerprint", "url", "lease_id", "grants", "at_ms"),
)
_PUT_ITEM: Final = Bulk(
    "INSERT INTO items (crawl_id, item_id, rule, host_id, fingerprint, data)"
    " VALUES (:crawl_id, :item_id, :rule, :host_id, :fingerprint, :data)"
    " ON CONFLICT (crawl_id, item_id) DO UPDATE SET rule = excluded.rule, host_id = excluded.host_id,"
    " fingerprint = excluded.fingerprint, data = excluded.data",
    ("crawl_id", "item_id", "rule", "host_id", "fingerprint", "data"),
)
_REMOVE: Final = tuple(
    text(
        f"DELETE FROM {table} WHERE crawl_id = :crawl_id AND {keys} IN"
        f" (SELECT {keys.strip('()')} FROM {table} WHERE crawl_id = :crawl_id LIMIT :max_count)"
    )
    for table, keys in (
        ("items", "item_id"),
        ("item_pages", "(host_id, fingerprint)"),
        ("item_drafts", "(host_id, fingerprint, lease_id, grants)"),
    )
)
_COLUMNS: Final = "i.item_id, i.rule, i.host_id, i.fingerprint, i.data, p.url, p.at_ms, s.context"
_OF_PAGE: Final = (
    " JOIN item_pages p ON p.crawl_id = i.crawl_id AND p.host_id = i.host_id AND p.fingerprint = i.fingerprint"
)
_WHOLE: Final = _OF_PAGE + joined("p")
_THESE: Final = text(
    f"SELECT {_COLUMNS} FROM items i{_WHOLE} WHERE i.crawl_id = :crawl_id AND i.item_id IN :item_ids ORDER BY i.item_id"
).bindparams(bindparam("item_ids", expanding=True, type_=LargeBinary))
_ONE: Final = text(f"SELECT {_COLUMNS} FROM items i{_WHOLE} WHERE i.crawl_id = :crawl_id AND i.item_id = :item_id")


def claim(connection: Connection, term: Term) -> tuple[ItemFence, ItemPosition]:
    """Become the writer of the table of items under `term`. Transactions of earlier writers then fail.

    Return the fence for the next write, and the stored position. Raise OwnershipLost if `term` is outdated.
    """
    if connection.execute(_CLAIM, {"term": term}).rowcount != 1:
        raise OwnershipLost(f"items are written under a term later than {term}")
    version = connection.execute(select(page_schema.item_writer.c.version)).scalar_one()
    return ItemFence(term, version), position(connection)


def waiting(connection: Connection, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
    """Return those of the crawls that have drafts: items of a fetch whose outcome is not known yet."""
    return {
        CrawlId(n)
        for some in chunked(crawl_ids)
        for n in connection.execute(_WITH_DRAFTS, {"crawl_ids": some}).scalars()
    }


def position(connection: Connection) -> ItemPosition:
    """Return the position in the stream of items up to which the table has all messages."""
    row = connection.execute(select(page_schema.item_writer)).first()
    if row is None:
        return ItemPosition()
    return ItemPosition(row.stream_created_ns, row.sequence, row.timed_sequence, row.at_ns)


def apply(
    connection: Connection,
    fence: ItemFence,
    position: ItemPosition,
    messages: Sequence[CrawlItems],
    letters: Sequence[ItemLetter],
) -> ItemChanges:
    """Store the items of the messages and the dead letters, and set the stored position in the stream of items.

    Items of an accepted fetch replace the earlier items of the page. Items of a fetch that may still be accepted become
    drafts, which `resolve_drafts` stores or drops later. Other items are dropped. Return how many were stored and
    dropped. Raise OwnershipLost if another writer has claimed the table.
    """
    _pass(connection, fence, position)
    for letter in letters:
        kept = DeadLetterRow(letter.crawl_id, LETTER, letter.at_ms, letter.evidence, payload=letter.payload)
        bury(connection, _LETTERS_OF, kept)
    living = _living(connection, {message.crawl_id for message in messages})
    dropped: Counter[str] = Counter()
    dropped["deleted"] = sum(_items(message.pages) for message in messages if message.crawl_id not in living)
    accepted, undecided, dropped["unaccepted"] = _judged(connection, [m for m in messages if m.crawl_id in living])
    _PUT_DRAFT.run(
        connection,
        sorted(
            (*_draft(crawl_id, page), storable(page.url), page.at_ms, msgspec.msgpack.encode(page.items))
            for crawl_id, page in undecided
        ),
    )
    return _put(connection, accepted, dropped)


def resolve_drafts(
    connection: Connection, fence: ItemFence, position: ItemPosition, max_count: int, evidence: str | None
) -> ItemChanges:
    """Delete at most `max_count` drafts (items of a fetch) whose fetch was accepted, or can no longer be accepted.

    - `evidence` is None: store the items of an accepted fetch, and drop other items. Return how many of each.
    - `evidence` is a reason why items cannot be stored: turn each draft into a dead letter with this reason, instead of
      storing or dropping its items. Both numbers in the result are 0.

    Store `position` as the position in the stream of items. Raise OwnershipLost if another writer claimed the table.
    """
    _pass(connection, fence, position)
    rows = connection.execute(_DECIDED, {"max_count": max_count}).all()
    living = _living(connection, {CrawlId(row.crawl_id) for row in rows})
    pages = [(CrawlId(row.crawl_id), _page(row), bool(row.accepted)) for row in rows]
    _DROP_DRAFT.run(connection, sorted(_draft(crawl_id, page) for crawl_id, page, _ in pages))
    if evidence is not None:
        for row, (crawl_id, page, _) in zip(rows, pages, strict=True):
            letter = DeadLetterRow(crawl_id, LETTER, page.at_ms, evidence, payload=bytes(row.items))
            bury(connection, _LETTERS_OF, letter)
        return ItemChanges({}, {})
    here = [(crawl_id, page, ours) for crawl_id, page, ours in pages if crawl_id in living]
    dropped = Counter(
        deleted=_items(page for crawl_id, page, _ in pages if crawl_id not in living),
        unaccepted=_items(page for _, page, ours in here if not ours),
    )
    return _put(connection, [(crawl_id, page) for crawl_id, page, ours in here if ours], dropped)


def _pass(connection: Connection, fence: ItemFence, position: ItemPosition) -> None:
    passed = {**msgspec.structs.asdict(position), "term": fence.term, "version": fence.version}
    if connection.execute(_PASS, passed).rowcount != 1:
        raise OwnershipLost(f"items are no longer written under term {fence.term}")


def _items(pages: Iterable[PageItems]) -> int:
    return sum(len(page.items) for page in pages)


def _judged(connection: Connection, messages: Iterable[CrawlItems]) -> tuple[list[_Fetched], list[_Fetched], int]:
    """Return the accepted fetches in `messages`, the undecided fetches, and the number of items of all other fetches.

    An undecided fetch may still be accepted, because its lease exists.
    """
    # Leases are read first. If one is gone, its accepted fetch is visible: an owner writes both in one transaction.
    pages = [(crawl_id, page) for crawl_id, some in messages for page in some]
    leases = sorted({page.lease for _, page in pages})
    living: set[int] = set()
    for start in range(0, len(leases), _AT_ONCE):
        living.update(connection.execute(_LIVING, {"leases": leases[start : start + _AT_ONCE]}).scalars())
    stored = {
        (*place, Fingerprint(bytes(row.fingerprint))): (row.at_ms, row.items_at_ms)
        for place, row in _rows_of(connection, _ACCEPTED, {_place_of(*each) for each in pages})
    }
    accepted: list[_Fetched] = []
    undecided: list[_Fetched] = []
    dropped = 0
    for crawl_id, page in pages:
        # The time of a fetch identifies it, since no two workers may fetch a URL at once.
        if page.at_ms in stored.get(_place_of(crawl_id, page), ()):
            accepted.append((crawl_id, page))
        elif page.lease in living:
            undecided.append((crawl_id, page))
        else:
            dropped += len(page.items)
    return accepted, undecided, dropped


def _put(connection: Connection, fetched: Iterable[_Fetched], dropped: Counter[str]) -> ItemChanges:
    """Store the items of accepted fetches, except outdated ones. Return counts: stored by crawl, dropped by reason."""
    newest = _newest(fetched)
    read = _items(page for page in newest.values() if page is not None)
    earlier = _outdated(connection, newest)
    pages = {at: page for at, page in newest.items() if page is not None}
    dropped["outdated"] = read - _items(pages.values())
    _CLEAR.run(connection, sorted(at for at in pages if at in earlier))
    _PUT_PAGE.run(
        connection,
        sorted((*at, storable(page.url), page.lease, page.grant, page.at_ms) for at, page in pages.items()),
    )
    rows = {
        (crawl_id, item.id): (crawl_id, item.id, item.rule[:63], host_id, fingerprint, item.data.decode())
        for (crawl_id, host_id, fingerprint), page in pages.items()
        for item in page.items
    }
    _PUT_ITEM.run(connection, [rows[key] for key in sorted(rows)])
    return ItemChanges(Counter(crawl_id for crawl_id, _ in rows), +dropped)


def _living(connection: Connection, crawls: Iterable[CrawlId]) -> set[int]:
    """Return which of `crawls` are not deleted. Lock them, so that they are not deleted before the transaction ends."""
    columns = schema.crawls.c
    query = select(columns.crawl_id).where(columns.crawl_id.in_(sorted(crawls)), columns.state != CrawlState.DELETED)
    return set(connection.execute(query.with_for_update(read=True)).scalars())


def _newest(fetched: Iterable[_Fetched]) -> dict[_Place, PageItems | None]:
    """Return the items of each page's latest fetch in `fetched`."""
    newest: dict[_Place, PageItems | None] = {}  # no value is None until `_outdated` replaces some by None
    for crawl_id, page in fetched:
        at = _place_of(crawl_id, page)
        known = newest.get(at)
        if known is None or known.version <= page.version:  # If a fetch was reported twice, use the later report.
            newest[at] = page
    return newest


def _outdated(connection: Connection, newest: dict[_Place, PageItems | None]) -> set[_Place]:
    """Return the pages whose stored items are outdated. The caller deletes these items and stores the new ones.

    `newest` has the new items of each page. If the stored items of a page are of a later fetch, the stored items stay.
    This function then does not return the page, and sets the value of the page in `newest` to None.
    """
    outdated = set()
    for place, row in _rows_of(connection, _KNOWN, list(newest)):
        at = *place, Fingerprint(bytes(row.fingerprint))
        page = newest[at]
        if page is not None and page.version < (row.lease_id, row.grants):
            newest[at] = None
        else:
            outdated.add(at)
    return outdated


def _rows_of(
    connection: Connection, query: TextClause, places: Iterable[_Place]
) -> Iterator[tuple[tuple[CrawlId, HostId], Row[Any]]]:
    """Run `query` for the URLs of each host in `places`, and yield ((crawl, host), row) for each row."""
    by_host: defaultdict[tuple[CrawlId, HostId], list[Fingerprint]] = defaultdict(list)
    for crawl_id, host_id, fingerprint in places:
        by_host[crawl_id, host_id].append(fingerprint)
    for (crawl_id, host_id), fingerprints in by_host.items():
        for start in range(0, len(fingerprints), _AT_ONCE):
            keys = {"crawl_id": crawl_id, "host_id": host_id, "fingerprints": fingerprints[start : start + _AT_ONCE]}
            for row in connection.execute(query, keys):
                yield (crawl_id, host_id), row


def _place_of(crawl_id: CrawlId, page: PageItems) -> _Place:
    return crawl_id, page.host_id, page.fingerprint


def _draft(crawl_id: CrawlId, page: PageItems) -> tuple[CrawlId, HostId, Fingerprint, LeaseId, int]:
    """Return the key of a fetch in `item_drafts`, which has its items until the outcome of the fetch is known."""
    return *_place_of(crawl_id, page), page.lease, page.grant


def _page(row: Row[Any]) -> PageItems:
    """Convert a row of `item_drafts` to the items of its fetch."""
    mark = Fingerprint(bytes(row.fingerprint))
    items = _taken.decode(row.items)
    return PageItems(HostId(row.host_id), mark, row.url, LeaseId(row.lease_id), row.grants, row.at_ms, items)


def remove(connection: Connection, crawl_id: CrawlId, max_count: int) -> bool:
    """Delete the items of a deleted crawl, at most `max_count` rows of each table. Return False if some may be left."""
    for statement in _REMOVE:
        if connection.execute(statement, {"crawl_id": crawl_id, "max_count": max_count}).rowcount == max_count:
            return False
    return True


@lru_cache
def _sizes(dialect: str, page: bool, rule: bool) -> TextClause:
    """Return the query for ids and byte sizes of items: of one page if `page`, and of one rule if `rule`."""
    size = f"{byte_length(dialect, 'i.data')} + {byte_length(dialect, 'p.url')}"
    here = " AND r.fingerprint = :page" if page else ""
    which = " WHERE i.rule = :rule" if rule else ""
    behind = f"r.crawl_id = :crawl_id AND r.item_id > :after{here}"
    return text(
        f"SELECT i.item_id, {size} AS size"
        f" FROM (SELECT * FROM items r WHERE {behind} ORDER BY r.crawl_id, r.item_id LIMIT :scanned) i"
        f"{_OF_PAGE}{which} ORDER BY i.item_id LIMIT :max_count"
    )


@lru_cache
def _last_scanned_query(page: bool) -> TextClause:
    """Return a query for the id of the last item that one read of the list scans. The next read begins after it.

    A read scans 5,000 items (SCANNED) after the id `:after`, so `:offset` is 4999. If fewer items are left, the query
    returns no row. If `page` is True, a read scans only the items of the page with the fingerprint `:page`.
    """
    here = " AND r.fingerprint = :page" if page else ""
    return text(
        f"SELECT r.item_id FROM items r WHERE r.crawl_id = :crawl_id AND r.item_id > :after{here}"
        " ORDER BY r.crawl_id, r.item_id LIMIT 1 OFFSET :offset"
    )


def listing(
    connection: Connection, crawl_id: CrawlId, *, after: bytes, which: ItemFilter, max_count: int
) -> tuple[list[StoredItem], bytes | None]:
    """Return up to `max_count` items after the id `after`, and the id to continue from (None at the end).

    `which` selects by rule and page. One call scans at most SCANNED rows, so there may be fewer items before the end.
    """
    place: dict[str, Any] = {"crawl_id": crawl_id, "after": after}
    if which.page is not None:
        place["page"] = which.page
    filters: dict[str, Any] = {"scanned": SCANNED, "max_count": max_count} | (
        {} if which.rule is None else {"rule": which.rule}
    )
    sizes = _sizes(connection.dialect.name, which.page is not None, which.rule is not None)
    listed = [(bytes(row.item_id), int(row.size)) for row in connection.execute(sizes, place | filters)]
    shown = first_page(listed)
    rows = connection.execute(_THESE, {"crawl_id": crawl_id, "item_ids": shown}).all()
    items = [_stored(row) for row in rows]
    if len(shown) < len(listed) or len(listed) == max_count:
        return items, shown[-1]
    last = connection.execute(_last_scanned_query(which.page is not None), place | {"offset": SCANNED - 1}).scalar()
    return items, None if last is None else bytes(last)


def one(connection: Connection, crawl_id: CrawlId, item: bytes) -> StoredItem | None:
    """Return the item with this id, or None if the crawl has no such item."""
    row = connection.execute(_ONE, {"crawl_id": crawl_id, "item_id": item}).first()
    return None if row is None else _stored(row)


def _stored(row: Row[Any]) -> StoredItem:
    return StoredItem(
        id=bytes(row.item_id),
        rule=row.rule,
        host_id=HostId(row.host_id),
        fingerprint=Fingerprint(bytes(row.fingerprint)),
        url=row.url,
        at_ms=row.at_ms,
        data=row.data,
        context=decoded(row.context),
    )


class SqlItems(SqlAdapter):
    """The table of the items that were extracted from pages (`shared.ports.items.ItemTable`), on SQL."""

    async def resolve_drafts(
        self, fence: ItemFence, position: ItemPosition, max_count: int, evidence: str | None = None
    ) -> ItemChanges | None:
        if await self._run.read(lambda c: c.execute(_DECIDED, {"max_count": 1}).first()) is None:
            return None
        return await self._run.write(bound(resolve_drafts, fence, position, max_count, evidence))

    claim = write(claim)
    apply = write(apply)
    waiting = read(waiting)
    position = read(position)
    remove = write(remove)
