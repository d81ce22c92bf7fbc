"""Bounded reads of the frontier for the HTTP API: URLs, hosts, queues and dead letters, one snapshot each."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, bindparam, text

from shared.adapters.sql.catalog import crawl_reader as reading
from shared.adapters.sql.catalog.list_bytes import byte_length, first_page
from shared.adapters.sql.engine import stored_crawls as crawls
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.reads.declared import DeadLetterView, HostQueue
from shared.domain.reads.views import HostView, KnownUrl, UrlView
from shared.domain.web.url import Location
from shared.ports.catalog import UrlPlace

SCANNED: Final = 5_000
"""One read of the list of URLs examines at most this many rows."""

_TOP: Final = 10
_NO_STATUS: Final = -1
_EVERY_STATUS: Final = (_NO_STATUS, 2**15 - 1)
_BEHIND: Final = "u.crawl_id = :crawl_id AND (u.host_id, u.fingerprint) > (:after_host, :after)"
_ORDER: Final = "ORDER BY u.crawl_id, u.host_id, u.fingerprint"


def _url_page(where: str) -> str:
    return (
        "SELECT f.host_id, f.fingerprint, f.url, h.host, f.state, f.reason, f.depth, f.attempts,"
        " v.url AS via_url, w.host AS via_name, r.status, r.mime, r.size, r.at_ms, r.location,"
        " r.truncated"
        f" FROM (SELECT * FROM urls u WHERE {_BEHIND}{where} {_ORDER} LIMIT :scanned) f"
        " JOIN hosts h ON h.host_id = f.host_id"
        " LEFT JOIN urls v ON v.crawl_id = f.crawl_id AND v.host_id = f.via_host AND v.fingerprint = f.via"
        " LEFT JOIN hosts w ON w.host_id = f.via_host"
        " LEFT JOIN fetches r ON r.crawl_id = f.crawl_id AND r.host_id = f.host_id AND r.fingerprint = f.fingerprint"
        " WHERE f.state >= :least AND f.state <= :greatest"
        " AND coalesce(r.status, :no_status) >= :least_status AND coalesce(r.status, :no_status) <= :greatest_status"
        " ORDER BY f.host_id, f.fingerprint LIMIT :max_count"
    )


_ONE_HOST: Final = " AND u.host_id = :host_id"
_URLS = text(_url_page(""))
_HOST_URLS = text(_url_page(_ONE_HOST))
_LAST = text(f"SELECT u.host_id, u.fingerprint FROM urls u WHERE {_BEHIND} {_ORDER} LIMIT 1 OFFSET :offset")
_HOST_LAST = text(
    f"SELECT u.host_id, u.fingerprint FROM urls u WHERE {_BEHIND}{_ONE_HOST} {_ORDER} LIMIT 1 OFFSET :offset"
)
_HOST_ID = text("SELECT host_id FROM hosts WHERE host = :host")
_ALL_HOSTS = text(
    f"{reading.HOST_COLUMNS} LEFT JOIN queues q ON q.host_id = h.host_id AND q.crawl_id = :crawl_id"
    " WHERE h.host_id > :after ORDER BY h.host_id LIMIT :max_count"
)
_CRAWL_HOSTS = text(
    f"{reading.HOST_COLUMNS} JOIN queues q ON q.host_id = h.host_id AND q.crawl_id = :crawl_id"
    " WHERE q.host_id > :after ORDER BY q.host_id LIMIT :max_count"
)
_HOST_QUEUES = text(
    "SELECT c.name AS crawl, q.queued, q.waiting, q.leased, q.pages FROM crawls c"
    " JOIN queues q ON q.crawl_id = c.crawl_id AND q.host_id = :host_id"
    " WHERE c.state <> 'deleted' ORDER BY c.name LIMIT :max_count"
)
_LETTER = "SELECT id, partition, crawl_id, kind, at_ms, url, evidence FROM dead_letters"
_LETTERS = text(f"{_LETTER} WHERE id IN :letters ORDER BY id DESC").bindparams(bindparam("letters", expanding=True))
_ONE_LETTER = text(f"{_LETTER} WHERE id = :id")
_BIGGEST: Final = 2**63 - 1


def stats(
    connection: Connection, crawl_id: CrawlId
) -> tuple[Counters, Mapping[str, Mapping[str, int]], Sequence[HostView]]:
    """Return a crawl's counters, its counts by reason, and the hosts with the most pages (at most _TOP).

    The counts by reason are a mapping kind -> key -> count, such as failed -> dns -> 3.
    """
    rows = reading.TOP_HOSTS.rows(connection, crawl_id=crawl_id, max_count=_TOP)
    hosts = [reading.host_view(row) for row in rows]
    return crawls.counters(connection, crawl_id), crawls.tallies(connection, crawl_id), hosts


def urls(
    connection: Connection,
    crawl_id: CrawlId,
    *,
    after: UrlPlace,
    state: UrlState | None,
    host: str | None,
    max_count: int,
    status: int | None = None,
) -> tuple[Sequence[KnownUrl], UrlPlace | None]:
    """Return up to `max_count` URLs after the place `after`, and the place to continue from (None at the end).

    Filters, each None for all URLs: `state`, `host` (its name), and `status`, the HTTP status of the last response. One
    call examines at most SCANNED rows, so there may be fewer URLs before the end.
    """
    place: dict[str, Any] = {"crawl_id": crawl_id, "after_host": after.host_id, "after": after.fingerprint}
    page, last = _URLS, _LAST
    if host is not None:
        host_id = connection.execute(_HOST_ID, {"host": host}).scalar()
        if host_id is None:
            return [], None
        place["host_id"] = host_id
        page, last = _HOST_URLS, _HOST_LAST
    least, greatest = (min(UrlState), max(UrlState)) if state is None else (state, state)
    bounds = {"least": int(least), "greatest": int(greatest), "max_count": max_count, "scanned": SCANNED}
    lowest, highest = _EVERY_STATUS if status is None else (status, status)
    bounds |= {"no_status": _NO_STATUS, "least_status": lowest, "greatest_status": highest}
    rows = connection.execute(page, place | bounds).all()
    end = rows[-1] if len(rows) == max_count else connection.execute(last, place | {"offset": SCANNED - 1}).first()
    return [reading.known_url(row) for row in rows], None if end is None else _place(end)


def url(connection: Connection, crawl_id: CrawlId, location: Location) -> UrlView | None:
    """Return what is stored of a URL: its state, host, last fetch, and the evidence of its dead letters.

    Return None if the crawl has not found the URL.
    """
    return reading.url_view(connection, crawl_id, location)


def host(connection: Connection, name: str, crawl_id: CrawlId | None) -> HostView | None:
    """Return what is stored of a host, with the numbers of its queue in one crawl (zeros if `crawl_id` is None).

    Return None if the host is unknown.
    """
    row = reading.HOST.first(connection, crawl_id=crawl_id or 0, host=name)
    return None if row is None else reading.host_view(row)


def hosts(connection: Connection, crawl_id: CrawlId | None, *, after: int, max_count: int) -> Sequence[HostView]:
    """Return at most `max_count` hosts with ids above `after`, of one crawl, or of all if `crawl_id` is None."""
    query = _ALL_HOSTS if crawl_id is None else _CRAWL_HOSTS
    rows = connection.execute(query, {"crawl_id": crawl_id or 0, "after": after, "max_count": max_count})
    return [reading.host_view(row) for row in rows]


def host_queues(connection: Connection, host_id: HostId, max_count: int) -> Sequence[HostQueue]:
    """Return at most `max_count` queues on a host, one per crawl that has URLs of it, ordered by the crawl's name."""
    rows = connection.execute(_HOST_QUEUES, {"host_id": host_id, "max_count": max_count})
    return [HostQueue(**row._mapping) for row in rows]


