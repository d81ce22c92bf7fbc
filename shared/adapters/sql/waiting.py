"""The hosts of a crawl that have something left, as a display needs them: those that may be asked first come first."""

from typing import Final

from sqlalchemy import Connection, text

from shared.domain.failure import HOST_UNREACHABLE
from shared.domain.ids import CrawlId
from shared.domain.politeness import HostHealth
from shared.domain.waits import HostState

HOSTS: Final = 1_000
"""So many hosts are read. If all of them wait, so do the others, since they may be asked later."""

_LEFT = text(
    "SELECT h.host, q.queued, q.waiting, q.leased, q.pages, q.next_due_ms, h.crawl_delay_ms, h.operator_delay_ms,"
    " h.latency_ms, h.failures, h.unreachable, h.last_failure_ms, h.last_failure, h.blocked_until_ms, h.recent,"
    " h.slowed_ms, h.asked_ms, h.silent_since_ms, h.visited_at_ms"
    " FROM queues q JOIN hosts h ON h.host_id = q.host_id"
    " WHERE q.crawl_id = :crawl_id AND q.queued + q.waiting + q.leased > 0"
    " ORDER BY CASE WHEN q.queued > 0 OR q.next_due_ms < h.blocked_until_ms THEN h.blocked_until_ms"
    " ELSE q.next_due_ms END, h.host LIMIT :most"
)
_GIVEN_UP = text(
    "SELECT h.host, h.last_failure FROM queues q JOIN hosts h ON h.host_id = q.host_id"
    " WHERE q.crawl_id = :crawl_id AND h.last_failure IS NOT NULL AND EXISTS"
    " (SELECT 1 FROM urls u WHERE u.crawl_id = q.crawl_id AND u.host_id = q.host_id AND u.state = 4"
    " AND u.reason = :reason) ORDER BY h.host LIMIT :most"
)


def host_states(connection: Connection, crawl_id: CrawlId, now_ms: int) -> list[HostState]:
    """Return the hosts with URLs left. Their `rest_s` is the time since the last visit, as a negative number: the delay
    is to be added (shared.domain.waits.rested)."""
    rows = connection.execute(_LEFT, {"crawl_id": crawl_id, "most": HOSTS})
    return [
        HostState(
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
            rest_s=min(0.0, (row.visited_at_ms - now_ms) / 1000),
            last_failure=row.last_failure or "",
            crawl_delay_s=row.crawl_delay_ms / 1000,
            operator_delay_s=row.operator_delay_ms / 1000,
            latency_s=row.latency_ms / 1000,
            retry_s=max(0.0, (row.next_due_ms - now_ms) / 1000) if row.waiting else 0.0,
            gave_pages=row.pages > 0,
            busy=row.leased > 0,
        )
        for row in rows
    ]


def hosts_given_up(connection: Connection, crawl_id: CrawlId) -> dict[str, str]:
    """Return hosts of which URLs failed because the host was given up, with the last failure of each."""
    keys = {"crawl_id": crawl_id, "reason": HOST_UNREACHABLE, "most": HOSTS}
    return {row.host: row.last_failure for row in connection.execute(_GIVEN_UP, keys)}
