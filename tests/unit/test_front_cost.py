"""The front's cost: its heap is bounded by the hosts held, and a shard costs the same however many crawls run."""

import sys
from types import FrameType
from typing import Any

import pytest

from api.frontier.host_queues import HostQueues
from api.frontier.pool_shares import PoolShares
from shared.domain.ids import CrawlId, HostId
from tests.unit.test_host_time import FACTS, row

HOSTS = 300
EPOCH_MS = 1_700_000_000_000


def offer(
    front: HostQueues, crawl_id: int, host_id: int, now: float, *, delay_s: float = 1.0, blocked_s: int = 0
) -> None:
    known = row(crawl_id, host_id, blocked_until_ms=EPOCH_MS + int((now + blocked_s) * 1000) if blocked_s else 0)
    front.offer(known, facts=FACTS, delay_s=delay_s, slots=1, now=now, now_ms=EPOCH_MS + int(now * 1000))


def steps_of(work: Any, *arguments: Any) -> int:
    """Lines of Python that the call runs."""
    count = 0

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        work(*arguments)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.long
def test_heap_of_waiting_hosts_stays_within_twice_the_hosts() -> None:
    """For hours all hosts wait: they are read anew, blocked for longer and shorter, and have something queued."""
    front = HostQueues(PoolShares(), max_hosts=HOSTS, rested_from=0.0)
    costs: list[int] = []

    def minute(now: float) -> None:
        for host in range(HOSTS):
            offer(front, 1 + host % 3, host, now, delay_s=20.0, blocked_s=3600 + host)
            held = front.host(HostId(host))
            assert held is not None
            front.added(CrawlId(1 + host % 3), HostId(host), 1)
            front.block(held, now + 7200.0 - (now * 7 + host) % 600)
        front.wake(now)

    for at in range(0, 4 * 3600, 60):
        costs.append(steps_of(minute, float(at)))
        assert len(front._later) <= 2 * HOSTS + 64
    first, last = sum(costs[10:20]), sum(costs[-10:])
    assert last <= 1.2 * first, (first, last)


def per_shard(crawls: int, *, shared: bool) -> float:
    """Lines of Python per shard: taken, leased and released, beside so many crawls that have something due."""
    shares = PoolShares()
    front = HostQueues(shares, max_hosts=1 << 30, rested_from=-1000.0)
    for crawl in range(crawls):
        for host in range(max(1, 100 // crawls)):
            offer(front, crawl, (crawl + host) % 10 if shared else crawl * 100 + host, 0.0)

    def turn(now: float) -> int:
        taken = []
        front.lines.begin(now)
        front.wake(now)
        shares.allot("default", 20, now, lambda _: True)
        while (place := front.take(now)) is not None:
            host, queue = place
            assert front.acquire(host, queue) == 0
            front.record_lease(host, queue, 0, 10)
            shares.add("default", queue.crawl_id, 1)
            taken.append(place)
        front.lines.end()
        for host, queue in taken:
            shares.add("default", queue.crawl_id, -1)
            queue.leased -= 10
            front.reschedule(host, queue)
            front.release(host, 0, now, 1.0)
        return len(taken)

    turn(0.0)
    shards = 0

    def work() -> None:
        nonlocal shards
        for at in range(1, 40):
            shards += turn(float(at) * 3)

    steps = steps_of(work)
    assert shards >= 390
    return steps / shards


def test_shard_costs_the_same_with_ten_crawls_and_ten_thousand() -> None:
    few, many = per_shard(10, shared=False), per_shard(10_000, shared=False)
    assert many <= 1.2 * few, (few, many)


def test_shard_costs_the_same_where_all_crawls_share_their_hosts() -> None:
    few, many = per_shard(10, shared=True), per_shard(10_000, shared=True)
    assert many <= 1.2 * few, (few, many)
