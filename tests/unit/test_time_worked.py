"""The time that a crawl is worked on, of which budget.max_seconds is told: not while it is paused, or held for want of
room."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

import pytest

from api.crawls.controller import CrawlController
from shared.domain.frontier.states import CrawlState, Position
from shared.domain.frontier.store_model import Counters, CrawlRow
from shared.domain.ids import CrawlId, Partition, Revision
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.store import Store
from shared.runtime.supervise import Tasks
from tests.support.manual_clock import Turned


class Counted:
    """A database with some crawls that have something queued, which notes the time they were worked on."""

    def __init__(self, *rows: CrawlRow) -> None:
        self.rows = rows
        self.passes = 0
        self.statements = 0
        self.worked_ms: dict[CrawlId, int] = dict.fromkeys((row.crawl_id for row in rows), 0)

    async def worked_on(self) -> Sequence[CrawlRow]:
        self.passes += 1
        return self.rows

    async def add_active_time_to_all(self, ms: int, *, held: Collection[CrawlId]) -> None:
        """As the database does: to those that are not paused."""
        self.statements += 1
        for row in self.rows:
            if row.crawl_id not in held and row.state is not CrawlState.PAUSED:
                self.worked_ms[row.crawl_id] += ms

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        return {crawl_id: Counters(queued=1) for crawl_id in crawl_ids}

    async def positions(self) -> dict[Partition, Position]:
        return {}

    async def reopen(self, after: CrawlId) -> tuple[Sequence[CrawlId], None]:
        return [], None

    async def uncollected(self) -> dict[CrawlId, Sequence[Partition]]:
        return {}


def row(number: int, pool: str = "default", state: CrawlState = CrawlState.RUNNING) -> CrawlRow:
    spec = f'{{"seeds": [{{"url": "http://a.test/"}}], "pool": "{pool}"}}'
    return CrawlRow(CrawlId(number), f"c{number}", Revision(1), state, spec, None, 0, 0, None, 0)


async def tended(store: Counted, clock: Turned, still: Callable[[str], bool], *looks_s: float) -> None:
    """Tend the crawls, and look at the time after each of `looks_s` of the clock."""
    tending = CrawlController(
        store=cast(Store, store),
        items=cast(ItemTable, None),
        broker=cast(Broker, None),
        clock=cast(Clock, clock),
        partitions=1,
        told=lambda: None,
        still=still,
    )
    async with asyncio.timeout(30), Tasks() as tasks:
        running = tasks.start("tend", tending.run(lambda: True, lambda: None))
        passes = store.passes
        while store.passes < passes + 2:
            tending.wake()
            await asyncio.sleep(0.01)
        for seconds in looks_s:
            clock.now += seconds
            await tending.count_time()
        running.cancel()


@pytest.mark.parametrize("held", [(), ("eu",), ("default", "eu")])
def test_time_in_which_a_crawl_is_paused_or_held_is_not_its_own(held: tuple[str, ...]) -> None:
    store = Counted(row(1), row(2, pool="eu"), row(3, state=CrawlState.PAUSED))
    asyncio.run(tended(store, Turned(), lambda pool: pool in held, 3.0))
    assert store.worked_ms == {1: 0 if "default" in held else 3000, 2: 0 if "eu" in held else 3000, 3: 0}


def test_time_between_looks_of_a_busy_leader_counts_in_full() -> None:
    """A pass over a thousand crawls took so long that 12 s of 150 s were counted. One statement adds for all."""
    store = Counted(*(row(number) for number in range(1, 1001)))
    asyncio.run(tended(store, Turned(), lambda _: False, 2.0, 30.0, 0.5, 59.0))
    assert set(store.worked_ms.values()) == {91_500}
    assert store.statements == 4


def test_time_in_which_the_machine_slept_counts_as_a_minute_at_most() -> None:
    store = Counted(row(1))
    asyncio.run(tended(store, Turned(), lambda _: False, 36_000.0))
    assert store.worked_ms == {1: 60_000}
