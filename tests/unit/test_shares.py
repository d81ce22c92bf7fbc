"""Crawls share a partition by weight, however large their shards are."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from api.frontier.shares import Shares
from shared.domain.ids import CrawlId

QUANTUM = 50
LARGEST = 500

weights = st.dictionaries(st.integers(1, 6).map(CrawlId), st.integers(1, 10), min_size=1, max_size=5)


def served(shares: Shares, ready: list[CrawlId], sizes: list[int]) -> dict[CrawlId, int]:
    """URLs leased by each crawl when every shard has the next size."""
    total: dict[CrawlId, int] = defaultdict(int)
    for size in sizes:
        crawl_id = shares.next(ready)
        assert crawl_id in ready
        shares.charge(crawl_id, size)
        total[crawl_id] += size
    return total


@given(weights, st.lists(st.integers(1, LARGEST), min_size=1, max_size=400))
def test_crawls_with_work_get_shares_by_their_weight(crawls: dict[CrawlId, int], sizes: list[int]) -> None:
    """At any moment no crawl is further from another, per weight, than a round and a shard account for."""
    shares = Shares()
    for crawl_id, weight in crawls.items():
        shares.set_weight(crawl_id, weight)
    total = served(shares, list(crawls), sizes)
    per_weight = [total[crawl_id] / weight for crawl_id, weight in crawls.items()]
    assert max(per_weight) - min(per_weight) <= 2 * (QUANTUM + LARGEST)


@given(weights, st.integers(0, 300), st.integers(1, LARGEST))
def test_whoever_was_away_is_served_soon_and_takes_no_more_than_the_others_for_it(
    crawls: dict[CrawlId, int], before: int, size: int
) -> None:
    """Idle time earns nothing: a crawl that comes back shares from then on, and is not starved either."""
    away, *others = crawls
    if not others:
        return
    shares = Shares()
    for crawl_id, weight in crawls.items():
        shares.set_weight(crawl_id, weight)
    served(shares, others, [size] * before)
    rounds = 400 + 2 * QUANTUM * sum(crawls.values()) // size
    after = served(shares, list(crawls), [size] * rounds)
    assert after[away] > 0
    per_weight = {crawl_id: after[crawl_id] / weight for crawl_id, weight in crawls.items()}
    assert per_weight[away] <= min(per_weight.values()) + 2 * (QUANTUM + LARGEST)


def test_only_crawls_that_take_part_are_chosen() -> None:
    shares = Shares()
    assert shares.next([CrawlId(1)]) is None
    shares.set_weight(CrawlId(1), 1)
    assert shares.next([]) is None
    assert shares.next([CrawlId(2), CrawlId(1)]) == 1
    shares.remove(CrawlId(1))
    assert shares.next([CrawlId(1)]) is None


def test_a_large_shard_is_paid_for_in_later_rounds() -> None:
    shares = Shares()
    for crawl_id in (CrawlId(1), CrawlId(2)):
        shares.set_weight(crawl_id, 1)
    both = [CrawlId(1), CrawlId(2)]
    first = shares.next(both)
    assert first is not None
    shares.charge(first, 500)
    (other,) = set(both) - {first}
    for _ in range(9):
        assert shares.next(both) == other
        shares.charge(other, 50)
