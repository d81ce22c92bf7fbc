"""Crawls share the time of a host by weight, whatever their delays, on simulated time."""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.frontier.host_queues import HostQueues
from api.frontier.host_shares import CrawlQueue
from api.frontier.hosts import Host, HostFacts, shard_limit
from api.frontier.pool_shares import PoolShares
from shared.domain.frontier.politeness import HostHealth, shard_size
from shared.domain.frontier.store_model import QueueRow
from shared.domain.ids import CrawlId, HostId

HOUR_S = 3600.0
FETCH_S = 0.2
HOST = HostId(1)
FACTS = HostFacts(HostHealth(), latency_ms=int(FETCH_S * 1000), visited=True)


def row(crawl_id: int, host_id: int = HOST, blocked_until_ms: int = 0) -> QueueRow:
    """A queue with endless work."""
    known: dict[str, Any] = dict.fromkeys(QueueRow.__struct_fields__, 0)
    known |= {"crawl_id": crawl_id, "host_id": host_id, "host": "h", "queued": 10**7}
    return QueueRow(**known | {"blocked_until_ms": blocked_until_ms})


@dataclass(frozen=True)
class Crawl:
    """A crawl with endless work on the host from `at_s` on."""

    delay_s: float
    weight: int = 1
    at_s: float = 0.0
    slots: int = 1


