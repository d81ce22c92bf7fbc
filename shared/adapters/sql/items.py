"""The table of items: written by one (`shared.ports.items.ItemTable`), read in bounded pages.

A page's items are replaced as a whole, and only by those of a later fetch or the same. So a message that comes twice
changes nothing, and an earlier one that comes late is passed over.

Only fetches whose outcome was accepted count. The row of `fetches` says which fetch brought the page that is stored.
Its time names that fetch, since no two workers may fetch a URL at once. While the lease of a fetch lives, its outcome
may come, and its items wait in `item_drafts`. Without either they are dropped.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, Row, TextClause, bindparam, select, text

from shared.adapters.sql import schema
from shared.adapters.sql.apply import bury, storable
from shared.adapters.sql.bulk import Bulk
from shared.adapters.sql.crawls import chunked
from shared.domain.errors import OwnershipLost
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Term
from shared.domain.items import (
    CrawlItems,
    ItemFence,
    ItemFilter,
    ItemLetter,
    ItemPosition,
    PageItems,
    StoredItem,
    TakenItem,
)
from shared.domain.ledger import DeadLetter

T = TypeVar("T")

SCANNED: Final = 5_000
"""Items that one page of a list looks at, at most."""

LETTER: Final = "items"
_ONLY: Final = 1
_AT_ONCE: Final = 5_000
"""Keys that one query names."""

_LETTERS_OF: Final = Partition(0)
"""Whose owner replays and discards the letters: items are of no partition."""

_Place = tuple[CrawlId, HostId, Fingerprint]
_Fetched = tuple[CrawlId, PageItems]

_CLAIM: Final = text(
    f"INSERT INTO item_writer (id, term, version) VALUES ({_ONLY}, :term, 1) ON CONFLICT (id)"
    " DO UPDATE SET term = excluded.term, version = item_writer.version + 1 WHERE item_writer.term <= excluded.term"
)
_PASS: Final = text(
    "UPDATE item_writer SET version = version + 1, stream_created_ns = :stream_created_ns, sequence = :sequence"
    f" WHERE id = {_ONLY} AND term = :term AND version = :version"
)
_LIVING: Final = text("SELECT lease_id FROM leases WHERE lease_id IN :leases").bindparams(
    bindparam("leases", expanding=True)
)
_ACCEPTED: Final = text(
    "SELECT fingerprint, at_ms FROM fetches"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND page AND fingerprint IN :fingerprints"
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
    " AND f.page AND f.at_ms = d.at_ms"
    " WHERE l.lease_id IS NULL OR f.at_ms IS NOT NULL"
    " ORDER BY d.crawl_id, d.host_id, d.fingerprint, d.lease_id, d.grants LIMIT :most"
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
        f" (SELECT {keys.strip('()')} FROM {table} WHERE crawl_id = :crawl_id LIMIT :most)"
    )
    for table, keys in (
        ("items", "item_id"),
        ("item_pages", "(host_id, fingerprint)"),
        ("item_drafts", "(host_id, fingerprint, lease_id, grants)"),
    )
)
_COLUMNS: Final = "i.item_id, i.rule, i.host_id, i.fingerprint, i.data, p.url, p.at_ms"
_OF_PAGE: Final = (
    " JOIN item_pages p ON p.crawl_id = i.crawl_id AND p.host_id = i.host_id AND p.fingerprint = i.fingerprint"
)
_ONE: Final = text(f"SELECT {_COLUMNS} FROM items i{_OF_PAGE} WHERE i.crawl_id = :crawl_id AND i.item_id = :item_id")


class Transactions(Protocol):
    """What runs transactions on a database; errors as engine.mapped says."""

    async def write(self, transaction: Callable[[Connection], T]) -> T: ...

    async def read(self, query: Callable[[Connection], T]) -> T: ...


class SqlItems:
    """`shared.ports.items.ItemTable`."""

    def __init__(self, transactions: Transactions) -> None:
        self._run = transactions

    def __repr__(self) -> str:
        return f"<SqlItems {self._run!r}>"

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        return await self._run.write(lambda c: claim(c, term))

    async def apply(
        self, fence: ItemFence, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> Mapping[CrawlId, int]:
        return await self._run.write(lambda c: apply(c, fence, position, messages, letters))

    async def settle(
        self, fence: ItemFence, position: ItemPosition, most: int, evidence: str | None = None
    ) -> Mapping[CrawlId, int] | None:
        if await self._run.read(lambda c: c.execute(_DECIDED, {"most": 1}).first()) is None:
            return None
        return await self._run.write(lambda c: settle(c, fence, position, most, evidence))

    async def waiting(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        return await self._run.read(lambda c: waiting(c, crawl_ids))

    async def position(self) -> ItemPosition:
        return await self._run.read(position)

    async def remove(self, crawl_id: CrawlId, most: int) -> bool:
        return await self._run.write(lambda c: remove(c, crawl_id, most))


# --- written ----------------------------------------------------------------------------------------------------------


def claim(connection: Connection, term: Term) -> tuple[ItemFence, ItemPosition]:
    """See ItemTable.claim."""
    if connection.execute(_CLAIM, {"term": term}).rowcount != 1:
        raise OwnershipLost(f"items are written under a term later than {term}")
    row = connection.execute(select(schema.item_writer)).one()
    return ItemFence(term, row.version), ItemPosition(row.stream_created_ns, row.sequence)


def waiting(connection: Connection, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
    """See ItemTable.waiting."""
    return {
        CrawlId(n)
        for some in chunked(crawl_ids)
        for n in connection.execute(_WITH_DRAFTS, {"crawl_ids": some}).scalars()
    }


def position(connection: Connection) -> ItemPosition:
    """See ItemTable.position."""
    row = connection.execute(select(schema.item_writer)).first()
    return ItemPosition() if row is None else ItemPosition(row.stream_created_ns, row.sequence)


def apply(
    connection: Connection,
    fence: ItemFence,
    place: ItemPosition,
    messages: Sequence[CrawlItems],
    letters: Sequence[ItemLetter],
) -> Mapping[CrawlId, int]:
    """See ItemTable.apply."""
    _pass(connection, fence, place)
    for letter in letters:
        kept = DeadLetter(letter.crawl_id, LETTER, letter.at_ms, letter.evidence, payload=letter.payload)
        bury(connection, _LETTERS_OF, kept)
    living = _living(connection, {message.crawl_id for message in messages})
    accepted, undecided = _judged(connection, [message for message in messages if message.crawl_id in living])
    _PUT_DRAFT.run(
        connection,
        sorted(
            (*_draft(crawl_id, page), storable(page.url), page.at_ms, msgspec.msgpack.encode(page.items))
            for crawl_id, page in undecided
        ),
    )
    return _put(connection, accepted)


def settle(
    connection: Connection, fence: ItemFence, place: ItemPosition, most: int, evidence: str | None
) -> Mapping[CrawlId, int]:
    """See ItemTable.settle."""
    _pass(connection, fence, place)
    rows = connection.execute(_DECIDED, {"most": most}).all()
    living = _living(connection, {CrawlId(row.crawl_id) for row in rows})
    pages = [(CrawlId(row.crawl_id), _page(row), bool(row.accepted)) for row in rows]
    _DROP_DRAFT.run(connection, sorted(_draft(crawl_id, page) for crawl_id, page, _ in pages))
    if evidence is not None:
        for row, (crawl_id, page, _) in zip(rows, pages, strict=True):
            letter = DeadLetter(crawl_id, LETTER, page.at_ms, evidence, payload=bytes(row.items))
            bury(connection, _LETTERS_OF, letter)
        return {}
    return _put(connection, [(crawl_id, page) for crawl_id, page, ours in pages if ours and crawl_id in living])


def _pass(connection: Connection, fence: ItemFence, place: ItemPosition) -> None:
    passed = {"stream_created_ns": place.stream_created_ns, "sequence": place.sequence}
    if connection.execute(_PASS, {**passed, "term": fence.term, "version": fence.version}).rowcount != 1:
        raise OwnershipLost(f"items are no longer written under term {fence.term}")


def _judged(connection: Connection, messages: Iterable[CrawlItems]) -> tuple[list[_Fetched], list[_Fetched]]:
    """Return the fetches whose outcome was accepted, and those whose outcome may still be.

    Leases are read first: an owner accepts an outcome and ends its lease in one transaction, so that of a lease that is
    gone the accepted fetch is seen.
    """
    pages = [(crawl_id, page) for crawl_id, some in messages for page in some]
    leases = sorted({page.lease for _, page in pages})
    living: set[int] = set()
    for start in range(0, len(leases), _AT_ONCE):
        living.update(connection.execute(_LIVING, {"leases": leases[start : start + _AT_ONCE]}).scalars())
    stored = {
        (*place, Fingerprint(bytes(row.fingerprint))): int(row.at_ms)
        for place, row in _rows_of(connection, _ACCEPTED, {_place_of(*each) for each in pages})
    }
    accepted: list[_Fetched] = []
    undecided: list[_Fetched] = []
    for crawl_id, page in pages:
        if stored.get(_place_of(crawl_id, page)) == page.at_ms:
            accepted.append((crawl_id, page))
        elif page.lease in living:
            undecided.append((crawl_id, page))
    return accepted, undecided


def _put(connection: Connection, fetched: Iterable[_Fetched]) -> Mapping[CrawlId, int]:
    """Store the items of accepted fetches; how many, by crawl."""
    newest = _newest(fetched)
    earlier = _outdated(connection, newest)
    pages = {at: page for at, page in newest.items() if page is not None}
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
    return Counter(crawl_id for crawl_id, _ in rows)


def _living(connection: Connection, crawls: Iterable[CrawlId]) -> set[int]:
    """Those of the crawls that are not deleted, and cannot be until the transaction is over."""
    columns = schema.crawls.c
    query = select(columns.crawl_id).where(columns.crawl_id.in_(sorted(crawls)), columns.state != CrawlState.DELETED)
    return set(connection.execute(query.with_for_update(read=True)).scalars())


def _newest(fetched: Iterable[_Fetched]) -> dict[_Place, PageItems | None]:
    """Of each page what its latest fetch gave; of two messages on one fetch the later."""
    newest: dict[_Place, PageItems | None] = {}
    for crawl_id, page in fetched:
        at = _place_of(crawl_id, page)
        known = newest.get(at)
        if known is None or known.version <= page.version:
            newest[at] = page
    return newest


def _outdated(connection: Connection, newest: dict[_Place, PageItems | None]) -> set[_Place]:
    """The pages that the table knows by the same or an earlier fetch. Those it knows by a later one become None."""
    found = set()
    for place, row in _rows_of(connection, _KNOWN, list(newest)):
        at = *place, Fingerprint(bytes(row.fingerprint))
        page = newest[at]
        if page is not None and page.version < (row.lease_id, row.grants):
            newest[at] = None
        else:
            found.add(at)
    return found


def _rows_of(
    connection: Connection, query: TextClause, places: Iterable[_Place]
) -> Iterator[tuple[tuple[CrawlId, HostId], Row[Any]]]:
    """The rows of a query for one crawl, one host and a number of `fingerprints`, for all of the places."""
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
    """The key of a draft."""
    return *_place_of(crawl_id, page), page.lease, page.grant


def _page(row: Row[Any]) -> PageItems:
    """A draft as it came."""
    mark = Fingerprint(bytes(row.fingerprint))
    items = _taken.decode(row.items)
    return PageItems(HostId(row.host_id), mark, row.url, LeaseId(row.lease_id), row.grants, row.at_ms, items)


def remove(connection: Connection, crawl_id: CrawlId, most: int) -> bool:
    """See ItemTable.remove."""
    for statement in _REMOVE:
        if connection.execute(statement, {"crawl_id": crawl_id, "most": most}).rowcount == most:
            return False
    return True


# --- read -------------------------------------------------------------------------------------------------------------


@lru_cache
def _list(page: bool, rule: bool) -> TextClause:
    here = " AND r.fingerprint = :page" if page else ""
    which = " WHERE i.rule = :rule" if rule else ""
    behind = f"r.crawl_id = :crawl_id AND r.item_id > :after{here}"
    return text(
        f"SELECT {_COLUMNS} FROM (SELECT * FROM items r WHERE {behind} ORDER BY r.crawl_id, r.item_id LIMIT :scanned) i"
        f"{_OF_PAGE}{which} ORDER BY i.item_id LIMIT :most"
    )


@lru_cache
def _last(page: bool) -> TextClause:
    """The last of the rows that a page of the list looked at, if it looked at as many as it may."""
    here = " AND r.fingerprint = :page" if page else ""
    return text(
        f"SELECT r.item_id FROM items r WHERE r.crawl_id = :crawl_id AND r.item_id > :after{here}"
        " ORDER BY r.crawl_id, r.item_id LIMIT 1 OFFSET :offset"
    )


def listing(
    connection: Connection, crawl_id: CrawlId, after: bytes, which: ItemFilter, most: int
) -> tuple[list[StoredItem], bytes | None]:
    """See Catalog.items."""
    place: dict[str, Any] = {"crawl_id": crawl_id, "after": after}
    if which.page is not None:
        place["page"] = which.page
    wanted: dict[str, Any] = {"scanned": SCANNED, "most": most} | ({} if which.rule is None else {"rule": which.rule})
    rows = connection.execute(_list(which.page is not None, which.rule is not None), place | wanted).all()
    if len(rows) == most:
        return [_stored(row) for row in rows], bytes(rows[-1].item_id)
    last = connection.execute(_last(which.page is not None), place | {"offset": SCANNED - 1}).scalar()
    return [_stored(row) for row in rows], None if last is None else bytes(last)


def one(connection: Connection, crawl_id: CrawlId, item: bytes) -> StoredItem | None:
    """See Catalog.item."""
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
    )
