"""Reads one crawl from its SQLite file, for commands and exports, while the crawl runs or after it.

Long results are read in pieces of bounded size, each in its own short transaction (keyset paging). So no reader keeps a
running crawl from checkpointing its write-ahead log. A long result is therefore not one snapshot: a row that changes
meanwhile appears in its old or its new form.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial, wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from shared.adapters.sql.catalog import excluded_examples
from shared.adapters.sql.catalog import host_waits as waiting
from shared.adapters.sql.engine import stored_crawls as crawls
from shared.adapters.sql.engine.context_joins import joined
from shared.adapters.sql.engine.query import Query
from shared.adapters.sql.engine.read_only import ReadFile, configure_reader
from shared.adapters.sql.engine.schema_version import refuse_unreleased
from shared.adapters.sql.engine.sqlite_errors import mapped_sqlite
from shared.adapters.sql.engine.url_compression import whole
from shared.domain.archive.cdxj import IndexRow, surt
from shared.domain.archive.model import RecordLocation
from shared.domain.errors import Unusable
from shared.domain.explain import excluded_links as left_out
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.page_history import GONE, ChangeKind, decoded
from shared.domain.frontier.seed_contexts import decoded as context_decoded
from shared.domain.frontier.states import REVISIT, UrlState, extra_hops_of, kind_of
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.reads.changes import ChangePlace, PageChangeView
from shared.domain.reads.items import ItemFilter, StoredItem
from shared.domain.reads.views import FetchView, HostView, KnownUrl, Page, UrlView
from shared.domain.web.url import Location

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from shared.adapters.sql.engine.query import ReadConnection

P = ParamSpec("P")
T = TypeVar("T")

PIECE: Final = 2_000
_CHAIN: Final = 50
_START: Final = {"after_host": -1, "after": b"", "after_version": 0}
_AFTER: Final = "f.crawl_id = :crawl_id AND (f.host_id, f.fingerprint) > (:after_host, :after)"

_KNOWN: Final = (
    " f JOIN urls u ON u.crawl_id = f.crawl_id AND u.host_id = f.host_id AND u.fingerprint = f.fingerprint"
    " JOIN hosts h ON h.host_id = f.host_id"
)
_CAPTURES = (
    "SELECT f.host_id, f.fingerprint, u.url, h.host, u.depth, f.status, f.mime, f.digest, f.size, f.segment,"
    ' f."offset", f.length, f.at_ms, f.title, f.truncated, f.links, f.links_found,'
    f" u.reason AS url_reason, s.context FROM fetches{_KNOWN}{joined('f')}"
    f" WHERE {_AFTER} AND f.segment IS NOT NULL {{}}"
    " ORDER BY f.crawl_id, f.host_id, f.fingerprint LIMIT :max_count"
)
_PAGES = Query(_CAPTURES.format("AND f.page"))
_ANSWERS = Query(_CAPTURES.format(""))
_VERSIONS = Query(
    "SELECT f.host_id, f.fingerprint, f.version, u.url, h.host, f.at_ms, f.status, f.mime, f.digest, f.segment,"
    f' f."offset", f.length FROM page_versions{_KNOWN}'
    " WHERE f.crawl_id = :crawl_id AND (f.host_id, f.fingerprint, f.version) > (:after_host, :after, :after_version)"
    " ORDER BY f.crawl_id, f.host_id, f.fingerprint, f.version LIMIT :max_count"
)
_URLS = Query(
    "SELECT f.host_id, f.fingerprint, f.url, h.host, f.state, f.reason, f.depth, f.attempts, v.url AS via_url,"
    " w.host AS via_name, r.status, r.mime, r.size, r.at_ms, r.location, r.truncated"
    " FROM urls f JOIN hosts h ON h.host_id = f.host_id"
    " LEFT JOIN urls v ON v.crawl_id = f.crawl_id AND v.host_id = f.via_host AND v.fingerprint = f.via"
    " LEFT JOIN hosts w ON w.host_id = f.via_host"
    " LEFT JOIN fetches r ON r.crawl_id = f.crawl_id AND r.host_id = f.host_id AND r.fingerprint = f.fingerprint"
    f" WHERE {_AFTER}"
    " ORDER BY f.crawl_id, f.host_id, f.fingerprint LIMIT :max_count"
)
HOST_COLUMNS = (
    "SELECT h.host_id, h.host, coalesce(q.queued, 0) AS queued, coalesce(q.waiting, 0) AS waiting,"
    " coalesce(q.leased, 0) AS leased, coalesce(q.pages, 0) AS pages, h.crawl_delay_ms, h.operator_delay_ms,"
    " h.latency_ms, h.failures, h.last_failure, h.last_failure_ms, h.blocked_until_ms, h.slowed_ms, h.visited_at_ms,"
    " h.ip, h.operator_blocked_until_ms, h.operator_slots, p.reason AS policy_reason"
    " FROM hosts h LEFT JOIN host_policies p ON p.host = h.host"
)
HOST = Query(
    f"{HOST_COLUMNS} LEFT JOIN queues q ON q.host_id = h.host_id AND q.crawl_id = :crawl_id WHERE h.host = :host"
)
TOP_HOSTS = Query(
    f"{HOST_COLUMNS} JOIN queues q ON q.host_id = h.host_id AND q.crawl_id = :crawl_id"
    " ORDER BY q.pages DESC, q.host_id DESC LIMIT :max_count"
)
"""The query for a crawl's hosts with the most pages. It reads the index queues_pages, so its cost does not depend on
the number of hosts."""

_LAST_FAILURES = Query(
    "SELECT h.last_failure, count(*) AS n FROM hosts h JOIN queues q ON q.host_id = h.host_id"
    " WHERE q.crawl_id = :crawl_id AND h.last_failure IS NOT NULL GROUP BY h.last_failure"
)
_HOST_COUNT = Query("SELECT count(*) FROM queues WHERE crawl_id = :crawl_id")
_URL = Query(
    "SELECT u.*, h.host, l.issued_at_ms, s.context FROM urls u JOIN hosts h ON h.host_id = u.host_id"
    f" LEFT JOIN leases l ON l.lease_id = u.lease_id{joined('u')}"
    " WHERE u.crawl_id = :crawl_id AND u.host_id = :host_id AND u.fingerprint = :fingerprint"
)
_FETCH = Query("SELECT * FROM fetches WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint")
_DEAD = Query("SELECT evidence FROM dead_letters WHERE crawl_id = :crawl_id AND url = :url ORDER BY id DESC LIMIT 5")
_DEAD_COUNT = Query("SELECT count(*) FROM dead_letters WHERE crawl_id = :crawl_id")
_CHANGES_DELETED = Query("SELECT changes_deleted_ms FROM crawls WHERE crawl_id = :crawl_id")
_TABLES = Query("SELECT name FROM sqlite_master WHERE type = 'table'")
_VERSION = Query("SELECT version_num FROM alembic_version")


def _read(query: Callable[Concatenate["ReadConnection", P], T]) -> Callable[Concatenate["CrawlReader", P], T]:
    """Return a method of CrawlReader that runs `query` in a read transaction of its own, and returns its result."""

    @wraps(query)
    def method(self: "CrawlReader", /, *args: P.args, **keywords: P.kwargs) -> T:
        return self.read(lambda connection: query(connection, *args, **keywords))

    return method


class CrawlReader:
    """Reads one crawl from its SQLite file, which must exist.

    SQLite's errors are converted, for example to Unusable (a retry cannot help) or Transient (a retry may help).
    All methods block the calling thread, so do not call them on an event loop.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = ReadFile(path)

    def __repr__(self) -> str:
        return f"<CrawlReader {self._path}>"

    def close(self) -> None:
        if "_connection" in self.__dict__:
            self._connection.close()
        if "_engine" in self.__dict__:
            self._engine.dispose()

    def crawl(self) -> CrawlRow | None:
        """Return the newest crawl in the file that is not deleted, or None if there is none or no tables exist yet."""
        crawls = self.read(_crawls)
        return crawls[-1] if crawls else None

    counters = _read(crawls.counters)
    tallies = _read(crawls.tallies)
    left_out = _read(excluded_examples.examples)
    host_states = _read(waiting.host_states)
    hosts_given_up = _read(waiting.hosts_given_up)

    def dead_letters(self, crawl_id: CrawlId) -> int:
        """Return how many dead letters the crawl has."""
        return int(self._rows(_DEAD_COUNT, crawl_id=crawl_id)[0][0])

    def hosts(self, crawl_id: CrawlId) -> int:
        """Return on how many hosts the crawl has found URLs."""
        return int(self._rows(_HOST_COUNT, crawl_id=crawl_id)[0][0])

    def top_hosts(self, crawl_id: CrawlId, max_count: int) -> list[HostView]:
        """Return at most `max_count` hosts of the crawl. Hosts with the most stored pages come first."""
        return [host_view(row) for row in self._rows(TOP_HOSTS, crawl_id=crawl_id, max_count=max_count)]

    def last_failures(self, crawl_id: CrawlId) -> dict[str, int]:
        """Return the number of the crawl's hosts by the kind of their last failure, such as `{"dns": 3}`."""
        counts: dict[str, int] = {}
        for row in self._rows(_LAST_FAILURES, crawl_id=crawl_id):
            kind = row.last_failure.split(" ", 1)[0]
            counts[kind] = counts.get(kind, 0) + row.n
        return counts

    def pages(self, crawl_id: CrawlId) -> Iterator[Page]:
        """Return an iterator over every stored page of the crawl, ordered by host id and fingerprint."""
        return map(stored_page, self._pieces(_PAGES, crawl_id))

    def urls(self, crawl_id: CrawlId) -> Iterator[KnownUrl]:
        """Return an iterator over every URL that the crawl has found, ordered by host id and fingerprint."""
        return map(known_url, self._pieces(_URLS, crawl_id))

    def items(self, crawl_id: CrawlId) -> Iterator[StoredItem]:
        """Yield every item of the crawl, ordered by id."""
        from shared.adapters.sql.catalog.items import listing

        after: bytes | None = b""
        while after is not None:
            read = partial(listing, crawl_id=crawl_id, after=after, which=ItemFilter(), max_count=PIECE)
            items, after = self._read_composed(read)
            yield from items

    def changes(self, crawl_id: CrawlId) -> Iterator[PageChangeView]:
        """Yield every change of a page that is still in the log of changes, in the order in which it was recorded."""
        from shared.adapters.sql.catalog.changes import changes

        after: ChangePlace | None = ChangePlace(0)
        while after is not None:
            read = partial(changes, crawl_id=crawl_id, after=after, kinds=tuple(ChangeKind), max_count=PIECE)
            some, after = self._read_composed(read)
            yield from some

    def changes_deleted_ms(self, crawl_id: CrawlId) -> int | None:
        """Return the time (Unix ms) of the newest change that retention has deleted. None: it deleted none."""
        ms: int | None = self._rows(_CHANGES_DELETED, crawl_id=crawl_id)[0][0]
        return ms

    def index_rows(self, crawl_id: CrawlId) -> Iterator[IndexRow]:
        """Return an iterator over the lines of a CDXJ index: the last response of each URL, and earlier versions."""
        return map(index_row, chain(self._pieces(_ANSWERS, crawl_id), self._pieces(_VERSIONS, crawl_id)))

    def host(self, crawl_id: CrawlId, name: str) -> HostView | None:
        """Return the host of this name, with its queue in the crawl. Return None if the file has no such host."""
        rows = self._rows(HOST, crawl_id=crawl_id, host=name)
        return host_view(rows[0]) if rows else None

    def url(self, crawl_id: CrawlId, location: Location) -> UrlView | None:
        """Return what is stored of a URL: its state, host, last fetch, and the evidence of its dead letters.

        Return None if the crawl has not found the URL.
        """
        return self.read(lambda connection: url_view(connection, crawl_id, location))

    def _pieces(self, query: Query, crawl_id: CrawlId) -> Iterator[Any]:
        place: dict[str, Any] = {"crawl_id": crawl_id, "max_count": PIECE, **_START}
        while True:
            rows = self._rows(query, **place)
            yield from rows
            if len(rows) < PIECE:
                return
            place |= {"after_host": rows[-1].host_id, "after": rows[-1].fingerprint}
            place["after_version"] = getattr(rows[-1], "version", 0)

    def _rows(self, query: Query, **values: Any) -> Sequence[Any]:
        return self.read(lambda connection: query.rows(connection, **values))

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        connection = self._file.connect()
        configure_reader(connection)
        return connection

    @cached_property
    def _engine(self) -> "Engine":
        from shared.adapters.sql.engine.sqlite import sqlite_engine

        return sqlite_engine(self._path, read_only=True, connect=self._file.connect)

    def read(self, query: Callable[["ReadConnection"], T]) -> T:
        """Run `query` in a read transaction of its own, and return its result.

        Raise Unusable if another version of Orbweaver wrote the file. If this process cannot write to the file's
        folder, it reads the file without locks. It then raises Transient if a crawl has begun to write to the file.
        """
        try:
            connection = self._connection
            connection.execute("BEGIN")
            try:
                result = query(connection)
            finally:
                connection.rollback()
            self._file.check()
            return result
        except sqlite3.Error as error:
            raise self._mapped(error) from error

    def _read_composed(self, query: Callable[["Connection"], T]) -> T:
        """Run `query`, which needs an SQLAlchemy connection, and return its result.

        Raise Unusable if another version of Orbweaver wrote the file, and Transient if a retry may help.
        """
        from sqlalchemy.exc import DBAPIError

        try:
            with self._engine.begin() as connection:
                result = query(connection)
            self._file.check()
            return result
        except DBAPIError as error:
            raise (self._mapped(error.orig) if isinstance(error.orig, sqlite3.Error) else error) from error

    def _mapped(self, error: sqlite3.Error) -> Exception:
        message = str(error)
        if "no such table" in message or "no such column" in message:
            return Unusable(f"{self._path} was written by another version of Orbweaver ({message})")
        return mapped_sqlite(error)


