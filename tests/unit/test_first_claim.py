"""When hosts may be fetched first under a new owner: an earlier owner may have fetched any host that it knew."""

import pytest
from msgspec.structs import replace

from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.host_queues import HostQueues
from api.frontier.hosts import LEAD_S, facts_of
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.pool_shares import PoolShares
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import FIRST_HOST, Claimed, QueueRow
from shared.domain.ids import CrawlId, HostId, Partition, Term

CLAIMED_AT = 1000.0
DELAY_S = 7.0
ROW = QueueRow(
    crawl_id=CrawlId(1),
    host_id=HostId(1),
    host="a.test",
    queued=3,
    waiting=0,
    next_due_ms=0,
    pages=0,
    leased=0,
    shard_cap=0,
    crawl_delay_ms=0,
    operator_delay_ms=0,
    latency_ms=0,
    failures=0,
    unreachable=0,
    last_failure_ms=0,
    blocked_until_ms=0,
    visited_at_ms=0,
)


@pytest.mark.parametrize(
    ("next_host", "settings", "first_s"),
    [
        pytest.param(FIRST_HOST, FrontierSettings(), 0.0, id="a partition without a host was never fetched from"),
        pytest.param(FIRST_HOST + 1, FrontierSettings(), DELAY_S, id="an earlier owner may have fetched"),
        pytest.param(FIRST_HOST, FrontierSettings(first_claim_rests=True), DELAY_S, id="another crawl may have"),
    ],
)
def test_first_shard_of_a_new_owner_is_due(next_host: int, settings: FrontierSettings, first_s: float) -> None:
    claimed = Claimed(Fence(Partition(0), Term(1), 0), Position(), next_host, 1, ())
    own = Ownership(claimed, crawls=DispatchCrawls(), capacity=PoolCapacity(), settings=settings, now=CLAIMED_AT)
    hosts, now = own.hosts, CLAIMED_AT + 0.5
    hosts.offer(ROW, facts=facts_of(ROW), delay_s=DELAY_S, slots=1, now=now, now_ms=0)
    assert max(hosts.next_wake(), now) == pytest.approx(max(CLAIMED_AT + first_s, now), abs=LEAD_S)
    hosts.wake(now)
    assert hosts.due() == (0 if first_s else 1)


@pytest.mark.parametrize(
    ("visited_s", "rested_from"),
    [(0.0, CLAIMED_AT), (-9e6, CLAIMED_AT), (50.0, CLAIMED_AT + 50), (70.0, CLAIMED_AT + 60)],
)
def test_host_that_left_memory_keeps_a_longer_delay_from_its_last_visit(visited_s: float, rested_from: float) -> None:
    """It left after the longest delay of that time, and a crawl with a longer one came at once."""
    epoch_ms = 1_700_000_000_000
    hosts = HostQueues(PoolShares(), max_hosts=1, rested_from=CLAIMED_AT)
    row = replace(ROW, visited_at_ms=int(epoch_ms + visited_s * 1000) if visited_s else 0)
    now, now_ms = CLAIMED_AT + 60, epoch_ms + 60_000
    assert hosts.offer(row, facts=facts_of(row), delay_s=30.0, slots=1, now=now, now_ms=now_ms)
    known = hosts.find(ROW.crawl_id, ROW.host_id)
    assert known is not None
    assert known[0].rested_at(known[1]) == rested_from + 30
