"""A database whose disk is full: what it refused is tried again, and nothing that goes on without it stands still."""

from shared.domain.frontier import UrlState
from shared.wire.messages import Extend, Go
from tests.support.simhand import Start


def test_an_owner_tries_again_what_was_refused_and_goes_on_extending_grants(start: Start) -> None:
    """Were the partition loaded anew for every try, it would answer nobody between them."""
    cluster, hand = start(1)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    [own] = [sim.owner.ownership for sim in cluster.owners]
    cluster.database.full = True
    hand.report(shard, grant, {shard.urls[0].url: 200}, final=True)
    for _ in range(12):
        cluster.world.run_for(5.0)
        assert isinstance(hand.wait(hand.ask(shard.lease, Extend(shard.lease, grant, hand.process.name))), Go)
    assert {state for state, _ in hand.states().values()} == {UrlState.LEASED}
    cluster.database.full = False
    cluster.world.run_for(5.0)
    assert {state for state, _ in hand.states().values()} == {UrlState.DONE}
    assert [sim.owner.ownership for sim in cluster.owners] == [own]
    cluster.assert_kept()


def test_links_that_were_refused_are_found_when_there_is_room(start: Start) -> None:
    cluster, hand = start(1)
    cluster.database.full = True
    hand.discover(cluster.crawl_id, {"http://h/later": 1})
    cluster.world.run_for(10.0)
    assert len(hand.states()) == 1
    cluster.database.full = False
    cluster.world.run_for(5.0)
    assert len(hand.states()) == 2
    cluster.assert_kept()
