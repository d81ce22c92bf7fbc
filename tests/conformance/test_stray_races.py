"""Shards without a lease: found and dropped by the partition's owner, and by nobody else."""

import pytest

from api.frontier.orphans import OrphanedShards
from api.frontier.writer import PartitionWriter
from shared.domain.frontier.states import CrawlState, UrlState
from shared.wire.messages import encode
from tests.support.simulation.cluster import PARTITION, Cluster
from tests.support.simulation.manual_worker import Start, leases, shard_of
from tests.support.simulation.world import EPOCH_MS

QUEUED, LEASED = UrlState.QUEUED, UrlState.LEASED


def test_shards_of_a_deleted_crawl_leave_the_queue_of_a_pool_without_workers(start: Start) -> None:
    cluster, hand = start(2)
    hand.heard()
    cluster.world.run_for(2.0)
    assert len(cluster.broker.visits) == 1
    cluster.delete_crawl()
    cluster.world.run_for(4.0)
    assert cluster.broker.visits == {}
    assert leases(cluster) == []
    cluster.assert_kept()


def test_a_shard_nobody_began_goes_back_to_the_queue_when_its_crawl_is_over(start: Start) -> None:
    """A crawl that was cancelled holds nothing in a pool without workers."""
    cluster, hand = start(2)
    hand.heard()
    cluster.world.run_for(2.0)
    assert {state for state, _ in hand.states().values()} == {LEASED}
    over = cluster.store.set_state(cluster.crawl_id, CrawlState.FINISHED, "cancelled", EPOCH_MS)
    cluster.world.do(cluster.operator, over)
    cluster.owners[0].crawls.remove(cluster.crawl_id)
    cluster.world.run_for(13.0)
    assert {state for state, _ in hand.states().values()} == {QUEUED}
    assert cluster.broker.visits == {}
    assert leases(cluster) == []
    cluster.assert_kept()


def test_a_shard_published_after_its_lease_was_deleted_is_found_and_dropped(start: Start) -> None:
    cluster, hand = start(1)
    shard = shard_of(hand)
    late = cluster.broker.client(hand.process).publish_shard("empty", PARTITION, 1 << 20, 0, encode(shard))
    cluster.delete_crawl()
    cluster.world.run_for(1.0)
    hand.wait(late)
    cluster.world.run_for(25.0)
    assert not any(".empty." in subject for subject in cluster.broker.visits)


@pytest.mark.parametrize("proven", [True, False])
def test_a_deposed_owner_drops_no_shard_of_its_successor(
    start: Start, monkeypatch: pytest.MonkeyPatch, proven: bool
) -> None:
    """It knows no lease of the other's, so all it has is the proof of its term; without that it would be caught."""
    cluster, hand = start(1)
    writer = cluster.owners[0].owner.writer
    assert writer is not None
    cluster.owners[0].process.stopped = True
    cluster.start_owner()
    hand.heard()
    cluster.world.run_for(2.0)
    assert len(cluster.broker.visits) == 1
    if not proven:

        async def believes(self: PartitionWriter) -> bool:
            return True

        monkeypatch.setattr(PartitionWriter, "still_owner", believes)
    strays = OrphanedShards(writer, cluster.broker.client(cluster.owners[0].process))
    writer.own.suspect_orphans()
    for _ in range(2):
        cluster.world.do(cluster.owners[0].process, _smoothly(cluster, strays))
        cluster.world.advance(writer.own.settings.orphans_interval_s)
    assert bool(cluster.broker.visits) == proven
    assert any("dropped as a stray" in text for text in cluster.world.violations) == (not proven)


async def _smoothly(cluster: Cluster, strays: OrphanedShards) -> int:
    """A turn of an owner whose own tasks stand still."""
    cluster.owners[0].process.stopped = False
    cluster.world.smooth = True
    try:
        return await strays.once()
    finally:
        cluster.world.smooth = False
        cluster.owners[0].process.stopped = True
