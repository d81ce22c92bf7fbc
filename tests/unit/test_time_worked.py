"""The time that a crawl is worked on, of which budget.max_seconds is told: not while it is paused, or held for want of
room."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest
from msgspec.structs import replace

from api.crawls.reconcile import active_ms
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow, CrawlVersion
from shared.domain.frontier.states import CrawlState, Position
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Revision
from shared.runtime.supervise import Tasks
from tests.support.crawl_controller import controlling, lead
from tests.support.manual_clock import ManualClock

Known = Callable[[CrawlId], CrawlVersion | None]


class Counted:
    """A database with some crawls that have something queued, which counts the time of pools."""

    def __init__(self, *rows: CrawlRow) -> None:
        self.rows = {row.crawl_id: row for row in rows}
        self.passes = 0
        self.statements = 0
        self.clocks: dict[str, int] = {}

    async def data_version(self) -> None:
        return None

    async def crawl_changes(self, mark: ChangeMark, known: Known, compare: object) -> CrawlChanges:
        self.passes += 1
        rows = {crawl_id: row for crawl_id, row in self.rows.items() if known(crawl_id) != row.version}
        return CrawlChanges(ChangeMark(1), rows, {}, (), (), self.clocks, {})

    async def start_active_time(self, pools: Mapping[CrawlId, str]) -> None:
        for crawl_id, pool in pools.items():
            zero_ms = self.clocks.setdefault(pool, 0)
            row = self.rows[crawl_id]
            self.rows[crawl_id] = replace(row, active_pool=pool, active_zero_ms=zero_ms, change=row.change + 1)

    async def add_pool_time(self, clocks: Mapping[str, int], ms: int) -> None:
        self.statements += 1
        for pool, at in clocks.items():
            assert self.clocks[pool] == at
            self.clocks[pool] += ms

    def worked_ms(self) -> dict[CrawlId, int]:
        return {crawl_id: active_ms(row, self.clocks) for crawl_id, row in self.rows.items()}

    async def counters_by_partition(self, crawl_ids: Collection[CrawlId]) -> Mapping[CrawlId, object]:
        return {crawl_id: {} for crawl_id in crawl_ids}

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        return {crawl_id: Counters(queued=1) for crawl_id in crawl_ids}

    async def positions(self) -> dict[Partition, Position]:
        return {}

    async def reopen(
        self, after: CrawlId, max_count: int, among: Collection[CrawlId]
    ) -> tuple[Sequence[CrawlId], CrawlId | None]:
        return [], None

    async def uncollected(self) -> dict[CrawlId, Sequence[Partition]]:
        return {}


def row(number: int, pool: str = "default", state: CrawlState = CrawlState.RUNNING) -> CrawlRow:
    spec = f'{{"seeds": [{{"url": "http://a.test/"}}], "pool": "{pool}"}}'
    return CrawlRow(CrawlId(number), f"c{number}", Revision(1), state, spec, None, 0, 0, None, 0)


async def tended(store: Counted, clock: ManualClock, still: Callable[[str], bool], *looks_s: float) -> None:
    """Tend the crawls, and look at the time after each of `looks_s` of the clock."""
    controller = controlling(store, None, None, clock, still=still)
    async with asyncio.timeout(30), Tasks() as tasks:
        running = tasks.start("lead", lead(controller))
        passes = store.passes
        while store.passes < passes + 4:
            controller.wake()
            await asyncio.sleep(0.01)
        for seconds in looks_s:
            clock.now += seconds
            await controller.count_time()
        running.cancel()


@pytest.mark.parametrize("held", [(), ("eu",), ("default", "eu")])
def test_time_in_which_a_crawl_is_paused_or_held_is_not_its_own(held: tuple[str, ...]) -> None:
    store = Counted(row(1), row(2, pool="eu"), row(3, state=CrawlState.PAUSED))
    asyncio.run(tended(store, ManualClock(), lambda pool: pool in held, 3.0))
    assert store.worked_ms() == {1: 0 if "default" in held else 3000, 2: 0 if "eu" in held else 3000, 3: 0}


def test_time_between_looks_of_a_busy_leader_counts_in_full() -> None:
    """A pass over a thousand crawls took so long that 12 s of 150 s were counted. One statement adds for all."""
    store = Counted(*(row(number) for number in range(1, 1001)))
    asyncio.run(tended(store, ManualClock(), lambda _: False, 2.0, 30.0, 0.5, 59.0))
    assert set(store.worked_ms().values()) == {91_500}
    assert store.statements == 4


def test_time_in_which_the_machine_slept_counts_as_a_minute_at_most() -> None:
    store = Counted(row(1))
    asyncio.run(tended(store, ManualClock(), lambda _: False, 36_000.0))
    assert store.worked_ms() == {1: 60_000}
