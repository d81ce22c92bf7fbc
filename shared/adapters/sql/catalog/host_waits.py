"""Reads the hosts on which a crawl has unfinished URLs, and what delays the next visit of each."""

from typing import TYPE_CHECKING, Any, Final

from shared.adapters.sql.engine.query import Query
from shared.domain.explain.waits import HostState
from shared.domain.frontier.failure import HOST_UNREACHABLE
from shared.domain.frontier.politeness import HostHealth
from shared.domain.ids import CrawlId

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from shared.adapters.sql.engine.query import ReadConnection

HOSTS: Final = 1_000
"""The most hosts that `host_states` reads. It reads the hosts that may be visited earliest.

If all of these hosts wait, the other hosts of the crawl wait too.
"""

_COLUMNS = (
    "SELECT h.host, q.queued, q.waiting, q.leased, q.pages, q.next_due_ms, h.crawl_delay_ms, h.operator_delay_ms,"
    " h.latency_ms, h.failures, h.unreachable, h.last_failure_ms, h.last_failure, h.blocked_until_ms, h.recent,"
    " h.slowed_ms, h.asked_ms, h.silent_since_ms, h.visited_at_ms, h.operator_blocked_until_ms, h.operator_slots"
)
_LEFT = Query(
    f"{_COLUMNS} FROM queues q JOIN hosts h ON h.host_id = q.host_id"
    " WHERE q.crawl_id = :crawl_id AND q.queued + q.waiting + q.leased > 0"
    " ORDER BY CASE WHEN q.queued > 0 OR q.next_due_ms < h.blocked_until_ms THEN h.blocked_until_ms"
    " ELSE q.next_due_ms END, h.host LIMIT :max_count"
)
_SOME = (
    f"{_COLUMNS} FROM (SELECT * FROM queues q WHERE q.crawl_id = :crawl_id AND q.queued + q.waiting > 0"
    " ORDER BY q.crawl_id, q.partition, q.active_at_ms LIMIT :max_count) q JOIN hosts h ON h.host_id = q.host_id"
)
# SQLite has no statistics here and would sort the queues of the whole crawl.
_SOME_OF = {
    "sqlite": Query(_SOME.replace("FROM queues q", "FROM queues q INDEXED BY queues_ready")),
    "postgresql": Query(_SOME),
}
_GIVEN_UP = Query(
    "SELECT h.host, h.last_failure FROM queues q JOIN hosts h ON h.host_id = q.host_id"
    " WHERE q.crawl_id = :crawl_id AND h.last_failure IS NOT NULL AND EXISTS"
    " (SELECT 1 FROM urls u WHERE u.crawl_id = q.crawl_id AND u.host_id = q.host_id AND u.state = 4"
    " AND u.reason = :reason) ORDER BY h.host LIMIT :max_count"
)


def host_states(connection: "ReadConnection", crawl_id: CrawlId, now_ms: int) -> list[HostState]:
    """Return at most HOSTS hosts on which the crawl has unfinished URLs. They are ordered by when they may be visited.

    The field `rest_s` of the results is not complete, because the delay of the host is missing. Pass each result to
    `waits.rested`, which adds the delay. Only then use `rest_s`.
    """
    rows = _LEFT.rows(connection, crawl_id=crawl_id, max_count=HOSTS)
    return [_state(row, now_ms) for row in rows]


def some_host_states(connection: "Connection", crawl_id: CrawlId, now_ms: int, max_count: int) -> list[HostState]:
    """Return at most `max_count` hosts on which the crawl has URLs that are due or wait for their due time.

    The field `rest_s` of the results is not complete, because the delay of the host is missing. Pass each result to
    `waits.rested`, which adds the delay. Only then use `rest_s`.

    The cost depends on `max_count`, not on the number of the crawl's hosts.
    """
    rows = _SOME_OF[connection.dialect.name].rows(connection, crawl_id=crawl_id, max_count=max_count)
    return [_state(row, now_ms) for row in rows]


def _state(row: Any, now_ms: int) -> HostState:
    return HostState(
        host=row.host,
        health=HostHealth(
            row.failures,
            row.unreachable,
            row.last_failure_ms,
            row.blocked_until_ms,
            row.recent,
            row.slowed_ms,
            row.asked_ms,
            row.silent_since_ms,
        ),
        urls=row.queued + row.waiting + row.leased,
        due_s=0.0 if row.queued or row.leased else (row.next_due_ms - now_ms) / 1000,
        # Minus the seconds since the last visit, such as -3. `waits.rested` adds the delay, such as 5.
        rest_s=min(0.0, (row.visited_at_ms - now_ms) / 1000),
        last_failure=row.last_failure or "",
        crawl_delay_s=row.crawl_delay_ms / 1000,
        operator_delay_s=row.operator_delay_ms / 1000,
        latency_s=row.latency_ms / 1000,
        retry_s=max(0.0, (row.next_due_ms - now_ms) / 1000) if row.waiting else 0.0,
        gave_pages=row.pages > 0,
        busy=row.leased > 0,
        waiting=row.waiting,
        policy_until_ms=row.operator_blocked_until_ms,
        policy_slots=row.operator_slots,
    )


def hosts_given_up(connection: "ReadConnection", crawl_id: CrawlId) -> dict[str, str]:
    """Return the last failure of each host that was given up as unreachable, by host: at most HOSTS hosts.

    A host is given up when it failed several times in a row. Then its queued URLs fail.
    """
    rows = _GIVEN_UP.rows(connection, crawl_id=crawl_id, reason=HOST_UNREACHABLE, max_count=HOSTS)
    return {row.host: row.last_failure for row in rows}
