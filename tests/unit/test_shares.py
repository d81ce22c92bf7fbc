"""Crawls share a pool by weight: max-min fair, work-conserving, over all partitions, at a cost that stays flat."""

import heapq
from collections import Counter
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from api.frontier.due_hosts import DueHosts
from api.frontier.host_shares import CrawlQueue
from api.frontier.pool_shares import AGAIN_S, UNUSED_S, PoolShares
from shared.domain.ids import CrawlId, HostId

POOL = "default"
A, B, C = CrawlId(1), CrawlId(2), CrawlId(3)

weights = st.dictionaries(st.integers(1, 6).map(CrawlId), st.integers(1, 10), min_size=1, max_size=5)


def fill(lines: DueHosts, crawl_id: CrawlId, hosts: int, weight: int = 1, pool: str = POOL) -> None:
    """Put so many due hosts in the crawl's line."""
    queue = CrawlQueue(crawl_id, 0.0, 1, pool, weight)
    for host in range(hosts):
        lines.append(queue, HostId(host))


def dispatch(shares: PoolShares, lines: DueHosts) -> Counter[CrawlId]:
    """Send what is allotted to one partition; how many shards of each crawl."""
    sent: Counter[CrawlId] = Counter()
    while (place := lines.pop()) is not None:
        lines.use()
        sent[place[0]] += 1
    for crawl_id, n in sent.items():
        shares.add(POOL, crawl_id, n)
    lines.end()
    return sent


def anything(_: CrawlId) -> bool:
    return True


@given(weights, st.integers(1, 200))
def test_crawls_with_demand_get_shards_by_their_weight(crawls: dict[CrawlId, int], room: int) -> None:
    """Each piece of capacity goes to the crawl that has least of it per weight."""
    shares = PoolShares()
    lines = DueHosts(shares)
    for crawl_id, weight in crawls.items():
        fill(lines, crawl_id, 1000, weight)
    shares.allot(POOL, room, 0.0, anything)
    sent = dispatch(shares, lines)
    assert sent.total() == room
    for crawl_id, weight in crawls.items():
        assert shares.out(POOL, crawl_id) == sent[crawl_id]
        for other, its in crawls.items():
            if sent[crawl_id]:
                assert sent[crawl_id] / weight <= sent[other] / its + 1 / weight + 1e-9


def test_crawl_without_demand_leaves_its_share_to_the_others() -> None:
    shares = PoolShares()
    lines = DueHosts(shares)
    fill(lines, A, 3)
    fill(lines, B, 1000)
    shares.allot(POOL, 100, 0.0, anything)
    assert dispatch(shares, lines) == {A: 3, B: 97}


def test_freed_capacity_goes_to_the_crawl_below_its_share() -> None:
    """A crawl that had the pool to itself gives way as its shards end."""
    shares = PoolShares()
    lines = DueHosts(shares)
    fill(lines, A, 1000)
    shares.allot(POOL, 64, 0.0, anything)
    assert dispatch(shares, lines) == {A: 64}
    fill(lines, B, 1000)
    for _ in range(64):
        shares.ended(POOL, A, 1.0, 1.0)
        shares.allot(POOL, 1, 0.0, anything)
        dispatch(shares, lines)
    assert abs(shares.out(POOL, A) - shares.out(POOL, B)) <= 2


@settings(max_examples=10, deadline=None)
@given(weights, st.data())
def test_visit_time_is_shared_by_weight_however_long_visits_last(
    crawls: dict[CrawlId, int], data: st.DataObject
) -> None:
    shares, now = PoolShares(), 0.0
    lines = DueHosts(shares)
    lasts = {crawl_id: data.draw(st.floats(1.0, 10.0)) for crawl_id in crawls}
    used: dict[CrawlId, float] = dict.fromkeys(crawls, 0.0)
    out: list[tuple[float, CrawlId]] = []
    free = 16
    while now < 300.0:
        for crawl_id, weight in crawls.items():
            fill(lines, crawl_id, 17, weight)
        shares.allot(POOL, free, now, anything)
        for crawl_id, n in dispatch(shares, lines).items():
            free -= n
            for _ in range(n):
                heapq.heappush(out, (now + lasts[crawl_id], crawl_id))
        now, crawl_id = heapq.heappop(out)
        free += 1
        used[crawl_id] += lasts[crawl_id]
        shares.ended(POOL, crawl_id, lasts[crawl_id], lasts[crawl_id] if used[crawl_id] > 50 else 1.0)
    total = sum(used.values())
    for crawl_id, weight in crawls.items():
        assert abs(used[crawl_id] / total - weight / sum(crawls.values())) < 0.1


def test_share_holds_over_all_partitions_of_a_master() -> None:
    """The partition that dispatches first takes nothing that a crawl of another one is to have."""
    shares = PoolShares()
    woken: list[int] = []
    many = [DueHosts(shares, partial(woken.append, n)) for n in range(64)]
    for lines in many:
        fill(lines, A, 100)
    fill(many[63], B, 100)
    many[0].begin(0.0)
    shares.allot(POOL, 64, 0.0, anything)
    assert 63 in woken
    assert 0 not in woken, "the partition that dispatches now is not woken for it"
    sent: Counter[CrawlId] = Counter()
    for lines in many:
        sent += dispatch(shares, lines)
    assert sent == {A: 32, B: 32}