def _crawls(connection: "ReadConnection") -> Sequence[CrawlRow]:
    # A master makes the file first, and later all tables in one transaction.
    tables = {row.name for row in _TABLES.rows(connection)}
    if not tables:
        return []
    if "alembic_version" in tables:
        version = _VERSION.first(connection)
        refuse_unreleased("database", None if version is None else version.version_num)
    return crawls.crawls(connection)


def url_view(connection: "ReadConnection", crawl_id: CrawlId, location: Location) -> UrlView | None:
    host = HOST.first(connection, crawl_id=crawl_id, host=location.host)
    if host is None:
        return None
    keys = {"crawl_id": crawl_id, "host_id": host.host_id, "fingerprint": location.fingerprint}
    row = _URL.first(connection, **keys)
    if row is None:
        return None
    fetch = _FETCH.first(connection, **keys)
    state, url = UrlState(row.state), whole(row.url, row.host)
    return UrlView(
        url=url,
        fingerprint=location.fingerprint,
        state=state,
        reason=row.reason,
        depth=row.depth,
        hops=row.hops,
        priority=row.priority,
        attempts=row.attempts,
        due_ms=row.rank if state is UrlState.WAITING else 0,
        leased_at_ms=row.issued_at_ms,
        host=host_view(host),
        fetch=None if fetch is None else fetch_view(fetch),
        chain=_chain(connection, crawl_id, row),
        evidence=tuple(letter.evidence for letter in _DEAD.rows(connection, crawl_id=crawl_id, url=url)),
        history=decoded(fetch.recrawl, fetch.at_ms) if fetch is not None and row.flags & REVISIT else None,
        kind=kind_of(row.flags),
        extra_hops=extra_hops_of(row.flags),
        context=context_decoded(row.context),
    )


