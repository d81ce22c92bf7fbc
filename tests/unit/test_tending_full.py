"""What the leader does for crawls while the database's disk is full: what finds no room keeps nothing else from being
done, and is done when there is room."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from api.crawls.retention_sweeper import RetentionSweeper
from shared.domain.errors import ResourceFull, Transient
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges
from shared.domain.frontier.states import Position
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.retention import KEPT_BY_DEFAULT, RetainedKind, Retention
from shared.ports.clock import Clock
from shared.ports.retained import SweepResult
from shared.runtime.supervise import Tasks
from tests.support.crawl_controller import controlling, lead
from tests.support.manual_clock import ManualClock


class Small:
    """A database that has room only where `refused` does not say otherwise, with two deleted crawls: the items of one
    are to be removed, of the other the partition is to be told. `begun` is set whenever a pass begins."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.refused: dict[str, Transient] = {}
        self.done: list[str] = []

    def _asked(self, name: str) -> None:
        self.done.append(name)
        if (error := self.refused.get(name)) is not None:
            raise error

    async def data_version(self) -> None:
        return None

    async def crawl_changes(self, mark: ChangeMark, known: object, compare: object) -> CrawlChanges:
        self.begun.set()
        return CrawlChanges(mark, {}, {}, (), (), {}, {})

    async def positions(self) -> dict[Partition, Position]:
        return {}

    async def reopen(self, after: CrawlId, max_count: int, among: object) -> tuple[Sequence[CrawlId], None]:
        self._asked("reopen")
        return [], None

    async def uncollected(self) -> dict[CrawlId, Sequence[Partition]]:
        return {CrawlId(1): [], CrawlId(2): [Partition(0)]}

    async def remove(self, crawl_id: CrawlId, max_count: int) -> bool:
        self._asked("remove")
        return False

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        self._asked("tell")
        return 1

    async def forget(self, what: RetainedKind, rules: Retention, now_ms: int, place: str) -> SweepResult:
        self._asked(f"forget {what}")
        return SweepResult(0, "")


@asynccontextmanager
async def tended(small: Small, clock: ManualClock) -> Any:
    """A leader tends while the block runs; called, it waits for a pass that begins by then to be over."""
    retaining = RetentionSweeper(small, lambda: KEPT_BY_DEFAULT, cast(Clock, clock))
    controller = controlling(small, small, small, clock, retaining=retaining)

    async def passed() -> None:
        for _ in range(3):
            small.begun.clear()
            await small.begun.wait()

    async with asyncio.timeout(60), Tasks() as tasks:
        running = tasks.start("lead", lead(controller))
        yield passed
        running.cancel()


def story(small: Small, told: Callable[[ManualClock, Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        async with tended(small, clock) as passed:
            await passed()
            await told(clock, passed)

    asyncio.run(run())


def test_what_finds_no_room_keeps_nothing_else_from_being_done() -> None:
    small = Small()
    full = ResourceFull("the disk is full")
    small.refused = {"reopen": full, "remove": full, f"forget {RetainedKind.AUDIT}": full}

    async def told(clock: ManualClock, passed: Callable[[], Awaitable[None]]) -> None:
        assert set(small.done) == {"reopen", "remove", "tell", *(f"forget {what}" for what in RetainedKind)}

    story(small, told)


@pytest.mark.long
def test_action_without_space_is_retried_before_next_sweep() -> None:
    small = Small()
    small.refused = {"reopen": ResourceFull("the disk is full", retry_in=1.0)}

    async def told(clock: ManualClock, passed: Callable[[], Awaitable[None]]) -> None:
        assert small.done.count("reopen") == 1
        clock.now += 1.0
        await passed()
        assert small.done.count("reopen") == 2
        small.refused.clear()
        clock.now += 1.0
        await passed()
        assert small.done.count("reopen") == 3
        clock.now += 1.0
        await passed()
        assert small.done.count("reopen") == 3, "done, it rests"

    story(small, told)


def test_sweep_broken_off_by_an_engine_resumes_when_it_answers() -> None:
    small = Small()
    small.refused = {"tell": Transient("the broker is away", retry_in=0.5)}

    async def told(clock: ManualClock, passed: Callable[[], Awaitable[None]]) -> None:
        assert not any(name.startswith("forget") for name in small.done)
        small.refused.clear()
        clock.now += 0.5
        await passed()
        assert {f"forget {what}" for what in RetainedKind} < set(small.done)

    story(small, told)
