"""A broker that comes back with an older store: what it stores then is applied, and the loss raises an alarm."""

from collections.abc import Callable

import pytest

from shared.domain.frontier.commands import SEED_DELETED, CommandKind
from shared.domain.frontier.states import UrlState
from shared.domain.web.url import fingerprint
from tests.conformance.test_commands_in_progress import in_the_middle, progress
from tests.support.simulation.broker import SimBroker
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


@pytest.mark.parametrize("lose", [SimBroker.wipe, lambda broker: broker.put_back(LOST)])
def test_seed_of_replaced_stream_survives_earlier_deletion(start: Start, lose: Callable[[SimBroker], None]) -> None:
    """Its sequence is smaller than that of the deletion, which stood in the stream that was lost."""
    cluster, hand = start(15)
    for number in range(LOST):
        hand.discover(cluster.crawl_id, {url(100 + number): 1})
    cluster.judge.taken_back[cluster.crawl_id] = set(map(url, range(15)))
    cluster.command(CommandKind.DELETE_SEEDS, all=True, places=[])
    in_the_middle(cluster, CommandKind.DELETE_SEEDS)
    owner = cluster.owners[0]
    owner.process.stopped = True
    cluster.world.run_for(0.2)
    assert progress(cluster) == [("delete_seeds", True)]
    lose(cluster.broker)
    added = sorted((url(number) for number in range(300, 320)), key=fingerprint)
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, dict.fromkeys(added, 0)))
    owner.process.stopped = False
    cluster.world.run_for(5.0)
    states = hand.states()
    assert progress(cluster) == []
    assert SEED_DELETED in {reason for _, reason in states.values()}
    assert [each for each in added if states[each][1] == SEED_DELETED] == []
    cluster.assert_kept()
