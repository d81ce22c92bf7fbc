"""What the hosts of one crawl wait for, such as a delay or a retry. Read from the queues in memory, without I/O."""

from collections.abc import Iterable, Iterator

from api.frontier.dispatch_crawls import DispatchCrawl
from api.frontier.host_queues import HostQueues
from api.frontier.host_shares import CrawlQueue
from api.frontier.hosts import Host
from shared.domain.explain.waits import HostState, Waits, waits_of
from shared.wire.messages import HostWaiting


def host_waits(partitions: Iterable[HostQueues], crawl: DispatchCrawl, now: float, now_ms: int) -> Waits:
    """Return what the crawl's hosts wait for. It scans all hosts in memory.

    `partitions`: the host queues of each partition. `now`: `Clock.elapsed`. `now_ms`: Unix ms.
    """
    return waits_of(list(_states(partitions, crawl, now)), crawl.spec, now_ms)


def _states(partitions: Iterable[HostQueues], crawl: DispatchCrawl, now: float) -> Iterator[HostState]:
    for queues in partitions:
        for host in queues.hosts():
            queue = host.queues.get(crawl.crawl_id)
            if queue is not None and queue.queued + queue.waiting + queue.leased:
                yield _state(host, queue, now)


def _state(host: Host, queue: CrawlQueue, now: float) -> HostState:
    facts = host.facts
    return HostState(
        host=host.name,
        health=facts.health,
        urls=queue.queued + queue.waiting + queue.leased,
        due_s=0.0 if queue.queued or queue.leased else queue.next_due - now,
        rest_s=host.rested_at(queue) - now,
        last_failure=facts.last_failure or "",
        crawl_delay_s=facts.crawl_delay_ms / 1000,
        operator_delay_s=facts.operator_delay_ms / 1000,
        latency_s=facts.latency_ms / 1000,
        retry_s=max(0.0, queue.next_due - now) if queue.waiting else 0.0,
        gave_pages=queue.pages > 0,
        busy=bool(host.taken),
        waiting=queue.waiting,
        policy_until_ms=facts.operator_blocked_until_ms,
        policy_slots=facts.operator_slots,
    )


def waiting_in(waits: Waits) -> list[HostWaiting]:
    """Return the waiting hosts as fields of a status message, with times in milliseconds."""
    return [
        HostWaiting(
            wait.host,
            wait.reason,
            _ms(wait.wait_s),
            wait.urls,
            _ms(wait.delay_s),
            wait.cause,
            _ms(wait.given_up_s) if wait.given_up_s >= 0 else -1,
            wait.asked,
        )
        for wait in waits.hosts
    ]


def _ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.5)
