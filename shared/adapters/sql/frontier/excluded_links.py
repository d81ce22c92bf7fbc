"""Excluded links: examples by exclusion reason, and the counts of a page that is fetched again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import Connection, text

from shared.adapters.sql.frontier.url_compression import whole
from shared.domain.explain.excluded_links import (
    MAX_EXAMPLES,
    ExcludedLink,
    ExcludedLinkExample,
    losses,
)
from shared.domain.frontier.store_model import FetchRow
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.robots import BY_DIRECTIVE
from shared.domain.web.url import locate

_KEPT: Final = text(
    "SELECT reason, count(*) AS n FROM links_left_out WHERE crawl_id = :crawl_id AND partition = :partition"
    " GROUP BY reason"
)
_KEEP: Final = text(
    "INSERT INTO links_left_out (crawl_id, partition, reason, url, host_id, fingerprint)"
    " VALUES (:crawl_id, :partition, :reason, :url, :host_id, :fingerprint) ON CONFLICT DO NOTHING"
)
_EXAMPLES: Final = text(
    "SELECT l.reason, l.url AS link, u.url, h.host FROM links_left_out l"
    " JOIN urls u ON u.crawl_id = l.crawl_id AND u.host_id = l.host_id AND u.fingerprint = l.fingerprint"
    " JOIN hosts h ON h.host_id = l.host_id"
    " WHERE l.crawl_id = :crawl_id ORDER BY l.crawl_id, l.partition, l.reason, l.url"
)
_KNOWN: Final = text(
    "SELECT 1 FROM urls u JOIN hosts h ON h.host_id = u.host_id"
    " WHERE u.crawl_id = :crawl_id AND h.host = :host AND u.fingerprint = :fingerprint"
)
_LOSSES: Final = text(
    "SELECT page, truncated, left_out, reason FROM fetches"
    " WHERE crawl_id = :crawl_id AND host_id = :host_id AND fingerprint = :fingerprint"
)


def keep(connection: Connection, partition: Partition, links: Iterable[ExcludedLink]) -> None:
    """Store the excluded links as examples, at most MAX_EXAMPLES per crawl, reason and partition."""
    by_crawl: dict[CrawlId, dict[str, dict[str, ExcludedLink]]] = {}
    for link in links:
        reason, url = link.reason.replace("\0", "")[:40], link.url.replace("\0", "")
        by_crawl.setdefault(link.crawl_id, {}).setdefault(reason, {}).setdefault(url, link)
    for crawl_id, reasons in sorted(by_crawl.items()):
        place = {"crawl_id": crawl_id, "partition": partition}
        kept = {row.reason: row.n for row in connection.execute(_KEPT, place)}
        rows = [
            place | {"reason": reason, "url": url, "host_id": link.host_id, "fingerprint": link.fingerprint}
            for reason, by_url in sorted(reasons.items())
            for url, link in list(by_url.items())[: max(0, MAX_EXAMPLES - kept.get(reason, 0))]
        ]
        if rows:
            connection.execute(_KEEP, rows)


def recounted(connection: Connection, rows: Iterable[FetchRow]) -> Mapping[tuple[CrawlId, str, str], int]:
    """Return what to add to the crawls' counts by reason if `rows` replace the stored fetches of their URLs.

    It is a mapping from (crawl, kind, key) to a number. Call it before the rows are written.
    """
    deltas: dict[tuple[CrawlId, str, str], int] = defaultdict(int)
    for row in rows:
        keys = {"crawl_id": row.crawl_id, "host_id": row.host_id, "fingerprint": row.fingerprint}
        old = connection.execute(_LOSSES, keys).first()
        if old is not None and old.page and not (row.page or row.reason in BY_DIRECTIVE):
            continue
        for kind, key, n in losses(row.page, row.truncated, row.left_out, row.reason):
            deltas[row.crawl_id, kind, key] += n
        for kind, key, n in losses(old.page, old.truncated, old.left_out, old.reason) if old is not None else ():
            deltas[row.crawl_id, kind, key] -= n
    return deltas


def examples(connection: Connection, crawl_id: CrawlId) -> dict[str, list[ExcludedLinkExample]]:
    """Return a mapping from exclusion reason to at most MAX_EXAMPLES links of the crawl that are still excluded.

    A link that the crawl has found since, from another page or under another spec, is no example.
    """
    result: dict[str, list[ExcludedLinkExample]] = {}
    for row in connection.execute(_EXAMPLES, {"crawl_id": crawl_id}).all():
        some = result.setdefault(row.reason, [])
        if len(some) >= MAX_EXAMPLES:
            continue
        place = locate(row.link)
        keys = {} if place is None else {"host": place.host, "fingerprint": place.fingerprint}
        if not keys or connection.execute(_KNOWN, {"crawl_id": crawl_id, **keys}).first() is None:
            some.append(ExcludedLinkExample(row.link, whole(row.url, row.host)))
    return {reason: some for reason, some in result.items() if some}
