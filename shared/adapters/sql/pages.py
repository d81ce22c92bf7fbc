"""Bounded reads of stored pages: keyset pages of the list, and one page with its fetch."""

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, Row, TextClause, text

from shared.adapters.sql import reading
from shared.domain.declared import PageFilter
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.url import Location
from shared.domain.views import Page, PageView
from shared.ports.catalog import UrlPlace

SCANNED: Final = 5_000
"""Fetches that one page of the list looks at, at most."""

_BEHIND: Final = "r.crawl_id = :crawl_id AND (r.host_id, r.fingerprint) > (:after_host, :after)"
_ORDER: Final = "ORDER BY r.crawl_id, r.host_id, r.fingerprint"
_JOINED: Final = (
    " JOIN urls u ON u.crawl_id = f.crawl_id AND u.host_id = f.host_id AND u.fingerprint = f.fingerprint"
    " JOIN hosts h ON h.host_id = f.host_id"
)
_STORED: Final = "f.page AND f.segment IS NOT NULL"
_HOST_ID: Final = text("SELECT host_id FROM hosts WHERE host = :host")
_ONE: Final = text(
    f"SELECT f.*, u.url, u.depth, h.host FROM fetches f{_JOINED}"
    " WHERE f.crawl_id = :crawl_id AND f.host_id = :host_id AND f.fingerprint = :fingerprint"
    f" AND {_STORED}"
)


@lru_cache
def _list(one_host: bool, status: bool, mime: bool) -> TextClause:
    here = " AND r.host_id = :host_id" if one_host else ""
    which = (" AND f.status = :status" if status else "") + (" AND f.mime = :mime" if mime else "")
    return text(
        "SELECT f.host_id, f.fingerprint, u.url, h.host, u.depth, f.status, f.mime, f.digest, f.size, f.segment,"
        ' f."offset", f.length, f.at_ms, f.title, f.truncated, f.links, f.links_found'
        f" FROM (SELECT * FROM fetches r WHERE {_BEHIND}{here} {_ORDER} LIMIT :scanned) f{_JOINED}"
        f" WHERE {_STORED}{which} ORDER BY f.host_id, f.fingerprint LIMIT :most"
    )


@lru_cache
def _last(one_host: bool) -> TextClause:
    """The last of the rows that a page of the list looked at, if it looked at as many as it may."""
    here = " AND r.host_id = :host_id" if one_host else ""
    return text(f"SELECT r.host_id, r.fingerprint FROM fetches r WHERE {_BEHIND}{here} {_ORDER} LIMIT 1 OFFSET :offset")


def pages(
    connection: Connection, crawl_id: CrawlId, after: UrlPlace, which: PageFilter, most: int
) -> tuple[list[Page], UrlPlace | None]:
    """See Catalog.pages."""
    place: dict[str, Any] = {"crawl_id": crawl_id, "after_host": after.host_id, "after": after.fingerprint}
    if which.host is not None:
        host_id = connection.execute(_HOST_ID, {"host": which.host}).scalar()
        if host_id is None:
            return [], None
        place["host_id"] = host_id
    wanted: dict[str, Any] = {"scanned": SCANNED, "most": most}
    wanted |= {name: value for name, value in (("status", which.status), ("mime", which.mime)) if value is not None}
    query = _list(which.host is not None, which.status is not None, which.mime is not None)
    rows = connection.execute(query, place | wanted).all()
    if len(rows) == most:
        end: Row[Any] | None = rows[-1]
    else:
        end = connection.execute(_last(which.host is not None), place | {"offset": SCANNED - 1}).first()
    return [reading.stored_page(row) for row in rows], None if end is None else _place(end)


def page(connection: Connection, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
    """See Catalog.page."""
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
