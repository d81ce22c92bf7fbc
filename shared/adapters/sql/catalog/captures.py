"""Reads captures for the CDX server. A query reads at most SCANNED captures, of one URL or of whole hosts."""

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from sqlalchemy import Connection, text

from shared.adapters.sql.catalog.crawl_reader import index_row
from shared.domain.archive.cdx_query import CdxMatch, CdxQuery
from shared.domain.archive.cdxj import IndexRow
from shared.domain.ids import CrawlId, Partition

SCANNED: Final = 20_000
"""The most captures that one query of the CDX server reads."""

SCANNED_HOSTS: Final = 5_000
"""The most hosts that a query for a domain reads. It reads the crawl's hosts in the partition of the domain, and
selects those in the domain."""

_CAPTURES: Final = (
    'SELECT u.url, h.host, f.at_ms, f.status, f.mime, f.digest, f.segment, f."offset", f.length'
    " FROM hosts h JOIN {} f ON f.crawl_id = :crawl_id AND f.host_id = h.host_id"
    " JOIN urls u ON u.crawl_id = f.crawl_id AND u.host_id = f.host_id AND u.fingerprint = f.fingerprint"
    " WHERE h.host = :host AND f.segment IS NOT NULL"
)
# The last answer of each URL, and the earlier versions of pages that are fetched again.
_TABLES: Final = ("fetches", "page_versions")
_ONE: Final = [text(f"{_CAPTURES.format(table)} AND f.fingerprint = :fingerprint") for table in _TABLES]
_OF_HOST: Final = [text(f"{_CAPTURES.format(table)} LIMIT :max_count") for table in _TABLES]
_HOSTS: Final = text(
    "SELECT h.host FROM queues q JOIN hosts h ON h.host_id = q.host_id"
    " WHERE q.crawl_id = :crawl_id AND q.partition = :partition ORDER BY q.host_id LIMIT :max_count"
)


def captures(
    connection: Connection, crawl_id: CrawlId, query: CdxQuery, partition: Partition
) -> Sequence[IndexRow] | None:
    """Return the captures that `query` may match, unsorted: those of the query's URL, or all of the query's hosts.

    The caller applies the other conditions of the query. `partition`: the partition of the query's host.

    Return None if there is too much to read:

    - The hosts have more than SCANNED captures.
    - The query is for a domain, and the crawl has more than SCANNED_HOSTS hosts in the partition.
    """
    of_crawl: dict[str, Any] = {"crawl_id": crawl_id}
    if query.match is CdxMatch.EXACT:
        places = [{**of_crawl, "host": each.host, "fingerprint": each.fingerprint} for each in query.locations()]
        return [index_row(row) for place, one in product(places, _ONE) for row in connection.execute(one, place)]
    hosts: Sequence[str] = query.hosts()
    if query.match is CdxMatch.DOMAIN:
        found = connection.execute(_HOSTS, {**of_crawl, "partition": partition, "max_count": SCANNED_HOSTS + 1})
        names = found.scalars().all()
        if len(names) > SCANNED_HOSTS:
            return None
        bare = set(map(_bare, hosts))
        hosts = [name for name in names if any(f".{_bare(name)}".endswith(f".{each}") for each in bare)]
    rows: list[IndexRow] = []
    for host, statement in product(hosts, _OF_HOST):
        left = SCANNED + 1 - len(rows)
        rows += map(index_row, connection.execute(statement, {**of_crawl, "host": host, "max_count": left}))
        if len(rows) > SCANNED:
            return None
    return rows


def _bare(host: str) -> str:
    """Return a host name without its port, to test if it is a subdomain of another one.

    An IPv6 address (in brackets) has no subdomains. It is returned unchanged, with any port.
    """
    return host if host.startswith("[") else host.partition(":")[0]
