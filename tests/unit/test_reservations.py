"""No fetch starts that may not fit on the archive's disk, however many are under way and whatever else writes there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.domain.ops.watermarks import FillLevel, Watermarks, is_full
from shared.domain.web.fetch import FetchLimits
from workers import disk_reservations as module
from workers.disk_reservations import RECORD_BYTES, DiskReservations

MIB = 1 << 20
MARKS = Watermarks()
DISK = 1000 * MIB
BODY = 10 * MIB
NEED = BODY + RECORD_BYTES


class Disk:
    """A disk of 1,000 MiB, and what this process put into its archive."""

    def __init__(self, free: int) -> None:
        self.used = DISK - free
        self.archive: Any = SimpleNamespace(stats=SimpleNamespace(bytes=0), buffered=lambda: 0)
        self.reservations = DiskReservations(self.gauge, lambda: MARKS, cast(Any, self.archive))
        self.ending = asyncio.Event()

    async def gauge(self) -> FillLevel:
        return FillLevel(self.used, DISK, claimed=32 * MIB)

    async def held(self, stack: AsyncExitStack, n: int) -> list[bool]:
        """Whether each of so many fetches may start, while all that may are under way."""
        return [await self._reserved(stack) for _ in range(n)]

    async def _reserved(self, stack: AsyncExitStack) -> bool:
        reserved = await self.reservations.reserve(BODY, self.ending)
        if reserved is not None:
            stack.callback(self.reservations.give_back, reserved)
        return reserved is not None


def on(free: int, story: Callable[[Disk], Awaitable[None]]) -> None:
    async def whole() -> None:
        disk = Disk(free)
        await disk.reservations.level()
        await story(disk)

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)


def test_fetches_under_way_reserve_at_most_half_of_what_is_free() -> None:
    room = 4 * NEED
    free = MARKS.stops_at(DISK) + 32 * MIB + room

    async def story(disk: Disk) -> None:
        async with AsyncExitStack() as stack:
            assert await disk.held(stack, 2) == [True, True]
            assert not disk.reservations.fits(NEED)
        assert disk.reservations.fits(NEED)

    on(free, story)


def test_a_fetch_waits_until_another_gives_its_room_back() -> None:
    async def story(disk: Disk) -> None:
        async with AsyncExitStack() as first:
            assert await disk.held(first, 1) == [True]
            async with AsyncExitStack() as second:
                waiting = asyncio.ensure_future(disk.held(second, 1))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                await first.aclose()
                assert await waiting == [True]

    on(MARKS.stops_at(DISK) + 32 * MIB + NEED + 1, story)


def test_a_fetch_that_may_not_fit_does_not_start_and_the_worker_is_full() -> None:
    async def story(disk: Disk) -> None:
        async with AsyncExitStack() as stack:
            assert await disk.held(stack, 1) == [False]
        level = await disk.reservations.level()
        assert level is not None
        assert is_full(False, level, MARKS)

    on(MARKS.stops_at(DISK) + 32 * MIB + NEED, story)


def test_what_was_written_since_the_last_look_counts_as_used() -> None:
    async def story(disk: Disk) -> None:
        assert disk.reservations.fits(NEED)
        disk.archive.stats.bytes = 2 * MIB
        assert not disk.reservations.fits(NEED)
        disk.used -= 3 * MIB
        await disk.reservations.level()
        assert disk.reservations.fits(NEED)

    on(MARKS.stops_at(DISK) + 32 * MIB + NEED + MIB, story)


def test_a_visit_that_is_to_end_waits_for_no_room() -> None:
    async def story(disk: Disk) -> None:
        async with AsyncExitStack() as first:
            assert await disk.held(first, 1) == [True]
            disk.ending.set()
            async with AsyncExitStack() as second:
                assert await disk.held(second, 1) == [False]

    on(MARKS.stops_at(DISK) + 32 * MIB + NEED + 1, story)


def test_without_a_disk_of_its_own_a_worker_fetches_as_ever() -> None:
    async def story() -> None:
        reservations = DiskReservations(None, lambda: MARKS, cast(Any, None))
        assert await reservations.level() is None
        assert await reservations.reserve(FetchLimits().body_bytes, asyncio.Event()) is not None

    asyncio.run(story())


def test_disk_is_measured_only_while_a_fetch_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)

    async def story(disk: Disk) -> None:
        measuring = asyncio.create_task(disk.reservations.run())
        reserved = await disk.reservations.reserve(BODY, disk.ending)
        assert reserved is not None
        disk.used = DISK
        while disk.reservations.fits(NEED):  # noqa: ASYNC110  a measurement sets no event
            await asyncio.sleep(0)
        disk.reservations.give_back(reserved)
        for _ in range(3):  # Let the last measurement end.
            await asyncio.sleep(0)
        disk.used = 0
        for _ in range(10):
            await asyncio.sleep(0)
        assert not disk.reservations.fits(NEED)
        measuring.cancel()

    on(500 * MIB, story)
