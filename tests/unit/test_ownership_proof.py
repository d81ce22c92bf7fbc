"""An owner proves its term by one query for all workers that ask at once, and never by a query that began earlier.

It also reads the counts of pages again after it has given up a host, since its pages do not count any more.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats, TransactionKind
from api.frontier.writer import PartitionWriter
from shared.adapters.local.clock import SystemClock
from shared.domain.crawl.recrawl_rules import PageInterval
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.frontier.recrawl_pages import RecrawlPages
from shared.domain.frontier.states import Fence, Position, UrlState
from shared.domain.frontier.store_model import Changes, Claimed, QueueEnd
from shared.domain.ids import CrawlId, HostId, Partition, Term


class SlowStore:
    """Answers a proof when the test lets it; `queries` counts the proofs that began."""

    def __init__(self) -> None:
        self.queries = 0
        self.owner = True
        self.may_answer = asyncio.Semaphore(0)

    async def apply(self, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
        return ()

    async def still_owner(self, fence: Fence) -> bool:
        self.queries += 1
        owner = self.owner
        await self.may_answer.acquire()
        return owner


def owned(store: SlowStore) -> PartitionWriter:
    claimed = Claimed(
        fence=Fence(Partition(0), Term(1), 0), position=Position(), next_host=1, next_lease=1, leases=(), commands=()
    )
    own = Ownership(claimed, crawls=DispatchCrawls(), capacity=PoolCapacity(), settings=FrontierSettings(), now=0.0)
    return PartitionWriter(own, claimed.fence, store=cast(Any, store), clock=SystemClock(), stats=OwnerStats())


def test_workers_that_ask_together_share_one_proof() -> None:
    async def story() -> None:
        store = SlowStore()
        own = owned(store)
        asking = [asyncio.create_task(own.still_owner()) for _ in range(100)]
        await asyncio.sleep(0)
        store.may_answer.release()
        store.may_answer.release()
        assert all(await asyncio.gather(*asking))
        assert store.queries == 2

    asyncio.run(story())


def test_a_proof_that_began_before_the_question_does_not_answer_it() -> None:
    async def story() -> None:
        store = SlowStore()
        own = owned(store)
        early = asyncio.create_task(own.still_owner())
        await asyncio.sleep(0)
        store.owner = False
        late = asyncio.create_task(own.still_owner())
        await asyncio.sleep(0)
        store.may_answer.release()
        store.may_answer.release()
        assert await early
        assert not await late

    asyncio.run(story())


@pytest.mark.parametrize("batched", [True, False])
def test_pages_of_a_host_that_is_given_up_are_counted_again(batched: bool) -> None:
    async def story() -> None:
        writer = owned(SlowStore())
        interval = PageInterval(RecrawlPolicy.ADAPTIVE, 1_000, 9_000)
        for crawl_id in (1, 2):
            writer.own.recrawls[CrawlId(crawl_id)] = RecrawlPages(10, interval, {}, 0)
        batch = writer.batch()
        batch.changes.give_up.append((CrawlId(1), HostId(3), UrlState.FAILED, "host_unreachable"))
        async with writer.writing(TransactionKind.OUTCOMES):
            await (writer.commit(batch) if batched else writer.apply(batch.changes))
        assert {crawl_id: pages.outdated for crawl_id, pages in writer.own.recrawls.items()} == {1: True, 2: False}

    asyncio.run(story())
