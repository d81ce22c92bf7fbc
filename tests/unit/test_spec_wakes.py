"""A spec that must be published starts a pass of the leader, so that it does not wait for the next tick."""

import asyncio

from api.crawls.reconcile import ForgetSpec, PublishedSpecs
from shared.adapters.local.clock import SystemClock
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges
from shared.domain.ids import CrawlId
from shared.runtime.supervise import Tasks
from tests.support.crawl_controller import controlling


class Unchanged:
    """A database in which no crawl changes."""

    async def data_version(self) -> int:
        return 1

    async def crawl_changes(self, mark: ChangeMark, known: object, compare: object) -> CrawlChanges:
        return CrawlChanges(mark, {}, {}, (), (), {}, {})

    async def reopen(self, after: CrawlId, max_count: int, among: object) -> tuple[list[CrawlId], None]:
        return [], None

    async def uncollected(self) -> dict[CrawlId, list[int]]:
        return {}


def test_spec_to_publish_wakes_the_leader_and_none_does_not() -> None:
    async def run() -> None:
        controller, woken = controlling(store := Unchanged(), store, store, SystemClock()), asyncio.Event()
        async with asyncio.timeout(30), Tasks() as tasks:
            tasks.start("lead", controller.lead(lambda: False, lambda: None, woken.set))
            await asyncio.sleep(0)
            tasks.start("run", controller.run())
            controller.specs = PublishedSpecs({})
            await controller._passed.wait()
            assert not woken.is_set()
            controller.specs.todo[CrawlId(7)] = ForgetSpec(CrawlId(7))
            controller.wake()
            await woken.wait()

    asyncio.run(run())
