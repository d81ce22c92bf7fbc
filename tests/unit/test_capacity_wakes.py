"""Which partitions look for hosts to dispatch when workers report capacity: those that can use it, and no others."""

from types import SimpleNamespace
from typing import cast

from msgspec.structs import replace

from api.frontier.capacity import BudgetReservation, PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.hosts import facts_of
from api.frontier.ownership import FrontierSettings, Ownership
from api.observe.metrics import QUEUES, MasterMetrics
from shared.domain.crawl.spec import CrawlSpec, Seed
from shared.domain.frontier.states import CrawlState, Fence, Position
from shared.domain.frontier.store_model import Claimed, DiscoveryResult
from shared.domain.ids import CrawlId, HostId, Partition, Revision, Term
from tests.unit.test_front import EPOCH_MS, Sql, row_of

CRAWL = CrawlId(2)


class Owned:
    """A partition with a host of a crawl, and a count of the times its dispatch was woken up."""

    def __init__(self, state: CrawlState, *, dispatching: bool, blocked_s: int = 0) -> None:
        spec = CrawlSpec(seeds=(Seed(url="https://example.org/"),))
        self.crawl = DispatchCrawl(CRAWL, "docs", Revision(1), spec, state, BudgetReservation(None, None, {}))
        self.crawl.dispatching = dispatching
        crawls = DispatchCrawls()
        crawls.put(self.crawl)
        claimed = Claimed(
            fence=Fence(Partition(0), Term(1), 0),
            position=Position(),
            next_host=1,
            next_lease=1,
            leases=(),
            commands=(),
        )
        self.own = Ownership(claimed, crawls=crawls, capacity=PoolCapacity(), settings=FrontierSettings(), now=0.0)
        row = row_of(HostId(1), CRAWL, Sql(queued=5))
        row = replace(row, blocked_until_ms=EPOCH_MS + blocked_s * 1000 if blocked_s else 0)
        self.own.hosts.offer(row, facts=facts_of(row), delay_s=1.0, slots=1, now=0.0, now_ms=EPOCH_MS)
        self.own.hosts.wake(0.0)

    def woken(self) -> bool:
        before = self.own.work.revision
        self.own.capacity_changed()
        return self.own.work.revision != before


def test_capacity_wakes_a_partition_with_a_due_host() -> None:
    assert Owned(CrawlState.RUNNING, dispatching=True).woken()


def test_capacity_wakes_no_partition_of_paused_crawls() -> None:
    owned = Owned(CrawlState.PAUSED, dispatching=False)
    assert len(owned.own.hosts) == owned.own.hosts.due() == 1
    assert not owned.woken()
    owned.crawl.state, owned.crawl.dispatching = CrawlState.RUNNING, True
    assert owned.woken()


def queues_due(owned: Owned, now: float = 0.0) -> float:
    """What a master shows as `orb_queues_due`."""
    master = SimpleNamespace(ownerships=lambda: [owned.own])
    clock = SimpleNamespace(elapsed=lambda: now, unix_ms=lambda: EPOCH_MS)
    read = dict(MasterMetrics._frontier(cast(MasterMetrics, SimpleNamespace(_master=master, _clock=clock))))
    [(pool, n)] = read[QUEUES].items()
    assert pool == ("default",)
    assert isinstance(n, int)
    return n


def test_hosts_of_a_crawl_that_may_not_dispatch_do_not_wait_for_workers() -> None:
    """Otherwise an alert says that dispatch is stalled, while the crawl is paused or its budget is spent."""
    owned = Owned(CrawlState.PAUSED, dispatching=False)
    assert (owned.own.hosts.due(), queues_due(owned)) == (1, 0)
    owned.crawl.state, owned.crawl.dispatching = CrawlState.RUNNING, True
    assert queues_due(owned) == 1
    owned.crawl.allowance.max_pages = 0
    assert queues_due(owned) == 0
    owned.crawl.allowance.max_pages = 1
    owned.crawl.allowance.pause_until(10.0)
    assert (queues_due(owned, 9.0), queues_due(owned, 10.0)) == (0, 1)


def test_partition_stands_still_while_all_its_crawls_are_paused() -> None:
    owned = Owned(CrawlState.PAUSED, dispatching=False)
    assert owned.own.stopped()
    work, repair_needed = owned.own.work.revision, owned.own.repair_needed.revision
    owned.crawl.state, owned.crawl.dispatching = CrawlState.RUNNING, True
    assert not owned.own.stopped()
    owned.own.resumed()
    assert owned.own.work.revision > work
    assert owned.own.repair_needed.revision > repair_needed


def test_partition_with_a_host_to_evict_does_not_stand_still() -> None:
    owned = Owned(CrawlState.PAUSED, dispatching=False)
    owned.own.hosts.drop_crawl(CRAWL)
    assert not owned.own.stopped(), "the sweep evicts the host when it has rested"
    assert owned.own.hosts.evict_idle(60.0, lambda host: 1.0) == 1
    owned.own.hosts.evict_idle(60.0, lambda host: 1.0)
    assert owned.own.stopped()


def test_queue_whose_first_page_begins_to_wait_is_read_again() -> None:
    owned = Owned(CrawlState.RUNNING, dispatching=True)
    queue = owned.own.hosts.queue(CRAWL, HostId(1))
    assert queue is not None
    result = DiscoveryResult(next_host=2, due={(CRAWL, HostId(1)): EPOCH_MS})
    assert owned.own.discovered(result, 0.0, EPOCH_MS) == [(CRAWL, HostId(1))]
    queue.waiting = 1
    assert owned.own.discovered(result, 0.0, EPOCH_MS) == []
    assert queue.next_due == 0.0


def test_capacity_wakes_no_partition_before_its_host_is_due() -> None:
    owned = Owned(CrawlState.RUNNING, dispatching=True, blocked_s=30)
    assert not owned.woken(), "the host wakes dispatch by itself"
    owned.own.hosts.wake(30.0)
    assert owned.woken()
