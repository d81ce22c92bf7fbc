"""Estimates how many queued URLs a changed scope would exclude, from a sample of bounded size."""

from collections import defaultdict
from typing import Any, Final

from sqlalchemy import Connection, text

from shared.adapters.sql.engine.stored_crawls import counters
from shared.adapters.sql.engine.url_compression import whole
from shared.adapters.sql.frontier.rescope import host_names
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.scope_change import ScopeChange, judge_found
from shared.domain.ids import CrawlId

MAX_PLANNED_HOSTS: Final = 200
MAX_PLANNED_QUEUES: Final = 5_000
MAX_PLANNED_URLS: Final = 10_000

# The hosts are those with the longest queues, of a bounded number that is examined.
_HOSTS: Final = text(
    "SELECT w.host_id, h.host, w.n FROM (SELECT q.host_id, q.queued + q.waiting AS n FROM queues q"
    " WHERE q.crawl_id = :crawl_id AND q.queued + q.waiting > 0 LIMIT :examined) w"
    " JOIN hosts h ON h.host_id = w.host_id ORDER BY w.n DESC, w.host_id LIMIT :max_count"
)
_URLS: Final = (
    "SELECT url, depth, hops, flags, via_host FROM urls WHERE crawl_id = :crawl_id AND host_id = :host_id"
    " AND state = {} ORDER BY rank {} LIMIT :max_count"
)
_FIRST, _LAST, _WAITING = (text(_URLS.format(state, order)) for state, order in ((0, ""), (0, "DESC"), (1, "")))


def scope_change(connection: Connection, crawl_id: CrawlId, scope: CompiledScope) -> ScopeChange:
    """Estimate from a sample how many of the crawl's queued URLs `scope` would exclude, by rule.

    The sample has URLs of at most MAX_PLANNED_HOSTS hosts, and only some URLs of a long queue. The numbers of the
    result are scaled up from the sample to all queued URLs.
    """
    queued = max(0, counters(connection, crawl_id).queued)
    bounds = {"examined": MAX_PLANNED_QUEUES, "max_count": MAX_PLANNED_HOSTS}
    hosts = connection.execute(_HOSTS, {"crawl_id": crawl_id} | bounds).all()
    each = MAX_PLANNED_URLS // max(1, len(hosts))
    read = known = 0
    leaving: dict[str, float] = defaultdict(float)
    for host in hosts:
        rows = _sample(connection, crawl_id, host, each)
        if not rows:
            continue
        read += len(rows)
        known += max(host.n, len(rows))
        names = host_names(connection, {row.via_host for row in rows if row.via_host is not None})
        weight = max(1.0, host.n / len(rows))
        for row in rows:
            via_host = None if row.via_host is None else names.get(row.via_host, host.host)
            rule = judge_found(
                scope,
                whole(row.url, host.host),
                host.host,
                depth=row.depth,
                hops=row.hops,
                flags=row.flags,
                via_host=via_host,
            )
            if rule is not None:
                leaving[rule.name.value] += weight
    share = queued / known if known else 0.0
    return ScopeChange(queued, read, {rule: round(n * share) for rule, n in sorted(leaving.items())})


def _sample(connection: Connection, crawl_id: CrawlId, host: Any, max_count: int) -> list[Any]:
    """Return at most `max_count` URLs of a host that are queued or wait for a due time.

    From a long queue take the first and the last queued URLs, and those that are due first.
    """
    keys = {"crawl_id": crawl_id, "host_id": host.host_id}
    if host.n <= max_count:
        rows = connection.execute(_FIRST, keys | {"max_count": max_count}).all()
        return [*rows, *connection.execute(_WAITING, keys | {"max_count": max_count - len(rows)}).all()]
    part = max(1, max_count // 3)
    found = {row.url: row for query in (_FIRST, _LAST) for row in connection.execute(query, keys | {"max_count": part})}
    waiting = connection.execute(_WAITING, keys | {"max_count": part}).all()
    return [*found.values(), *waiting]
