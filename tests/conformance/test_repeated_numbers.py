"""A database that came back older gives lease numbers again. What is left of the lost leases then changes nothing."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from shared.domain.ids import numbered
from shared.wire.messages import Gone, ShardUrl, UrlShard
from tests.support.simulation.cluster import PARTITION
from tests.support.simulation.manual_worker import Start, leases, shard_of

LOST: dict[str, Callable[[UrlShard], UrlShard]] = {
    "another host": lambda shard: replace(shard, host="lost.test", urls=[ShardUrl("http://lost.test/", 0)] * 2),
    "other URLs": lambda shard: replace(shard, urls=[ShardUrl(f"{each.url}-lost", 0) for each in shard.urls]),
}


@pytest.mark.parametrize("lost", LOST)
def test_shard_of_a_lost_lease_gets_no_grant_of_the_new_one(start: Start, lost: str) -> None:
    """The worker would take the new lease's positions as those of its own URLs, and request them under its grant."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    left = replace(LOST[lost](shard), lease_hash=b"lost")
    assert isinstance(hand.begin(left, 1, "late"), Gone)
    assert leases(cluster) == [shard.lease]
    assert hand.go(shard, 1).remaining == [0, 1]
    assert isinstance(hand.begin(left, 2, "late"), Gone)
    cluster.assert_kept()


def test_shard_published_again_has_the_hash_of_the_first_one(start: Start) -> None:
    cluster, hand = start(2)
    message, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    hand.report(shard, grant, {shard.urls[0].url: 200})
    hand.wait(message.ack())
    cluster.world.run_for(200.0)
    again = shard_of(hand)
    assert (again.lease, again.urls[0].url) == (shard.lease, "")
    assert shard.lease_hash == again.lease_hash != b""
    assert hand.go(again, 1).remaining == [1]


def test_shard_of_the_previous_release_gets_its_grant(start: Start) -> None:
    _, hand = start(2)
    assert hand.go(replace(shard_of(hand), lease_hash=b""), 1).remaining == [0, 1]


def test_end_of_a_lost_visit_leaves_another_hosts_lease(start: Start) -> None:
    """It would free the lease while a worker fetches under it, and the host would get a second visit beside."""
    cluster, hand = start(2)
    shard = shard_of(hand)
    grant = hand.go(shard, 1).grant
    late = replace(shard, host_id=numbered(99, PARTITION))
    hand.report(late, grant, final=True, left=tuple(each.url for each in shard.urls))
    assert leases(cluster) == [shard.lease]
    hand.report(shard, grant, {each.url: 200 for each in shard.urls}, final=True)
    assert leases(cluster) == []
    cluster.assert_kept()
