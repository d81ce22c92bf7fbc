"""Shards that dispatch and the sweep publish at the same time: what each finds after its own await."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch import Dispatch
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.leases import Leases, TrackedLease
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.frontier.sweep import Sweep
from api.frontier.writer import PartitionWriter
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import Claimed, LeaseRow
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, Revision, Term
from shared.ports.broker import QueuedVisit

GRANT_S = 30.0


class Queue:
    """A pool's queue. `taken`: places that refuse a shard; `meanwhile` runs while the first publish is under way."""

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.published: list[int] = []
        self.dropped: list[int] = []
        self.meanwhile: Callable[[], Any] | None = None

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        self.published.append(host_id)
        return host_id not in self.taken

    async def drop_visit(self, pool: str, partition: Partition, host_id: int, slot: int) -> None:
        self.dropped.append(host_id)
        self.taken.discard(host_id)

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        return False

    async def queued_visits(self, partition: Partition) -> list[QueuedVisit]:
        return []


class Partitioned:
    """What dispatch and sweep see of a partition with a lease on each of two hosts, published long ago."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queue = Queue()
        self.leases = Leases(grant_s=GRANT_S)
        self.held = [self.lease(number) for number in (1, 2)]
        fence, clock = Fence(Partition(0), Term(1), 0), SimpleNamespace(elapsed=lambda: self.now)
        own = Ownership(
            Claimed(fence, Position(), 1, 1, ()), crawls=DispatchCrawls(), capacity=PoolCapacity(),
            settings=FrontierSettings(), now=self.now,
        )  # fmt: skip
        own.leases = self.leases
        writer = PartitionWriter(own, fence, store=cast(Any, None), clock=cast(Any, clock), stats=OwnerStats())
        self.dispatch = Dispatch(writer, cast(Any, self.queue))
        self.sweep = Sweep(writer, cast(Any, self.queue), cast(Any, None), self.dispatch)

    def lease(self, number: int, host: int = 0) -> TrackedLease:
        host_id = HostId(host or number)
        row = LeaseRow(LeaseId(number), CrawlId(1), Revision(1), host_id, f"h{host_id}", 0, "p", 0, (), {})
        return self.leases.add(row, self.now - 100.0)

    def grant(self, held: TrackedLease) -> None:
        self.leases.granted(held, 1, "worker", self.now)

    def end(self, held: TrackedLease) -> None:
        self.leases.update(held.row.lease_id, {}, freed=True)


def test_refused_shard_that_the_sweep_publishes_meanwhile() -> None:
    """An owner died of a KeyError: its shard was no longer refused when its turn came."""

    async def story() -> list[int]:
        at = Partitioned()
        second = at.held[1]
        at.queue.taken = {1, 2}
        for held in at.held:
            assert not await at.dispatch.publish(held)
        at.now += 1.0

        async def meanwhile() -> None:
            at.queue.taken.clear()
            assert await at.dispatch.publish(second)
            at.grant(second)

        at.queue.meanwhile = meanwhile
        await at.dispatch._publish_refused()
        assert not at.dispatch._refused
        return at.queue.published

    assert asyncio.run(story()) == [1, 2, 2, 1]


def test_sweep_leaves_the_place_of_a_lease_that_ends_meanwhile() -> None:
    """Another lease's shard stands there by then. Dropped, its host would be idle until it is published again."""

    async def story() -> Queue:
        at = Partitioned()
        second = at.held[1]
        at.queue.taken = {2}

        async def meanwhile() -> None:
            at.end(second)
            at.lease(3, host=2).published_at = at.now

        at.queue.meanwhile = meanwhile
        await at.sweep._republish()
        return at.queue

    queue = asyncio.run(story())
    assert (queue.published, queue.dropped) == ([1], [])


def test_sweep_leaves_a_shard_that_a_worker_begins_meanwhile() -> None:
    async def story() -> Queue:
        at = Partitioned()
        first = at.held[0]
        at.end(at.held[1])
        at.queue.taken = {1}

        async def meanwhile() -> None:
            at.grant(first)

        at.queue.meanwhile = meanwhile
        await at.sweep._republish()
        return at.queue

    queue = asyncio.run(story())
    assert (queue.published, queue.dropped) == ([1], [])


def test_dispatch_publishes_no_shard_of_an_ended_lease() -> None:
    async def story() -> list[int]:
        at = Partitioned()
        at.end(at.held[0])
        assert await at.dispatch.publish(at.held[0])
        return at.queue.published

    assert asyncio.run(story()) == []