def _chain(connection: "ReadConnection", crawl_id: CrawlId, row: Any) -> tuple[str, ...]:
    """Return the URLs of the pages that led to the URL in `row`, nearest first: at most _CHAIN URLs.

    The chain ends where it would repeat a page.
    """
    # A URL's stored parent is replaced when a shorter way to the URL is found. So the parents can form a cycle.
    chain: list[str] = []
    seen = {(row.host_id, bytes(row.fingerprint))}
    while row.via_host and len(chain) < _CHAIN:
        key = (row.via_host, bytes(row.via))
        if key in seen:
            break
        seen.add(key)
        parent = _URL.first(connection, crawl_id=crawl_id, host_id=key[0], fingerprint=key[1])
        if parent is None:
            break
        row = parent
        chain.append(whole(row.url, row.host))
    return tuple(chain)


def host_view(row: Any) -> HostView:
    return HostView(**{**row._asdict(), "host_id": HostId(row.host_id)})


def _location(row: Any) -> RecordLocation:
    return RecordLocation(row.segment, row.offset, row.length)


def stored_page(row: Any) -> Page:
    return Page(
        host_id=HostId(row.host_id),
        fingerprint=Fingerprint(bytes(row.fingerprint)),
        url=whole(row.url, row.host),
        host=row.host,
        depth=row.depth,
        status=row.status,
        mime=row.mime,
        digest=bytes(row.digest or b""),
        size=row.size,
        location=_location(row),
        fetched_at_ms=row.at_ms,
        title=row.title,
        truncated=row.truncated,
        links=row.links,
        links_found=row.links_found,
        gone=row.url_reason == GONE,
        context=context_decoded(row.context),
    )


