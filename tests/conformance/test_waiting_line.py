"""A pool's line: shards keep their place in it, and a killed worker's shard comes back within its bound."""

from collections.abc import Iterator

import pytest

from tests.support.simulation.cluster import SETTINGS, Cluster, Site
from tests.support.simulation.manual_worker import ManualWorker, Start, shard_of
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node

HOSTS = 12


@pytest.fixture
def line(database: Database) -> Iterator[Cluster]:
    """A crawl of many hosts, and an owner. No worker."""
    nodes = tuple(Node(host, Kind.PAGE) for host in range(HOSTS))
    cluster = Cluster(database, Site(nodes, seeds=tuple(range(HOSTS))))
    cluster.start_owner()
    cluster.world.run_for(0.2)
    cluster.create_crawl()
    cluster.world.run_for(0.2)
    yield cluster
    cluster.close()


def test_shards_that_wait_for_a_worker_keep_their_place(line: Cluster) -> None:
    """Every ten seconds each of them went behind all others; one was idle for 131 s behind those that came later."""
    hand = ManualWorker(line)
    hand.heard()
    line.world.run_for(1.0)
    sequences = [visit.sequence for visit in line.broker.visits.values()]
    assert len(sequences) == HOSTS
    line.world.run_for(6 * SETTINGS.republish_s)
    assert [visit.sequence for visit in line.broker.visits.values()] == sequences
    writer = line.owners[0].owner.writer
    assert writer is not None
    assert writer.stats.replaced == 0


def test_delivered_shard_that_was_never_begun_is_sent_anew(start: Start) -> None:
    """A broker that was killed may neither deliver it again nor let another in."""
    cluster, hand = start(1)
    shard_of(hand)
    ((old, visit),) = cluster.broker.visits.items()
    visit.visible_at = float("inf")
    cluster.world.run_for(SETTINGS.republish_s + 2 * SETTINGS.sweep_interval_s)
    assert cluster.broker.visits[old].sequence > visit.sequence
    assert len(shard_of(hand).urls) == 1


@pytest.mark.parametrize("after_s", [0.5, 3.0, 9.0, 14.0])
def test_shard_of_a_killed_worker_is_begun_again_within_its_bound(start: Start, after_s: float) -> None:
    """Its grant runs out, and the broker or the sweep gives it out again."""
    cluster, _ = start(40, delay_s=2.0)
    worker = cluster.start_worker()
    cluster.world.run_for(0.4 + after_s)
    assert worker.busy
    cluster.world.kill(worker.process)
    killed_at = cluster.world.now
    asked = len(cluster.web.seen["h0.test"])
    cluster.start_worker()
    bound_s = SETTINGS.grant_s + SETTINGS.ack_wait_s
    while len(cluster.web.seen["h0.test"]) == asked and cluster.world.now < killed_at + 10 * bound_s:
        cluster.world.run_for(0.5)
    assert cluster.world.now - killed_at <= bound_s + 2.0 + SETTINGS.sweep_interval_s, "and the host's delay"
    cluster.assert_kept()
