"""Stores examples of excluded links by reason, and corrects the counts of such links when a page is fetched again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, text

from shared.domain.explain.excluded_links import (
    MAX_EXAMPLES,
    ExcludedLink,
    losses,
)
from shared.domain.frontier.store_model import FetchRow
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.robots import BY_DIRECTIVE

_KEPT: Final = text(
    "SELECT reason, count(*) AS n FROM links_left_out WHERE crawl_id = :crawl_id AND partition = :partition"
    " GROUP BY reason"
)
_KEEP: Final = text(
    "INSERT INTO links_left_out (crawl_id, partition, reason, url, host_id, fingerprint)"
    " VALUES (:crawl_id, :partition, :reason, :url, :host_id, :fingerprint) ON CONFLICT DO NOTHING"
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
    """Return what to add to crawls' counts by reason when `rows` replace the stored fetches of their URLs.

    The result has a number, which may be negative, for each (crawl, kind, key). For example, kind `left_out` and key
    `depth` count the links that are deeper than the depth limit. Call this before the rows are written.
    """
    deltas: dict[tuple[CrawlId, str, str], int] = defaultdict(int)
    for row in rows:
        keys = {"crawl_id": row.crawl_id, "host_id": row.host_id, "fingerprint": row.fingerprint}
        old = connection.execute(_LOSSES, keys).first()
        if old is not None and _stores_page(old) and not _stores_page(row):
            continue  # The stored fetch stays, as in `apply.FETCH`.
        for kind, key, n in losses(row.page, row.truncated, row.left_out, row.reason):
            deltas[row.crawl_id, kind, key] += n
        for kind, key, n in losses(old.page, old.truncated, old.left_out, old.reason) if old is not None else ():
            deltas[row.crawl_id, kind, key] -= n
    return deltas


def _stores_page(fetch: Any) -> bool:
    """Return True if this fetch stored a page, also if a directive of the page forbids to index it."""
    return bool(fetch.page or fetch.reason in BY_DIRECTIVE)
