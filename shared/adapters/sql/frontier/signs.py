"""Applies signs of change to stored pages, inside an owner's transaction of discoveries.

A sign of change is the date that a sitemap or feed gives for a page. Nothing here runs for a crawl that does not fetch
its pages again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import updating
from shared.adapters.sql.frontier.apply import add_tallies
from shared.adapters.sql.frontier.revisits import HISTORY
from shared.domain.frontier.page_history import decoded
from shared.domain.frontier.page_signs import PageSigns
from shared.domain.frontier.recrawl_pages import counted
from shared.domain.frontier.signals import signals_of
from shared.domain.frontier.states import COUNTED_AS_PAGE, RETRY, REVISIT
from shared.domain.frontier.store_model import DiscoveredLink, DiscoveryResult
from shared.domain.ids import CrawlId, Fingerprint, HostId, Partition, partition_of_id

_AT_ONCE: Final = 500
_OF_HOST: Final = "crawl_id = :crawl_id AND host_id = :host_id"
_SIGNALS: Final = text(f"SELECT signals FROM queues WHERE {_OF_HOST}")
_PAGES: Final = text(
    "SELECT u.fingerprint, u.rank, f.at_ms, f.recrawl FROM urls u JOIN fetches f ON f.crawl_id = u.crawl_id"
    " AND f.host_id = u.host_id AND f.fingerprint = u.fingerprint"
    " WHERE u.crawl_id = :crawl_id AND u.host_id = :host_id AND u.fingerprint IN :fingerprints AND u.state = 1"
    f" AND u.flags & {COUNTED_AS_PAGE | REVISIT | RETRY} = {COUNTED_AS_PAGE | REVISIT} AND f.page"
).bindparams(bindparam("fingerprints", expanding=True))
_KEYS: Final = ("crawl_id", "host_id", "fingerprint")
_DUE: Final = updating(schema.urls, _KEYS, ("rank",), "rank = {v}rank")
_NEXT: Final = text(
    "UPDATE queues SET next_due_ms = CASE WHEN next_due_ms = 0 OR next_due_ms > :due_ms THEN :due_ms"
    f" ELSE next_due_ms END WHERE {_OF_HOST}"
)
_FOUND: Final = text(f"UPDATE queues SET found_ms = :now_ms WHERE {_OF_HOST}")

_Key = tuple[CrawlId, HostId, Fingerprint]


def apply_signs(
    connection: Connection,
    partition: Partition,
    links: Mapping[_Key, DiscoveredLink],
    rules: Mapping[CrawlId, PageSigns | None],
    result: DiscoveryResult,
    now_ms: int,
) -> None:
    """Apply signs of change to stored pages: update their histories, and make them due sooner if the rules say so.

    - `links`: the links that have a date, by URL.
    - `rules`: the rules of each crawl that fetches pages again. Crawls with None, or without an entry, are skipped.
    - `result` gets the changed due times and counts, and the hosts whose sitemaps made a page due sooner.
    """
    hosts: dict[tuple[CrawlId, HostId], list[Fingerprint]] = defaultdict(list)
    for crawl_id, host_id, fingerprint in sorted(links):
        hosts[crawl_id, host_id].append(fingerprint)
    tallies: dict[tuple[CrawlId, str, str], int] = defaultdict(int)
    for (crawl_id, host_id), fingerprints in hosts.items():
        rule = rules.get(crawl_id)
        if rule is None:
            continue
        for start in range(0, len(fingerprints), _AT_ONCE):
            some = fingerprints[start : start + _AT_ONCE]
            _apply_some(connection, crawl_id, host_id, some, links, rule, result, tallies, now_ms)
    for (crawl_id, kind, bucket), n in tallies.items():
        result.counts[crawl_id, kind, int(bucket)] = n
    add_tallies(connection, partition, tallies)


def write_found(connection: Connection, partition: Partition, result: DiscoveryResult, now_ms: int) -> None:
    """Store `now_ms` in the rows of the queues in `result.listing`, as the time of the last news (`queues.found_ms`).

    `result.listing` has the queues of hosts whose sitemaps or feeds listed something new in this transaction. Something
    new is a new URL, or a date that makes a stored page due sooner.

    The call changes `result`:

    - Queues of other partitions are removed from `result.listing`. Nothing is stored for these queues.
    - `result.listing_ms` is set to `now_ms`.
    """
    result.listing = {key for key in result.listing if partition_of_id(key[1]) == partition}
    result.listing_ms = now_ms
    for crawl_id, host_id in sorted(result.listing):
        connection.execute(_FOUND, {"crawl_id": crawl_id, "host_id": host_id, "now_ms": now_ms})


def _apply_some(
    connection: Connection,
    crawl_id: CrawlId,
    host_id: HostId,
    fingerprints: Sequence[Fingerprint],
    links: Mapping[_Key, DiscoveredLink],
    rule: PageSigns,
    result: DiscoveryResult,
    tallies: dict[tuple[CrawlId, str, str], int],
    now_ms: int,
) -> None:
    place = {"crawl_id": crawl_id, "host_id": host_id}
    stored = connection.execute(_SIGNALS, place).scalar()
    signals = signals_of(None if stored is None else bytes(stored))
    histories: list[tuple[bytes, CrawlId, HostId, Fingerprint]] = []
    due: list[tuple[int, CrawlId, HostId, Fingerprint]] = []
    for row in connection.execute(_PAGES, place | {"fingerprints": list(fingerprints)}):
        key = (crawl_id, host_id, Fingerprint(bytes(row.fingerprint)))
        link, history = links[key], decoded(None if row.recrawl is None else bytes(row.recrawl), row.at_ms)
        signed = rule.signed(link.url, history, row.rank, link.lastmod * 1000, signals, now_ms)
        if signed is None:
            continue
        if signed.history != history:
            histories.append((signed.history.encoded(), *key))
            for known, sign in ((history, -1), (signed.history, 1)):
                for kind, bucket, n in counted(known):
                    tallies[crawl_id, kind, str(bucket)] += sign * n
        if signed.sooner:
            due.append((signed.due_ms, *key))
            result.listing.add((crawl_id, HostId(link.via_host)))
    HISTORY.run(connection, histories)
    _DUE.run(connection, due)
    if due:
        first = min(each[0] for each in due)
        connection.execute(_NEXT, place | {"due_ms": first})
        result.due[crawl_id, host_id] = min(first, result.due.get((crawl_id, host_id), first))