@dataclass
class Sim:
    """A host, its crawls and workers that take every shard at once. `used`: host time, fetches and rests.

    A shard may be leased before the host's delay is over (`LEAD_S`). As a real worker does, it waits for the rest.
    """

    crawls: dict[CrawlId, Crawl]
    shut: set[CrawlId] = field(default_factory=set)
    now: float = 0.0
    used: dict[CrawlId, float] = field(default_factory=lambda: defaultdict(float))
    largest: dict[CrawlId, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self.shares = PoolShares()
        self.front = HostQueues(self.shares, max_hosts=10, rested_from=0.0)
        self.ends: list[tuple[float, int, CrawlId, int, float]] = []
        self.shards = 0
        self.offered: set[CrawlId] = set()

    def run(self, until: float) -> None:
        while self.now < until:
            self._arrive()
            while self.ends and self.ends[0][0] <= self.now:
                self._end()
            self._dispatch()
            later = [crawl.at_s for crawl_id, crawl in self.crawls.items() if crawl_id not in self.offered]
            ends = [self.ends[0][0]] if self.ends else []
            step = min([*later, *ends, max(self.front.next_wake(), self.now + 1e-3), self.now + 1.0])
            self.now = min(max(step, self.now + 1e-6), until)

    def _arrive(self) -> None:
        for crawl_id, crawl in self.crawls.items():
            if crawl_id not in self.offered and crawl.at_s <= self.now:
                self.offered.add(crawl_id)
                self.front.offer(
                    row(crawl_id), facts=FACTS, delay_s=crawl.delay_s, slots=crawl.slots,
                    now=self.now, now_ms=int(self.now * 1000), weight=crawl.weight,
                )  # fmt: skip

    def _dispatch(self) -> None:
        self.front.lines.begin(self.now)
        self.front.wake(self.now)
        self.shares.allot("default", 100, self.now, lambda crawl_id: crawl_id not in self.shut)
        while (taken := self.front.take(self.now)) is not None:
            host, queue = taken
            slot = host.free_slot(queue)
            assert slot is not None
            n = shard_size(queue.delay_s, FETCH_S)
            n = max(1, n // queue.slots)
            assert self.front.acquire(host, queue) == slot
            self.front.record_lease(host, queue, slot, n)
            self.shares.add("default", queue.crawl_id, 1)
            lasts = n * FETCH_S + (n - 1) * queue.delay_s
            self.shards += 1
            begins = max(self.now, host.rested_at(queue))
            heapq.heappush(self.ends, (begins + lasts, self.shards, queue.crawl_id, slot, lasts))
        self.front.lines.end()

    def _end(self) -> None:
        at, _, crawl_id, slot, lasts = heapq.heappop(self.ends)
        host, crawl = self.front.host(HOST), self.crawls[crawl_id]
        assert host is not None
        host.queues[crawl_id].leased = 0
        self.shares.add("default", crawl_id, -1)
        self.front.release(host, slot, at, crawl.delay_s)
        time = (lasts + crawl.delay_s) / crawl.slots
        self.used[crawl_id] += time
        self.largest[crawl_id] = max(self.largest[crawl_id], time)


def assert_shared(sim: Sim, part: float = 0.1) -> None:
    """Assert that each crawl used the part of the time that its weight gives it, within `part` of that."""
    fair = sum(sim.used.values()) / sum(crawl.weight for crawl in sim.crawls.values())
    for crawl_id, crawl in sim.crawls.items():
        assert abs(sim.used[crawl_id] / crawl.weight - fair) <= part * fair, dict(sim.used)


@pytest.mark.parametrize(("short_s", "long_s"), [(0.05, 0.3), (1.0, 1.1), (0.5, 20.0)])
def test_crawl_with_the_longer_delay_gets_half_the_host_time(short_s: float, long_s: float) -> None:
    sim = Sim({CrawlId(1): Crawl(short_s), CrawlId(2): Crawl(long_s)})
    sim.run(HOUR_S)
    assert_shared(sim)


delays = st.floats(0.01, 30.0)
weights = st.integers(1, 5)


@settings(max_examples=25, deadline=None)
@given(delays, delays, weights, weights, st.sampled_from([0.0, 700.0]))
def test_host_time_is_shared_by_weight_for_any_pair(
    one_s: float, other_s: float, one: int, other: int, at_s: float
) -> None:
    """A crawl that arrives late shares from then on: it neither catches up nor starves."""
    sim = Sim({CrawlId(1): Crawl(one_s, one), CrawlId(2): Crawl(other_s, other, at_s)})
    sim.run(at_s)
    sim.used.clear()
    sim.run(at_s + HOUR_S)
    assert_shared(sim)


@settings(max_examples=25, deadline=None)
@given(st.floats(30.0, 900.0), delays, weights, weights)
@example(30.0, 6.0, 2, 1)
def test_crawl_with_a_delay_of_minutes_is_within_a_shard_of_its_time(
    one_s: float, other_s: float, one: int, other: int
) -> None:
    """A request and its rest cannot be divided: at 300 s and a sixth of the time, an hour has two of them.

    So beyond 30 s no part of the time can be promised, only that each crawl is within one shard of its own.
    """
    sim = Sim({CrawlId(1): Crawl(one_s, one), CrawlId(2): Crawl(other_s, other)})
    sim.run(HOUR_S)
    first, second = (sim.used[crawl_id] / crawl.weight for crawl_id, crawl in sim.crawls.items())
    shard = sum(sim.largest[crawl_id] / crawl.weight for crawl_id, crawl in sim.crawls.items())
    assert abs(first - second) <= shard, dict(sim.used)


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(weights, weights, st.sampled_from([2, 8]))
def test_host_time_is_shared_by_weight_over_several_slots(one: int, other: int, slots: int) -> None:
    sim = Sim({CrawlId(1): Crawl(0.0, one, slots=slots), CrawlId(2): Crawl(0.0, other, slots=slots)})
    sim.run(600.0)
    assert_shared(sim)


@pytest.mark.parametrize("delay_s", [0.5, 5.0])
def test_crawl_with_a_delay_gets_its_time_beside_one_with_slots(delay_s: float) -> None:
    """The host's slots drain when it is the turn of the crawl that allows only one."""
    sim = Sim({CrawlId(1): Crawl(0.0, slots=8), CrawlId(2): Crawl(delay_s)})
    sim.run(HOUR_S)
    assert_shared(sim)


def test_three_crawls_share_a_host_by_their_weights() -> None:
    sim = Sim({CrawlId(1): Crawl(0.1, 1), CrawlId(2): Crawl(1.0, 2), CrawlId(3): Crawl(5.0, 3)})
    sim.run(HOUR_S)
    assert_shared(sim)


def test_crawl_that_may_not_go_on_holds_no_host_up() -> None:
    """Its turn passes, and once it goes on it catches up with no more than a minute."""
    sim = Sim({CrawlId(1): Crawl(1.0), CrawlId(2): Crawl(1.0)}, shut={CrawlId(2)})
    sim.run(HOUR_S)
    assert sim.used[CrawlId(2)] == 0
    assert sim.used[CrawlId(1)] > 0.97 * HOUR_S
    sim.shut.clear()
    sim.used.clear()
    sim.run(2 * HOUR_S)
    assert_shared(sim)


@pytest.mark.parametrize(("latency_ms", "urls"), [(0, 16), (5, 16), (100, 5), (1_000, 2)])
def test_slots_of_a_host_without_delay_get_shards_that_pay(latency_ms: int, urls: int) -> None:
    """A shard costs a lease, a grant and a report. On a slow host all eight slots have work."""
    host = Host(HOST, "host.test", HostFacts(HostHealth(), latency_ms=latency_ms, visited=True), 0.0)
    queue = CrawlQueue(CrawlId(1), 0.0, 8, queued=40)
    assert shard_limit(host, queue) == urls
