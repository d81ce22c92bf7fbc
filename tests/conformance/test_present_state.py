"""Grants follow what the owner knows of host and crawl when it is asked, not what held when the lease was made."""

import pytest

from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.ids import HostId
from shared.wire.messages import Extend, Go, Gone, UrlShard, Wait
from tests.support.simulation.cluster import Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start, leases, shard_of
from tests.support.simulation.world import EPOCH_MS

HOST = "h0.test"
HOURS_S = 7200.0
QUEUED, LEASED = UrlState.QUEUED, UrlState.LEASED


def block(cluster: Cluster, seconds: float) -> None:
    until_ms = EPOCH_MS + round((cluster.world.now + seconds) * 1000)
    cluster.put_policy(HOST, until_ms=until_ms)
    cluster.world.run_for(0.5)


def pause(cluster: Cluster) -> None:
    crawl = cluster.owners[0].crawls.get(cluster.crawl_id)
    assert crawl is not None
    crawl.state, crawl.dispatching = CrawlState.PAUSED, False


def extended(hand: ManualWorker, shard: UrlShard, grant: int) -> Go:
    answer = hand.wait(hand.ask(shard.lease, Extend(shard.lease, grant, hand.process.name)))
    assert isinstance(answer, Go), answer
    return answer


def states(hand: ManualWorker) -> set[int]:
    return {state for state, _ in hand.states().values()}


def test_shard_of_a_host_blocked_since_is_queued_again(start: Start) -> None:
    """An operator blocked a host for two hours, and its shard got `go` five seconds later, and after an hour again."""
    cluster, hand = start(2)
    message, shard = hand.pull()
    block(cluster, HOURS_S)
    assert isinstance(hand.begin(shard, 1), Gone)
    assert (leases(cluster), states(hand)) == ([], {QUEUED})
    hand.wait(message.ack())
    hand.heard()
    cluster.world.run_for(3600.0)
    assert leases(cluster) == []
    cluster.assert_kept()


def test_shard_of_a_host_blocked_for_seconds_waits(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    block(cluster, 5.0)
    answer = hand.begin(shard, 1)
    assert isinstance(answer, Wait)
    assert 4_000 <= answer.ms <= 5_000
    cluster.world.run_for(5.0)
    assert hand.go(shard, 2).remaining == [0, 1]


def test_expired_shard_of_a_blocked_host_is_queued_again(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1, "victim").grant
    hand.report(shard, grant, {shard.urls[0].url: 200})
    block(cluster, HOURS_S)
    cluster.world.run_for(31.0)
    assert isinstance(hand.begin(shard, 2), Gone)
    assert leases(cluster) == []
    assert sorted(state for state, _ in hand.states().values()) == sorted([UrlState.DONE, QUEUED])
    cluster.assert_kept()


def test_visit_under_way_learns_of_a_block_at_its_next_extend(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    assert not extended(hand, shard, grant).stop
    block(cluster, HOURS_S)
    told = extended(hand, shard, grant)
    assert told.stop
    assert told.expires_ms == 30_000, "so that it can report"
    hand.report(shard, grant, {shard.urls[0].url: 200}, final=True, left=(shard.urls[1].url,))
    assert leases(cluster) == []
    cluster.assert_kept()


def test_shard_beside_one_that_met_429_does_not_begin(start: Start) -> None:
    cluster, hand = start(40, delay_s=0.0)
    first = shard_of(hand)
    hand.report(first, hand.go(first, 1).grant, {first.urls[0].url: 200}, final=True)
    hand.heard()
    cluster.world.run_for(1.0)
    (_, one), (_, other) = hand.pull(), hand.pull()
    assert one.slot != other.slot
    hand.report(one, hand.go(one, 1).grant, {one.urls[0].url: 429}, final=True)
    assert isinstance(hand.begin(other, 1), Gone)
    cluster.assert_kept()


def test_new_delay_reaches_shards_that_are_out(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    assert extended(hand, shard, grant).delay_ms == shard.delay_ms == 1_000
    cluster.put_policy(HOST, delay_s=60.0)
    cluster.world.run_for(0.5)
    assert extended(hand, shard, grant).delay_ms == 60_000
    hand.report(shard, grant, {shard.urls[0].url: 200})
    cluster.world.run_for(40.0)
    assert isinstance(hand.begin(shard, 2, "next"), Gone), "the host rests for longer than a visit may wait"
    cluster.assert_kept()


def test_new_delay_of_the_crawl_reaches_a_shard_that_begins(start: Start) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    crawl = cluster.owners[0].crawls.get(cluster.crawl_id)
    assert crawl is not None
    cluster.site = type(cluster.site)(cluster.site.nodes, cluster.site.seeds, delay_s=4.0)
    crawl.spec = cluster.spec()
    go = hand.go(shard, 1)
    assert go.delay_ms == 4_000


def test_shard_without_a_delay_ends_when_its_host_gets_one(start: Start) -> None:
    """Others of its host may be under way beside it; only their owner can keep them apart."""
    cluster, hand = start(40, delay_s=0.0)
    first = shard_of(hand)
    hand.report(first, hand.go(first, 1).grant, {first.urls[0].url: 200}, final=True)
    hand.heard()
    cluster.world.run_for(1.0)
    (_, one), (_, other) = hand.pull(), hand.pull()
    grant = hand.go(one, 1).grant
    cluster.put_policy(HOST, delay_s=3.0)
    cluster.world.run_for(0.5)
    assert extended(hand, one, grant).stop
    assert isinstance(hand.begin(other, 1), Gone)
    cluster.assert_kept()


@pytest.mark.parametrize("begun", [False, True])
def test_shard_of_a_paused_crawl_is_handed_back(start: Start, begun: bool) -> None:
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant if begun else 0
    pause(cluster)
    if begun:
        assert extended(hand, shard, grant).stop
    else:
        assert isinstance(hand.begin(shard, 1), Gone)
        assert (leases(cluster), states(hand)) == ([], {QUEUED})
    cluster.assert_kept()


def test_shard_called_back_unbegun_starts_no_new_rest(start: Start) -> None:
    """A host whose shard was called back for its rest would rest anew each time, and never be visited."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    cluster.put_policy(HOST, delay_s=40.0)
    cluster.world.run_for(0.5)
    own = cluster.owners[0].owner.ownership
    assert own is not None
    host = own.hosts.host(HostId(shard.host_id))
    assert host is not None
    rested_from = host.rested_from = cluster.world.now  # as if another shard of it had ended just now
    assert isinstance(hand.begin(shard, 1), Gone)
    assert host.rested_from == rested_from