def test_allotment_unused_for_long_goes_to_another_partition() -> None:
    """A partition whose owner waits for the database holds no other up, and takes part again when it goes on."""
    shares = PoolShares()
    stuck, other = DueHosts(shares), DueHosts(shares)
    fill(stuck, A, 10)
    shares.allot(POOL, 10, 0.0, anything)
    assert shares.promised(POOL) == 10
    fill(other, B, 10)
    shares.allot(POOL, 0, UNUSED_S, anything)
    assert shares.promised(POOL) == 0
    shares.allot(POOL, 20, UNUSED_S, anything)
    assert dispatch(shares, other) == {B: 10}
    assert not dispatch(shares, stuck)
    stuck.begin(UNUSED_S)
    shares.allot(POOL, 10, UNUSED_S, anything)
    assert dispatch(shares, stuck) == {A: 10}


def test_crawl_that_may_not_go_on_is_asked_again_later() -> None:
    shares = PoolShares()
    lines = DueHosts(shares)
    fill(lines, A, 5)
    fill(lines, B, 5)
    shares.allot(POOL, 5, 0.0, lambda crawl_id: crawl_id == B)
    assert dispatch(shares, lines) == {B: 5}
    assert shares.shut(POOL, A)
    shares.allot(POOL, 5, AGAIN_S / 2, anything)
    assert not dispatch(shares, lines)
    shares.allot(POOL, 5, AGAIN_S, anything)
    assert dispatch(shares, lines) == {A: 5}


def test_crawl_with_one_host_gets_its_share_by_weight() -> None:
    """Its use was forgotten after each visit, so it came first each time and got half of the pool."""
    shares = PoolShares()
    lines = DueHosts(shares)
    fill(lines, A, 10_000, weight=9)
    fill(lines, B, 1)
    used: Counter[CrawlId] = Counter()
    for visit in range(1_000):
        shares.allot(POOL, 1, float(visit), anything)
        [crawl_id] = dispatch(shares, lines)
        used[crawl_id] += 1
        shares.ended(POOL, crawl_id, 10.0, 10.0)
        if crawl_id == B:
            fill(lines, B, 1)
    assert 90 <= used[B] <= 110


def test_idle_crawls_are_forgotten_as_the_pool_is_used() -> None:
    shares = PoolShares()
    lines = DueHosts(shares)
    for number in range(1_000):
        fill(lines, CrawlId(number + 10), 1)
    fill(lines, A, 10_000)
    shares.allot(POOL, 1_001, 0.0, anything)
    sent = dispatch(shares, lines)
    assert sent.total() == 1_001
    for crawl_id in sent:
        shares.ended(POOL, crawl_id, 5.0, 1.0)
    assert len(shares._pools[POOL].idle) == 1_000
    assert len(shares) == 1
    for _ in range(10):
        shares.allot(POOL, 1, 0.0, anything)
        dispatch(shares, lines)
        shares.ended(POOL, A, 5.0, 5.0)
    assert (len(shares._pools[POOL].crawls), len(shares._pools[POOL].ahead)) == (1, 0)


def test_crawl_that_often_has_nothing_due_does_not_fill_the_memory() -> None:
    shares = PoolShares()
    lines = DueHosts(shares)
    fill(lines, A, 10)
    fill(lines, B, 1)
    shares.allot(POOL, 2, 0.0, anything)
    for crawl_id in dispatch(shares, lines):
        shares.ended(POOL, crawl_id, 9.0, 1.0)
    for _ in range(1_000):
        fill(lines, B, 1)
        lines.drop(B)
    assert len(shares._pools[POOL].ahead) < 100


def test_nothing_is_remembered_of_a_crawl_that_left() -> None:
    shares = PoolShares()
    lines = DueHosts(shares)
    for number in range(100):
        fill(lines, CrawlId(number), 3, pool=f"pool{number % 3}")
    for pool in shares.pools():
        shares.allot(pool, 20, 0.0, lambda crawl_id: crawl_id % 2 == 0)
    assert len(shares) == 100
    for number in range(100):
        lines.drop(CrawlId(number))
    assert len(lines) == 0
    for pool in shares.pools():
        shares.allot(pool, 20, AGAIN_S, anything)
    assert (len(shares), shares.pools()) == (0, [])


def test_partition_that_ends_gives_everything_back() -> None:
    shares = PoolShares()
    lines = DueHosts(shares)
    fill(lines, A, 5)
    shares.allot(POOL, 5, 0.0, anything)
    assert lines.pop() is not None
    lines.use()
    lines.close()
    assert (len(shares), shares.pools()) == (0, [])


@given(st.lists(st.tuples(st.sampled_from(["fill", "allot", "send", "end", "drop", "late"]), st.integers(0, 5))))
def test_counts_of_a_pool_stay_right_whatever_happens(steps: list[tuple[str, int]]) -> None:
    shares, now = PoolShares(), 0.0
    many = [DueHosts(shares), DueHosts(shares)]
    out: Counter[CrawlId] = Counter()
    for what, n in steps:
        lines, crawl_id = many[n % 2], CrawlId(n % 3)
        match what:
            case "fill":
                fill(lines, crawl_id, n)
            case "allot":
                shares.allot(POOL, n, now, lambda crawl_id, n=n: crawl_id != n)  # type: ignore[misc]
            case "send":
                lines.begin(now)
                out += dispatch(shares, lines)
            case "end" if out[crawl_id]:
                out[crawl_id] -= 1
                shares.add(POOL, crawl_id, -1)
            case "drop":
                lines.drop(crawl_id)
            case "late":
                now += 0.7
    for lines in many:
        lines.close()
    assert shares.promised(POOL) == 0
    for crawl_id in (CrawlId(0), CrawlId(1), CrawlId(2)):
        assert shares.out(POOL, crawl_id) == out[crawl_id]
