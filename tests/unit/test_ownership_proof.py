"""An owner proves its term by one query for all workers that ask at once, and never by a query that began earlier."""

import asyncio
from typing import Any, cast

from api.frontier.capacity import PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.frontier.writer import PartitionWriter
from shared.adapters.local.clock import SystemClock
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import Claimed
from shared.domain.ids import Partition, Term


class SlowStore:
    """Answers a proof when the test lets it; `queries` counts the proofs that began."""

    def __init__(self) -> None:
        self.queries = 0
        self.owner = True
        self.may_answer = asyncio.Semaphore(0)

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
