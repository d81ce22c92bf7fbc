"""Every run that an operator begins publishes its seeds, whatever an earlier publication of them does meanwhile."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from api.crawls.controller import CrawlController
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.items import SqlItems
from shared.domain.crawl.state import Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId
from shared.domain.reads.declared import Actor, Declaration
from shared.runtime.supervise import Tasks
from tests.support.crawl_controller import controlling
from tests.support.database.running_crawls import IdleBroker
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import NOW_MS, Tables
from tests.support.manual_clock import ManualClock

OPERATOR = Actor("0" * 16, "operator", "r")
SPEC = '{"seeds": [{"url": "http://a.test/"}]}'


class StallingBroker(IdleBroker):
    """Keeps the seeds that are published. The first acknowledgement waits for `go`."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.stored, self.go = asyncio.Event(), asyncio.Event()

    async def publish_report(self, partition: int, kind: str, data: bytes, message_id: str) -> int:
        self.published.append(message_id)
        self.stored.set()
        if len(self.published) == 1:
            await self.go.wait()
        return len(self.published)


class Leader:
    """A master that leads, or that does not know yet that another does."""

    def __init__(self, t: Tables, broker: StallingBroker) -> None:
        items = SqlItems(executor_of(t))
        self.controller: CrawlController = controlling(t.store, items, broker, ManualClock(), partitions=8)
        self.controller._leading = True
        self.controller._known.look_at_all({})

    async def look(self, tasks: Tasks) -> None:
        await self.controller.once()
        await self.controller._tend(tasks)


@pytest.mark.parametrize("deposed", [False, True], ids=["one_leader", "a_deposed_leader"])
def test_seeds_of_an_earlier_run_do_not_stand_for_those_of_the_next(
    new_tables: Callable[[], AbstractAsyncContextManager[Tables]], deposed: bool
) -> None:
    """An exclusion may have ended in between, and only seeds that are published after it are queued again."""

    async def story() -> None:
        async with new_tables() as t, Tasks() as tasks:
            catalog, broker = SqlCatalog(executor_of(t)), StallingBroker()
            declared = Declaration("news", SPEC, {}, None)
            made, _ = await catalog.put(declared, expected=None, start=True, actor=OPERATOR, now_ms=NOW_MS)
            first = Leader(t, broker)
            await first.look(tasks)
            await broker.stored.wait()

            async def turn(verb: Verb) -> None:
                await catalog.turn("news", verb, expected=None, actor=OPERATOR, now_ms=NOW_MS)

            await turn(Verb.CANCEL)
            if not deposed:
                await first.look(tasks)
            await turn(Verb.START)
            later = Leader(t, broker) if deposed else first
            broker.go.set()
            await seeded()
            assert (await state(t, made.crawl_id), len(broker.published)) == (CrawlState.SEEDING, 1)
            await later.look(tasks)
            await seeded()
            assert (await state(t, made.crawl_id), len(broker.published)) == (CrawlState.RUNNING, 2)

    asyncio.run(story())


async def seeded() -> None:
    """Wait until all publications of seeds have ended."""
    while running := {task for task in asyncio.all_tasks() if task.get_name().startswith("seed.")}:
        await asyncio.wait(running)


async def state(t: Tables, crawl_id: CrawlId) -> CrawlState | None:
    row = await t.store.crawl(crawl_id)
    return None if row is None else row.state
