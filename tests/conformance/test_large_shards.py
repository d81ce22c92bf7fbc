"""URL shards that are larger than the broker's largest message: they come in smaller ones, and no owner ends."""

from shared.domain.frontier.states import UrlState
from tests.support.simulation.cluster import Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start, leases

SOME_FIT = 250
"""A shard of ten URLs is larger, and one of two is smaller."""
NONE_FITS = 20


def visit_all(hand: ManualWorker, urls: int) -> list[int]:
    """Fetch shard after shard until so many URLs are done; the sizes of the shards."""
    sizes: list[int] = []
    while sum(sizes) < urls:
        message, shard = hand.pull()
        grant = hand.go(shard, message.delivery).grant
        hand.report(shard, grant, {url.url: 200 for url in shard.urls}, final=True)
        hand.wait(message.ack())
        hand.world.run_for(2.0)
        sizes.append(len(shard.urls))
    return sizes


def assert_serves(cluster: Cluster) -> None:
    [sim] = cluster.owners
    assert sim.owner.ownership is not None
    cluster.assert_kept()


def test_a_shard_too_large_for_the_broker_comes_in_smaller_ones(start: Start) -> None:
    cluster, hand = start(16)
    cluster.broker.max_payload = SOME_FIT
    sizes = visit_all(hand, 16)
    assert sum(sizes) == 16
    assert {state for state, _ in hand.states().values()} == {UrlState.DONE}
    assert cluster.database.rows("SELECT count(*) FROM dead_letters") == [(0,)]
    assert_serves(cluster)


def test_a_url_too_large_for_the_broker_is_buried_with_the_reason(start: Start) -> None:
    cluster, hand = start(3)
    cluster.broker.max_payload = NONE_FITS
    hand.heard()
    cluster.world.run_for(30.0)
    assert set(hand.states().values()) == {(UrlState.FAILED, "poison")}
    letters = cluster.database.rows("SELECT kind, evidence FROM dead_letters")
    assert [kind for kind, _ in letters] == ["url"] * 3
    assert all(f"exceeds the broker's limit of {NONE_FITS}" in evidence for _, evidence in letters)
    assert leases(cluster) == []
    assert_serves(cluster)
