"""Reads the log of changes of pages, and the stored versions of a page. A read has a bounded number of rows."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import Arrays
from shared.adapters.sql.engine.url_compression import whole
from shared.domain.archive.model import RecordLocation
from shared.domain.frontier.page_history import PREFIX_BYTES, ChangeKind, PageChange, decoded, unpacked
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.reads.changes import ChangePlace, PageChangeView, PageVersion
from shared.ports.catalog import UrlPlace

ROWS: Final = 1_000
"""The most rows of the log that one read examines. A row has the changes of one transaction of an owner."""

_LOG: Final = text(
    "SELECT at_ms, partition, number, entries FROM page_changes WHERE crawl_id = :crawl_id"
    " AND (at_ms, partition, number) >= (:at_ms, :partition, :number)"
    " ORDER BY crawl_id, at_ms, partition, number LIMIT :max_count"
)
_DELETED: Final = text("SELECT changes_deleted_ms FROM crawls WHERE crawl_id = :crawl_id")
_URL: Final = "u.crawl_id, u.host_id, u.fingerprint, u.url, h.host"
_URL_SQLITE: Final = text(
    f"SELECT {_URL} FROM urls u JOIN hosts h ON h.host_id = u.host_id"
    " WHERE u.crawl_id = :crawl_id AND u.host_id = :host_id AND u.fingerprint BETWEEN :fingerprint AND :via LIMIT 1"
)
_URLS_POSTGRESQL: Final = Arrays(
    f"SELECT {_URL} FROM {{rows}} JOIN urls u ON u.crawl_id = v.crawl_id AND u.host_id = v.host_id"
    " AND u.fingerprint BETWEEN v.fingerprint AND v.via JOIN hosts h ON h.host_id = u.host_id",
    schema.urls,
    # `Arrays` gives a parameter the type of the column of `urls` with the same name. So the last fingerprint needs the
    # name of another column with fingerprints: `via`. The meaning of this column does not matter here.
    ("crawl_id", "host_id", "fingerprint", "via"),
)
"""The query on PostgreSQL that finds the URLs in several ranges of fingerprints.

The query gets one row of parameters for each range:

- `crawl_id` and `host_id`: find only URLs of this crawl on this host.
- `fingerprint` and `via`: the first and the last fingerprint of the range. The name `via` has no meaning here. A
  parameter must have the name of a column of `urls`, and `via` is another column with fingerprints.
"""

_NEWEST: Final = text(
    "SELECT * FROM fetches WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
    " AND page AND segment IS NOT NULL"
)
_EARLIER: Final = text(
    "SELECT * FROM page_versions WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
    " ORDER BY version DESC"
)


def changes(
    connection: Connection,
    crawl_id: CrawlId,
    *,
    after: ChangePlace,
    kinds: Collection[ChangeKind],
    max_count: int,
) -> tuple[Sequence[PageChangeView], ChangePlace | None]:
    """Return up to `max_count` changes of pages after `after`, and the place to continue from (None at the end).

    Only changes of the given `kinds` are returned. One call reads at most ROWS rows of the log, so it may return fewer
    changes, or none, before the end.
    """
    keys = {"crawl_id": crawl_id, "at_ms": after.at_ms, "partition": after.partition, "number": after.number}
    rows = connection.execute(_LOG, keys | {"max_count": ROWS}).all()
    found: list[tuple[ChangePlace, PageChange]] = []
    last = None
    for row in rows:
        for index, entry in enumerate(unpacked(bytes(row.entries))):
            place = ChangePlace(row.at_ms, row.partition, row.number, index)
            if place <= after:
                continue
            if len(found) == max_count:
                return _views(connection, crawl_id, found), last
            last = place
            if entry.kind in kinds:
                found.append((place, entry))
    return _views(connection, crawl_id, found), last if len(rows) == ROWS else None


def changes_deleted_ms(connection: Connection, crawl_id: CrawlId) -> int | None:
    """Return the time (Unix ms) of the newest change that retention has deleted. None if it has deleted none."""
    found: int | None = connection.execute(_DELETED, {"crawl_id": crawl_id}).scalar_one_or_none()
    return found


def versions(connection: Connection, crawl_id: CrawlId, at: UrlPlace) -> Sequence[PageVersion]:
    """Return the stored versions of a page, the newest first. The list is empty if the URL `at` has no stored page."""
    keys = {"crawl_id": crawl_id, "host_id": at.host_id, "fingerprint": at.fingerprint}
    stored = connection.execute(_NEWEST, keys).first()
    if stored is None:
        return []
    history = decoded(None if stored.recrawl is None else bytes(stored.recrawl), stored.at_ms)
    earlier = [_version(row, row.version) for row in connection.execute(_EARLIER, keys)]
    return [_version(stored, history.version, newest=True), *earlier]


def _views(
    connection: Connection, crawl_id: CrawlId, found: Sequence[tuple[ChangePlace, PageChange]]
) -> list[PageChangeView]:
    """Return the changes in `found` with the URLs of their pages.

    A change is left out if the row of its URL is gone, for example because the crawl is being deleted.
    """
    wanted = {(entry.host_id, entry.prefix) for _, entry in found}
    urls = {(row.host_id, bytes(row.fingerprint)[:PREFIX_BYTES]): row for row in _urls(connection, crawl_id, wanted)}
    return [
        PageChangeView(
            place,
            entry.kind,
            entry.host_id,
            Fingerprint(bytes(row.fingerprint)),
            whole(row.url, row.host),
            row.host,
            entry.version,
        )
        for place, entry in found
        if (row := urls.get((entry.host_id, entry.prefix))) is not None
    ]


def _urls(connection: Connection, crawl_id: CrawlId, wanted: Iterable[tuple[HostId, bytes]]) -> Iterable[Row[Any]]:
    """Return rows of the table `urls`, with the names of their hosts.

    `wanted` has, for each URL, the id of its host and the first bytes of its fingerprint.
    """
    filled = [(crawl_id, host_id, prefix.ljust(16, b"\0"), prefix.ljust(16, b"\xff")) for host_id, prefix in wanted]
    if connection.dialect.name == "postgresql":
        return _URLS_POSTGRESQL.run(connection, filled) if filled else ()
    names = ("crawl_id", "host_id", "fingerprint", "via")
    rows = [connection.execute(_URL_SQLITE, dict(zip(names, keys, strict=True))).first() for keys in sorted(filled)]
    return [row for row in rows if row is not None]


def _version(row: Row[Any], version: int, *, newest: bool = False) -> PageVersion:
    return PageVersion(
        version=version,
        fetched_at_ms=row.at_ms,
        status=row.status,
        mime=row.mime,
        size=row.size,
        digest=bytes(row.digest or b""),
        title=row.title,
        truncated=row.truncated,
        location=RecordLocation(row.segment, row.offset, row.length),
        newest=newest,
    )
