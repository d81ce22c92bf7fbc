"""A backup relies on its hold for as long as owners heed it and no longer; what it cannot know it takes for lost."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from cli.admin import purge_hold as holding
from cli.admin.purge_hold import PurgeHold, held
from shared.domain.errors import Transient
from shared.domain.frontier.purge_holds import HOLD_S, HOLDER_MARGIN_S

T = TypeVar("T")


class Clock:
    """Stands where it is put."""

    now = 1000.0

    def elapsed(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return 0


class Database:
    """Where a hold is written: each write does what the test says, the others succeed."""

    def __init__(self, *writes: Callable[[], object]) -> None:
        self._writes = list(writes)
        self.written = 0

    async def write(self, transaction: Callable[[Any], T]) -> T:
        self.written += 1
        found: Any = self._writes.pop(0)() if self._writes else True
        return found  # type: ignore[no-any-return]  # what the test says

    async def read(self, query: Callable[[Any], T]) -> T:
        raise AssertionError("a holder reads nothing")

    async def glance(self, query: object, **keys: Any) -> Sequence[Any]:
        raise AssertionError("a holder reads nothing")

    async def data_version(self) -> None:
        return None

    def silent_s(self) -> float:
        raise AssertionError("not asked for")

    def disk_full(self) -> bool:
        raise AssertionError("a holder sends nothing out")

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def beats_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "BEAT_S", 0.0)


def away() -> object:
    raise Transient("the database is away", retry_in=0.0)


async def forever() -> None:
    await asyncio.Event().wait()


def test_process_stopped_beyond_beat_lifetime_loses_its_hold() -> None:
    async def story() -> None:
        clock = Clock()
        hold = PurgeHold(Database(), clock)
        with pytest.raises(Transient, match="was lost"):
            hold.check()  # none was taken
        await hold.take()
        hold.check()
        clock.now += HOLD_S - HOLDER_MARGIN_S
        with pytest.raises(Transient, match="was lost"):
            hold.check()

    asyncio.run(story())


def test_a_beat_that_came_too_late_does_not_make_up_for_the_time_without_one() -> None:
    async def story() -> None:
        clock = Clock()

        def hang() -> bool:
            clock.now += HOLD_S
            return True

        database = Database(lambda: None, hang)
        with pytest.raises(Transient, match="was lost"):
            async with asyncio.timeout(30), held(database, clock):
                await forever()
        assert database.written == 3, "taken, the late beat, released"

    asyncio.run(story())


def test_a_hold_that_somebody_removed_is_lost_at_once() -> None:
    async def story() -> None:
        with pytest.raises(Transient, match="removed"):
            async with asyncio.timeout(30), held(Database(lambda: None, lambda: False), Clock()):
                await forever()

    asyncio.run(story())


def test_a_database_that_is_away_for_a_beat_or_two_costs_nothing() -> None:
    async def story() -> None:
        database = Database(lambda: None, away, away, lambda: True)
        async with asyncio.timeout(30), held(database, Clock()) as hold:
            while database.written < 6:  # noqa: ASYNC110  # beats have no event of their own
                await asyncio.sleep(0)
            hold.check()

    asyncio.run(story())


def test_a_hold_that_cannot_be_released_is_no_failure_of_the_backup() -> None:
    """Owners heed a silent one no longer than its time."""

    async def story() -> None:
        class Lost(Database):
            over = False

            async def write(self, transaction: Callable[[Any], T]) -> T:
                return await super().write(transaction) if not self.over else away()  # type: ignore[return-value]  # it raises

        database = Lost()
        async with held(database, Clock()):
            database.over = True

    asyncio.run(story())
