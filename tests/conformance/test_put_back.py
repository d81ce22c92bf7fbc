"""A broker that comes back with an older store: what it stores then is applied, and the loss raises an alarm."""

import pytest

from shared.domain.frontier.states import UrlState
from tests.support.simulation.manual_worker import Start, shard_of

LOST = 40


def url(i: int) -> str:
    return f"http://h0.test/{i}"


@pytest.mark.parametrize("purges", [False, True])
def test_links_stored_at_old_places_of_a_shorter_stream_are_applied(start: Start, purges: bool) -> None:
    """Of 155 links 40 were never applied: they came before the owner looked, at places that it had read before."""
    cluster, hand = start(1)
    shard = shard_of(hand)
    for number in range(LOST):
        hand.discover(shard.crawl, {url(100 + number): 1})
    cluster.world.run_for(5.0 if purges else 0.5)
    owner = cluster.owners[0]
    owner.process.stopped = True
    cluster.world.run_for(0.2)
    cluster.broker.put_back(LOST)
    for number in range(LOST + 20):
        hand.discover(shard.crawl, {url(200 + number): 1})
    owner.process.stopped = False
    cluster.world.run_for(5.0)
    states = hand.states()
    assert [number for number in range(LOST + 20) if url(200 + number) not in states] == []
    assert states[url(239)][0] in (UrlState.QUEUED, UrlState.LEASED)
    assert len(owner.owner.alarms) == 1
    assert "shorter" in owner.owner.alarms[0]
    cluster.assert_kept()
