"""Reads stored pages: the list of a crawl's pages in parts of bounded size, and one page with its fetch."""

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, text

from shared.adapters.sql.catalog import crawl_reader as reading
from shared.adapters.sql.engine.context_joins import joined
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.reads.declared import PageFilter
from shared.domain.reads.views import Page, PageView
from shared.domain.web.url import Location
from shared.ports.catalog import UrlPlace

SCANNED: Final = 5_000
"""One read of the list of pages examines at most this many fetches."""

_BEHIND: Final = "r.crawl_id = :crawl_id AND (r.host_id, r.fingerprint) > (:after_host, :after)"
_ORDER: Final = "ORDER BY r.crawl_id, r.host_id, r.fingerprint"
_JOINED: Final = (
    " JOIN urls u ON u.crawl_id = f.crawl_id AND u.host_id = f.host_id AND u.fingerprint = f.fingerprint"
    f" JOIN hosts h ON h.host_id = f.host_id{joined('f')}"
)
_STORED: Final = "f.page AND f.segment IS NOT NULL"
_HOST_ID: Final = text("SELECT host_id FROM hosts WHERE host = :host")
_ONE: Final = text(
    f"SELECT f.*, u.url, u.depth, u.reason AS url_reason, h.host, s.context FROM fetches f{_JOINED}"
    " WHERE f.crawl_id = :crawl_id AND f.host_id = :host_id AND f.fingerprint = :fingerprint"
    f" AND {_STORED}"
)


@lru_cache
def _list(one_host: bool, status: bool, mime: bool) -> TextClause:
    here = " AND r.host_id = :host_id" if one_host else ""
    which = (" AND f.status = :status" if status else "") + (" AND f.mime = :mime" if mime else "")
    return text(
        "SELECT f.host_id, f.fingerprint, u.url, h.host, u.depth, f.status, f.mime, f.digest, f.size, f.segment,"
        ' f."offset", f.length, f.at_ms, f.title, f.truncated, f.links, f.links_found,'
        " u.reason AS url_reason, s.context"
        f" FROM (SELECT * FROM fetches r WHERE {_BEHIND}{here} {_ORDER} LIMIT :scanned) f{_JOINED}"
        f" WHERE {_STORED}{which} ORDER BY f.host_id, f.fingerprint LIMIT :max_count"
    )


@lru_cache
def _last(one_host: bool) -> TextClause:
    """Return a query for the last fetch of a part of the list of pages. The next part begins after this fetch.

    The parameter `:offset` is the size of a part minus 1: for parts of 5,000 fetches it is 4999. If fewer than 5,000
    fetches are left, the query returns no row. If `one_host` is True, only fetches of the host `:host_id` count.
    """
    here = " AND r.host_id = :host_id" if one_host else ""
    return text(f"SELECT r.host_id, r.fingerprint FROM fetches r WHERE {_BEHIND}{here} {_ORDER} LIMIT 1 OFFSET :offset")


def pages(
    connection: Connection, crawl_id: CrawlId, *, after: UrlPlace, which: PageFilter, max_count: int
) -> tuple[list[Page], UrlPlace | None]:
    """Return up to `max_count` stored pages after the place `after`, and the place to continue from (None at the end).

    `which` selects pages by host, status and MIME type. One call scans at most SCANNED fetches, so there may be fewer
    pages before the end.
    """
    place: dict[str, Any] = {"crawl_id": crawl_id, "after_host": after.host_id, "after": after.fingerprint}
    if which.host is not None:
        host_id = connection.execute(_HOST_ID, {"host": which.host}).scalar()
        if host_id is None:
            return [], None
        place["host_id"] = host_id
    filters: dict[str, Any] = {"scanned": SCANNED, "max_count": max_count}
    filters |= {name: value for name, value in (("status", which.status), ("mime", which.mime)) if value is not None}
    query = _list(which.host is not None, which.status is not None, which.mime is not None)
    rows = connection.execute(query, place | filters).all()
    if len(rows) == max_count:
        end: Row[Any] | None = rows[-1]
    else:
        end = connection.execute(_last(which.host is not None), place | {"offset": SCANNED - 1}).first()
    return [reading.stored_page(row) for row in rows], None if end is None else _place(end)


def page(connection: Connection, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
    """Return the stored page of the URL at `at` with its fetch, or None if there is none."""
    if isinstance(at, UrlPlace):
        host_id: int | None = at.host_id
    else:
        host_id = connection.execute(_HOST_ID, {"host": at.host}).scalar()
    if host_id is None:
        return None
    keys = {"crawl_id": crawl_id, "host_id": host_id, "fingerprint": at.fingerprint}
    row = connection.execute(_ONE, keys).first()
    return None if row is None else PageView(reading.stored_page(row), reading.fetch_view(row))


def _place(row: Row[Any]) -> UrlPlace:
    return UrlPlace(HostId(row.host_id), Fingerprint(bytes(row.fingerprint)))
