"""URL shards that no worker can read: seen as dead letters, their URLs sent anew, and given up when it never helps."""

from api.frontier.ownership import FrontierSettings
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import UrlState
from shared.ports.broker import VisitMessage
from shared.wire.messages import ShardUnreadable, UrlShard, encode
from tests.support.simulation.cluster import PARTITION, Cluster
from tests.support.simulation.manual_worker import ManualWorker, Start, leases

LIMITS = FrontierSettings()
NOISE = b"\xc1noise"
AGAIN_S = 12.0
"""After which an owner has published anew what nobody began."""


def unread(hand: ManualWorker) -> tuple[VisitMessage, UrlShard]:
    """The next shard; its worker tells that it could not be read, and acknowledges it."""
    message, shard = hand.pull()
    assert message.origin is not None
    assert message.origin.partition == PARTITION
    tell(hand, message, message.data)
    hand.wait(message.ack())
    return message, shard


def tell(hand: ManualWorker, message: VisitMessage, data: bytes, *, later: int = 0, apply: bool = True) -> None:
    """`later`: of a message so many places behind that one; what is told of the same one twice counts once."""
    assert message.origin is not None
    place, sequence = message.origin.place, message.origin.sequence + later
    told = ShardUnreadable(*place, sequence=sequence, worker="w", reason="no map", size=len(data), data=data)
    hand.publish("outcome", encode(told), f"unreadable.{sequence}")
    if apply:
        hand.world.run_for(0.2)


def letters(cluster: Cluster) -> list[tuple[str, int | None]]:
    return [(kind, crawl) for kind, crawl in cluster.database.rows("SELECT kind, crawl_id FROM dead_letters")]


def test_shard_unreadable_once_is_dead_lettered_and_its_urls_visited(
    start: Start,
) -> None:
    cluster, hand = start(1)
    message, shard = unread(hand)
    [(kind, crawl, payload, evidence)] = cluster.database.rows(
        "SELECT kind, crawl_id, payload, evidence FROM dead_letters"
    )
    assert (kind, crawl, bytes(payload)) == ("shard", None, message.data)
    assert "no map" in evidence
    assert "worker w acknowledged it" in evidence
    cluster.world.run_for(AGAIN_S)
    _, again = hand.pull()
    assert again == shard
    grant = hand.go(again, 1).grant
    hand.report(again, grant, {again.urls[0].url: 200}, final=True)
    assert {state for state, _ in hand.states().values()} == {UrlState.DONE}
    cluster.assert_kept()


def test_url_of_never_readable_shard_is_given_up_with_evidence(start: Start) -> None:
    cluster, hand = start(1)
    for _ in range(LIMITS.dead_letter_after_expiries):
        unread(hand)
        cluster.world.run_for(AGAIN_S)
    assert set(hand.states().values()) == {(UrlState.FAILED, "poison")}
    assert letters(cluster) == [*[("shard", None)] * LIMITS.dead_letter_after_expiries, ("url", cluster.crawl_id)]
    assert leases(cluster) == []
    cluster.world.run_for(30.0)
    assert cluster.broker.visits == {}


def test_a_shard_of_several_urls_that_cannot_be_read_comes_in_smaller_ones(start: Start) -> None:
    cluster, hand = start(4)
    for _ in range(LIMITS.split_after_expiries):
        _, shard = unread(hand)
        assert len(shard.urls) == 4
        cluster.world.run_for(AGAIN_S)
    _, smaller = hand.pull()
    assert len(smaller.urls) == 1
    cluster.assert_kept()


def test_noise_that_is_read_beside_a_visit_under_way_takes_nothing_from_it(start: Start) -> None:
    cluster, hand = start(1)
    message, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    for n in range(LIMITS.dead_letter_after_expiries):
        tell(hand, message, NOISE, later=n)
    assert cluster.database.rows("SELECT expired FROM leases") == [(0,)]
    hand.report(shard, grant, {shard.urls[0].url: 200}, final=True)
    assert {state for state, _ in hand.states().values()} == {UrlState.DONE}
    cluster.assert_kept()


def test_noise_that_no_worker_comes_for_is_a_letter_before_it_is_dropped(start: Start) -> None:
    cluster, hand = start(1)
    hand.wait(cluster.broker.client(hand.process).publish_shard("empty", PARTITION, 1 << 20, 0, NOISE))
    cluster.world.run_for(25.0)
    assert not any(".empty." in subject for subject in cluster.broker.visits)
    [(kind, payload, evidence)] = cluster.database.rows("SELECT kind, payload, evidence FROM dead_letters")
    assert (kind, bytes(payload)) == ("shard", NOISE)
    assert "no worker came for it" in evidence


def test_a_replayed_letter_of_a_shard_is_gone_and_publishes_nothing(start: Start) -> None:
    """Its URLs were sent anew: published as a report, it would be a letter again."""
    cluster, hand = start(1)
    unread(hand)
    [(letter,)] = cluster.database.rows("SELECT id FROM dead_letters")
    cluster.command(CommandKind.REPLAY, letter=letter)
    cluster.world.run_for(5.0)
    assert letters(cluster) == []


def test_what_was_reported_before_a_lease_is_given_up_counts(start: Start) -> None:
    """Its grant ran out and its shard could not be read any more, but what its worker reported is on its way."""
    cluster, hand = start(1)
    message, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    cluster.world.run_for(LIMITS.grant_s + 1.0)
    for n in range(LIMITS.dead_letter_after_expiries):
        tell(hand, message, NOISE, later=n, apply=False)
    hand.report(shard, grant, {shard.urls[0].url: 200}, final=True)
    cluster.world.run_for(30.0)
    assert {state for state, _ in hand.states().values()} == {UrlState.DONE}
    assert letters(cluster) == [("shard", None)] * LIMITS.dead_letter_after_expiries
    cluster.assert_kept()


def test_a_shard_that_was_begun_and_can_never_be_read_again_is_given_up_too(start: Start) -> None:
    cluster, hand = start(1)
    message, shard = hand.pull()
    hand.go(shard, 1)
    cluster.world.run_for(LIMITS.grant_s + 1.0)
    for n in range(LIMITS.dead_letter_after_expiries):
        tell(hand, message, NOISE, later=n)
    cluster.world.run_for(30.0)
    assert set(hand.states().values()) == {(UrlState.FAILED, "poison")}
    assert leases(cluster) == []
    assert cluster.broker.visits == {}