def index_row(row: Any) -> IndexRow:
    url = whole(row.url, row.host)
    return IndexRow(
        surt=surt(url),
        fetched_at_ms=row.at_ms,
        url=url,
        mime=row.mime or "",
        status=row.status,
        digest=bytes(row.digest or b""),
        location=_location(row),
    )


def known_url(row: Any) -> KnownUrl:
    return KnownUrl(
        url=whole(row.url, row.host),
        host=row.host,
        state=UrlState(row.state),
        reason=row.reason,
        depth=row.depth,
        attempts=row.attempts,
        discovered_from=None if row.via_url is None else whole(row.via_url, row.via_name),
        status=row.status,
        mime=row.mime,
        size=row.size,
        fetched_at_ms=row.at_ms,
        redirect=row.location,
        truncated=row.truncated,
    )


def fetch_view(row: Any) -> FetchView:
    return FetchView(
        at_ms=row.at_ms,
        status=row.status,
        page=bool(row.page),
        reason=row.reason,
        detail=row.detail,
        latency_ms=row.latency_ms,
        size=row.size,
        mime=row.mime,
        digest=bytes(row.digest or b""),
        location=None if row.segment is None else _location(row),
        etag=row.etag,
        last_modified=row.last_modified,
        redirect=row.location,
        title=row.title,
        links=row.links,
        history=_history(row.history),
        truncated=row.truncated,
        links_found=row.links_found,
        left_out=left_out.decoded(row.left_out),
    )


def _history(stored: str | None) -> tuple[tuple[int, int, str], ...]:
    """Return the earlier outcomes of a URL, newest first, each as time (Unix ms), HTTP status and reason.

    `stored`: the text of the column `fetches.history`, whose length is limited. A truncated last entry is omitted.
    """
    entries = []
    for part in (stored or "").split(";"):
        words = part.split(" ", 2)
        if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
            entries.append((int(words[0]), int(words[1]), words[2]))
    return tuple(entries)
