"""Which places in a queue no shard should stand on."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from api.frontier.leases import Leases
from api.frontier.orphans import AT_ONCE, OrphanedShards, without_lease
from api.frontier.ownership import FrontierSettings
from shared.adapters.local.clock import SystemClock
from shared.domain.frontier.store_model import LeaseRow
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, Revision
from shared.ports.broker import QueuedVisit, StoredVisit
from shared.wire import subjects
from shared.wire.messages import UrlShard, encode


def test_a_place_is_held_by_pool_host_and_slot_together() -> None:
    leases = Leases(grant_s=30.0)
    leases.add(LeaseRow(LeaseId(1), CrawlId(1), Revision(1), HostId(7), "a", 1, "eu", 0, (), {}), 0.0)
    held = QueuedVisit("eu", HostId(7), 1)
    others = {QueuedVisit("default", HostId(7), 1), QueuedVisit("eu", HostId(8), 1), QueuedVisit("eu", HostId(7), 0)}
    assert without_lease([held, *others], leases) == others


def test_a_subject_names_its_place_and_nothing_else_does() -> None:
    place = QueuedVisit("eu-1", HostId(12_288), 3)
    assert subjects.queued_visit("visits.eu-1.63.12288.3") == place
    assert [subjects.queued_visit(other) for other in ("visits.eu.1.2", "visits.eu.1.x.0", "reports.1.outcome")] == [
        None, None, None,
    ]  # fmt: skip


class Queued:
    """A broker with shards of no lease, of which it notes what is dropped."""

    def __init__(self, hosts: int) -> None:
        self.places = {QueuedVisit("default", HostId(number), 0) for number in range(hosts)}
        self.looked_at = 0

    async def queued_visits(self, partition: Partition) -> list[QueuedVisit]:
        return list(self.places)

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit:
        self.looked_at += 1
        shard = UrlShard(place.host_id + 1, 1, 1, place.host_id, "h.test", 0, 0, [])
        return StoredVisit(place.host_id + 1, encode(shard))

    async def drop_visit(self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int) -> None:
        self.places.remove(QueuedVisit(pool, HostId(host_id), slot))


def test_orphaned_shards_are_dropped_in_bounded_batches() -> None:
    broker = Queued(AT_ONCE + 10)

    async def proven() -> bool:
        return True

    async def story() -> list[int]:
        own = SimpleNamespace(
            settings=FrontierSettings(orphans_interval_s=0.0, sweep_interval_s=0.0),
            orphans_suspected=False,
            partition=Partition(0),
            leases=Leases(grant_s=30.0),
        )
        writer = SimpleNamespace(own=own, clock=SystemClock(), still_owner=proven)
        strays = OrphanedShards(cast(Any, writer), cast(Any, broker))
        return [await strays.once() for _ in range(4)]

    assert asyncio.run(story()) == [0, AT_ONCE, 10, 0]
    assert broker.looked_at == AT_ONCE + 10


def test_wait_for_the_next_search_is_longer_once_none_was_found() -> None:
    broker, clock = Queued(1), SimpleNamespace(now=100.0)
    clock.elapsed = lambda: clock.now
    settings = FrontierSettings(orphans_interval_s=10.0, sweep_interval_s=1.0)
    own = SimpleNamespace(
        settings=settings, orphans_suspected=False, partition=Partition(0), leases=Leases(grant_s=30.0)
    )

    async def proven() -> bool:
        return True

    async def story() -> list[tuple[int, float]]:
        searches = OrphanedShards(
            cast(Any, SimpleNamespace(own=own, clock=clock, still_owner=proven)), cast(Any, broker)
        )
        waits = [(0, searches.wait_s())]
        for later in (4.0, 6.0, 10.0, 10.0):
            clock.now += later
            waits.append((await searches.once(), searches.wait_s()))
        return waits

    assert asyncio.run(story()) == [(0, 10.0), (0, 6.0), (0, 10.0), (1, 10.0), (0, 60.0)]
