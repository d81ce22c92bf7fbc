"""What may be dispatched: twice the free visits of live workers, and never more pages than the budget."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from api.frontier.capacity import SHARDS_PER_VISIT, STALE_AFTER_S, BudgetReservation, PoolCapacity, Spent
from api.frontier.leases import Leases
from shared.domain.frontier.store_model import LeaseRow
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, Revision
from shared.wire.messages import WorkerStatus


def status(
    worker: str, *, visits: int = 10, busy: int = 0, pool: str = "default", pulling: bool = True
) -> WorkerStatus:
    return WorkerStatus(worker=worker, pool=pool, visits=visits, busy=busy, pulling=pulling)


def lease(number: int, pool: str = "default") -> LeaseRow:
    return LeaseRow(LeaseId(number), CrawlId(1), Revision(1), HostId(1), "a", 0, pool, 0, (), {})


def test_a_pool_without_live_workers_gets_nothing() -> None:
    room = PoolCapacity()
    assert room.for_pool("default", 0.0) == 0
    room.worker_reported(status("a"), 0.0)
    assert room.for_pool("default", STALE_AFTER_S) == SHARDS_PER_VISIT * 10
    assert room.for_pool("eu", STALE_AFTER_S) == 0
    assert room.live(STALE_AFTER_S + 0.1) == []
    assert room.for_pool("default", STALE_AFTER_S + 0.1) == 0


def test_a_worker_that_stops_pulling_or_is_overloaded_counts_for_nothing() -> None:
    room = PoolCapacity()
    room.worker_reported(status("a", pulling=False), 0.0)
    room.worker_reported(status("b", visits=5, busy=9), 0.0)
    assert room.for_pool("default", 0.0) == 0
    assert len(room.live(0.0)) == 2
    room.worker_reported(status("a", busy=4), 1.0)
    assert room.for_pool("default", 1.0) == SHARDS_PER_VISIT * 6


def test_undelivered_shards_count_against_their_own_pool_only() -> None:
    room, leases, others = PoolCapacity(), Leases(grant_s=30.0), Leases(grant_s=30.0)
    room.watch(leases)
    room.watch(others)
    room.worker_reported(status("a", visits=3), 0.0)
    first = leases.add(lease(1), 0.0)
    others.add(lease(2), 0.0)
    leases.add(lease(3, "eu"), 0.0)
    assert room.for_pool("default", 0.0) == SHARDS_PER_VISIT * 3 - 2
    leases.granted(first, 1, "w", 0.0)
    assert room.for_pool("default", 0.0) == SHARDS_PER_VISIT * 3 - 1
    room.unwatch(others)
    assert room.for_pool("default", 0.0) == SHARDS_PER_VISIT * 3


@given(st.integers(0, 60), st.data())
def test_the_page_budget_is_never_exceeded_whatever_the_interleaving(budget: int, data: st.DataObject) -> None:
    """Partitions take, lease less than they took, settle and reload in any order; every URL out may become a page."""
    allowance = BudgetReservation(budget, None, {})
    stored: dict[int, int] = defaultdict(int)
    out: dict[int, int] = defaultdict(int)
    for _ in range(data.draw(st.integers(0, 60))):
        p = data.draw(st.integers(0, 3))
        match data.draw(st.sampled_from(["take", "settle", "reload"])):
            case "take":
                wanted = data.draw(st.integers(1, 20))
                n = allowance.remaining(wanted)
                assert 0 <= n <= wanted
                allowance.take(Partition(p), n)
                leased = data.draw(st.integers(0, n))
                if data.draw(st.booleans()):
                    allowance.settled(Partition(p), n - leased)
                    out[p] += leased
                else:  # the transaction's fate was unknown: SQL tells
                    out[p] += data.draw(st.sampled_from([0, leased]))
                    allowance.restore(Partition(p), Spent(stored[p], 0, out[p]))
            case "settle":
                n = data.draw(st.integers(0, out[p]))
                pages = data.draw(st.integers(0, n))
                stored[p] += pages
                out[p] -= n
                allowance.settled(Partition(p), n, pages, 7 * pages)
            case _:
                allowance.restore(Partition(p), Spent(stored[p], 7 * stored[p], out[p]))
        assert sum(stored.values()) + sum(out.values()) <= budget
    assert allowance.remaining(10**9) == budget - sum(stored.values()) - sum(out.values())
    assert allowance.exhausted() == ("max_pages" if sum(stored.values()) >= budget else None)


def test_a_spent_byte_budget_stops_dispatch() -> None:
    allowance = BudgetReservation(None, 100, {Partition(0): Spent(1, 60, 0), Partition(1): Spent(1, 30, 2)})
    assert allowance.remaining(5) == 5
    allowance.settled(Partition(1), 1, 1, 10)
    assert allowance.remaining(5) == 0
    assert allowance.exhausted() == "max_bytes"


def test_without_budgets_everything_may_go() -> None:
    allowance = BudgetReservation(None, None, {})
    allowance.take(Partition(0), 10**6)
    assert allowance.remaining(500) == 500
    assert allowance.exhausted() is None


def test_shards_of_leases_are_counted_once_and_only_while_their_owner_lives() -> None:
    room, leases = PoolCapacity(), Leases(grant_s=30.0)
    leases.take_over(lease(1), 0.0, ended=False)
    room.watch(leases)
    held = leases.add(lease(2), 0.0)
    room.worker_reported(status("a", visits=3), 0.0)
    assert (room.shares.out("default", CrawlId(1)), room.for_pool("default", 0.0)) == (2, SHARDS_PER_VISIT * 3 - 2)
    leases.granted(held, 1, "w", 0.0)
    leases.granted(held, 2, "w", 40.0)
    assert (room.shares.out("default", CrawlId(1)), room.for_pool("default", 0.0)) == (2, SHARDS_PER_VISIT * 3 - 1)
    leases.update(LeaseId(2), {}, freed=True)
    assert (room.shares.out("default", CrawlId(1)), room.for_pool("default", 0.0)) == (1, SHARDS_PER_VISIT * 3 - 1)
    room.unwatch(leases)
    leases.update(LeaseId(1), {}, freed=True)
    assert (len(room.shares), room.for_pool("default", 0.0)) == (0, SHARDS_PER_VISIT * 3)
