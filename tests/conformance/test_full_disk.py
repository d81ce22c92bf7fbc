"""A database whose disk is full: what it refused is tried again, and nothing that goes on without it stands still."""

from collections.abc import Callable, Sequence

import pytest

from api.frontier.ownership import FrontierSettings, Ownership
from shared.domain.crawl.exclusions import OWNER
from shared.domain.errors import ResourceFull
from shared.domain.frontier.commands import SEED_DELETED
from shared.domain.frontier.states import Fence, Position, UrlState
from shared.domain.frontier.store_model import Changes, QueueEnd
from shared.wire.messages import Begin, Extend, Go, Gone, ShardUnreadable, Wait, encode
from tests.support.simulation.broker import NOISE
from tests.support.simulation.cluster import Cluster
from tests.support.simulation.manual_worker import Start, leases

FULL_FOR_S = 20


def owned(cluster: Cluster) -> Ownership:
    """What the only owner remembers; another object when it has loaded its partition anew."""
    [sim] = cluster.owners
    assert sim.owner.ownership is not None
    return sim.owner.ownership


def outlasted(cluster: Cluster, meanwhile: Callable[[], object] = lambda: None) -> None:
    """The disk is full for a while: what is refused is tried about once a second, and nobody loads anything anew."""
    own, before = owned(cluster), cluster.database.refused
    cluster.database.full = True
    for _ in range(FULL_FOR_S):
        meanwhile()
        cluster.world.run_for(1.0)
    assert FULL_FOR_S / 2 < cluster.database.refused - before <= FULL_FOR_S + 2
    cluster.database.full = False
    meanwhile()
    cluster.world.run_for(5.0)
    assert owned(cluster) is own


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


def test_what_cannot_be_leased_stays_queued_and_is_leased_when_there_is_room(start: Start) -> None:
    cluster, hand = start(3)
    outlasted(cluster, hand.heard)
    assert len(cluster.broker.visits) == 1
    assert {state for state, _ in hand.states().values()} == {UrlState.LEASED}
    cluster.assert_kept()


def test_a_command_that_was_refused_is_carried_out_once_there_is_room(start: Start) -> None:
    cluster, hand = start(1)
    cluster.database.full = True
    cluster.delete_seed(0)
    outlasted(cluster)
    assert set(hand.states().values()) == {(UrlState.EXCLUDED, SEED_DELETED)}
    cluster.assert_kept()


def test_a_lease_that_is_worn_out_on_a_full_disk_ends_when_there_is_room(start: Start) -> None:
    cluster, hand = start(1)
    message, shard = hand.pull()
    hand.go(shard, 1)
    cluster.world.run_for(FrontierSettings().grant_s + 1.0)
    assert message.origin is not None
    for n in range(FrontierSettings().dead_letter_after_expiries):
        told = ShardUnreadable(*message.origin.place, sequence=n, worker="w", reason="", size=1, data=NOISE)
        hand.publish("outcome", encode(told))
    cluster.world.run_for(0.1)
    assert cluster.broker.reports
    cluster.database.full = True
    cluster.world.run_for(5.0)
    assert not cluster.broker.reports, "what was applied before leaves the stream meanwhile"
    outlasted(cluster)
    assert set(hand.states().values()) == {(UrlState.FAILED, "poison")}
    assert leases(cluster) == []
    cluster.assert_kept()


def test_begin_on_full_disk_must_wait_and_running_visit_continues(start: Start) -> None:
    cluster, hand = start(1)
    _, shard = hand.pull()
    cluster.database.full = True
    asked = hand.wait(hand.ask(shard.lease, Begin(shard.lease, 1, hand.process.name)))
    assert isinstance(asked, Wait)
    cluster.database.full = False
    grant = hand.go(shard, 1).grant
    cluster.database.full = True
    assert hand.go(shard, 1).grant == grant
    cluster.world.run_for(FrontierSettings().grant_s + 1.0)
    assert isinstance(hand.wait(hand.ask(shard.lease, Begin(shard.lease, 2, "another"))), Wait)
    assert cluster.database.rows("SELECT expired FROM leases") == [(0,)]
    cluster.database.full = False
    assert isinstance(hand.wait(hand.ask(shard.lease, Begin(shard.lease, 2, "another"))), Go)
    assert cluster.database.rows("SELECT expired FROM leases") == [(1,)]
    cluster.assert_kept()


def test_expired_grant_is_counted_once_while_there_is_no_space(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may take the one and refuse the other. Counted at every try, the URL would be given up unfetched."""
    cluster, hand = start(1)
    _, shard = hand.pull()
    hand.go(shard, 1)
    cluster.world.run_for(FrontierSettings().grant_s + 1.0)
    [sim] = cluster.owners

    async def refused(*_: object) -> None:
        raise ResourceFull("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(sim.store, "grant", refused)
        for _ in range(FrontierSettings().dead_letter_after_expiries + 1):
            assert isinstance(hand.begin(shard, 2, "another"), Wait)
    assert cluster.database.rows("SELECT expired FROM leases") == [(1,)]
    hand.go(shard, 2, "another")
    cluster.world.run_for(FrontierSettings().grant_s + 1.0)
    hand.go(shard, 3, "a third")
    assert cluster.database.rows("SELECT expired FROM leases") == [(2,)]
    cluster.assert_kept()


def test_covered_url_of_committed_lease_waits_if_disk_fills(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is committed, then its covered URL cannot be excluded: the lease keeps its slot and its budget."""
    cluster, hand = start(3)
    cluster.in_force("http://h0.test/1")
    [sim] = cluster.owners
    own, apply, refused = owned(cluster), sim.store.apply, list[int]()

    async def full(fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
        if changes.urls:
            refused.append(len(own.leases))
            raise ResourceFull("the disk is full")
        return await apply(fence, position, changes)

    with monkeypatch.context() as patch:
        patch.setattr(sim.store, "apply", full)
        hand.heard()
        cluster.world.run_for(0.5)
    assert refused == [1]
    assert len(leases(cluster)) == len(own.leases) == len(own.hosts.moving()) == 1
    assert not cluster.broker.visits, "a worker would get a covered URL"
    _, shard = hand.pull()
    assert isinstance(hand.begin(shard, 1), Gone)
    _, shard = hand.pull()
    assert [shard.urls[n].url for n in hand.go(shard, 1).remaining] == ["http://h0.test/0", "http://h0.test/2"]
    assert (UrlState.EXCLUDED, OWNER) in hand.states().values()
    cluster.assert_kept()