def dead_letters(
    connection: Connection, crawl_id: CrawlId | None, *, before: int | None, max_count: int
) -> tuple[Sequence[DeadLetterView], int | None]:
    """Return up to `max_count` dead letters with numbers below `before` (None: all), newest first.

    Also return the number to pass as `before` next, None at the end. The result may have fewer letters than
    `max_count` before the end, because its size in bytes is limited. `crawl_id` None: the letters of all crawls.
    """
    place: dict[str, Any] = {"before": _BIGGEST if before is None else before, "max_count": max_count + 1}
    place |= {} if crawl_id is None else {"crawl_id": crawl_id}
    sizes = _letter_sizes(connection.dialect.name, crawl_id is not None)
    listed = [(int(row.id), int(row.size)) for row in connection.execute(sizes, place)]
    shown = first_page(listed[:max_count])
    letters = [_letter(row) for row in connection.execute(_LETTERS, {"letters": shown})]
    return letters, shown[-1] if len(shown) < len(listed) else None


@lru_cache
def _letter_sizes(dialect: str, one_crawl: bool) -> TextClause:
    """Return the query for the ids and sizes of dead letters. A size is the length of URL and evidence in bytes.

    `one_crawl`: the query selects only the letters of the crawl `:crawl_id`.
    """
    here = " AND crawl_id = :crawl_id" if one_crawl else ""
    size = f"{byte_length(dialect, 'url')} + {byte_length(dialect, 'evidence')}"
    return text(
        f"SELECT id, {size} AS size FROM dead_letters WHERE id < :before{here} ORDER BY id DESC LIMIT :max_count"
    )


def dead_letter(connection: Connection, letter: int) -> DeadLetterView | None:
    """Return the dead letter of this number, or None if there is none."""
    row = connection.execute(_ONE_LETTER, {"id": letter}).first()
    return None if row is None else _letter(row)


def _place(row: Row[Any]) -> UrlPlace:
    return UrlPlace(HostId(row.host_id), Fingerprint(bytes(row.fingerprint)))


def _letter(row: Row[Any]) -> DeadLetterView:
    return DeadLetterView(**row._mapping)
