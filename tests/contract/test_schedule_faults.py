"""Each due time of schedules fires once over drawn faults, on every engine. The judge catches builds that are wrong.

`ORB_TEST_SEED=n` repeats the draws of a run. The table of docs/reliability.md is made by
`python -m tests.support.simulation.schedule_table`.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from sqlalchemy import Connection, delete, insert, update

from shared.adapters.sql.catalog import declared, firings
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.access_schema import schedule_effects, schedule_firings, schedules
from shared.adapters.sql.engine.executor import Executor
from shared.domain.ids import Term
from shared.domain.schedules.firing import Step, outcome_of
from shared.domain.schedules.history import FiringOutcome, HistoryChange
from shared.domain.schedules.stored import StoredSchedule
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import Tables
from tests.support.simulation.schedule_faults import FaultedSchedules, FaultRun, ScheduleFault, struck_on_sqlite

Opened = Callable[[Executor], SqlSchedules]
Runs = Callable[[int, int], FaultRun]


@pytest.fixture
def struck(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> Runs:
    """`struck(seed, count)` strikes `count` drawn faults at schedules in a new database, and returns what became."""

    def run(seed: int, count: int) -> FaultRun:
        async def whole() -> FaultRun:
            async with new_tables() as tables:
                return await FaultedSchedules(executor_of(tables), seed).strike(count)

        return asyncio.run(whole())

    return run


@pytest.mark.long
def test_each_due_time_fires_once_over_drawn_faults(struck: Runs, short: bool) -> None:
    seed = int(os.environ.get("ORB_TEST_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"ORB_TEST_SEED={seed}")
    run = struck(seed, 25 if short else 60)
    assert run.wrong() == []
    became = Counter(each.became for each in run.verdicts)
    assert became["fired"] > 60, became


@pytest.mark.slow
def test_each_due_time_fires_once_over_a_thousand_faults() -> None:
    runs = [asyncio.run(struck_on_sqlite(seed, 50)) for seed in range(1, 21)]
    assert [(run.seed, each) for run in runs for each in run.wrong()] == []
    drawn = Counter(each.fault for run in runs for each in run.drawn)
    assert sum(drawn.values()) == 1_000
    assert min(drawn[fault] for fault in ScheduleFault) > 50, "too few of one kind"


class OneByOne(SqlSchedules):
    """A build that fires each schedule by itself."""

    async def fire_all(
        self, term: Term, steps: Sequence[tuple[StoredSchedule, Step]], now_ms: int, partitions: int
    ) -> Sequence[HistoryChange | None]:
        return [await self.fire(term, due, step, now_ms, partitions) for due, step in steps]


class EffectFirst(OneByOne):
    """A build that applies the verb in a transaction of its own, before the one that moves the due time on."""

    async def fire(
        self, term: Term, due: StoredSchedule, step: Step, now_ms: int, partitions: int
    ) -> HistoryChange | None:
        outcome = await self._run.write(lambda c: effect(c, due, step, now_ms, partitions))

        def move(connection: Connection) -> None:
            if moved(connection, term, due, step):
                lines(connection, due, step, now_ms, outcome)

        await self._run.write(move)
        return None


class MoveFirst(OneByOne):
    """A build that moves the due time on, and applies the verb in a second transaction."""

    async def fire(
        self, term: Term, due: StoredSchedule, step: Step, now_ms: int, partitions: int
    ) -> HistoryChange | None:
        def move(connection: Connection) -> bool:
            lines(connection, due, step, now_ms, FiringOutcome.FIRED)
            return moved(connection, term, due, step)

        if await self._run.write(move):
            await self._run.write(lambda c: corrected(c, due, step, effect(c, due, step, now_ms, partitions)))
        return None


class Unfenced(OneByOne):
    """A build that fires in one transaction, whatever the term and the stored due time are by then."""

    async def fire(
        self, term: Term, due: StoredSchedule, step: Step, now_ms: int, partitions: int
    ) -> HistoryChange | None:
        def whole(connection: Connection) -> None:
            outcome = effect(connection, due, step, now_ms, partitions)
            values = {"due_ms": step.next_ms, "fires_ms": step.next_fires_ms}
            connection.execute(update(schedules).where(schedules.c.schedule_id == due.schedule_id).values(**values))
            lines(connection, due, step, now_ms, outcome)

        await self._run.write(whole)
        return None


def effect(connection: Connection, due: StoredSchedule, step: Step, now_ms: int, partitions: int) -> FiringOutcome:
    """Apply the verb of the due time that fires, if one does. Return the outcome."""
    if step.fires is None:
        return FiringOutcome.MISSED
    names = firings.crawls_of(connection, due.spec)
    writing = firings.Writing(connection, dict(declared.locked(connection, names)), now_ms, partitions)
    made = [firings.apply_verb(writing, due, due.spec.verb, name, step.fires) for name in names]
    here = (schedule_effects.c.schedule_id == due.schedule_id) & (schedule_effects.c.due_ms == step.fires)
    connection.execute(delete(schedule_effects).where(here))
    key = {"schedule_id": due.schedule_id, "due_ms": step.fires}
    connection.execute(insert(schedule_effects), [key | firings.effect_columns(each) for each in made])
    return outcome_of([each.outcome for each in made])


def moved(connection: Connection, term: Term, due: StoredSchedule, step: Step) -> bool:
    """Move the schedule on under its fence and its condition. Return False if it is not as it was."""
    firings.pass_fence(connection, term)
    return bool(firings.take(connection, [(due, step)]))


def lines(connection: Connection, due: StoredSchedule, step: Step, now_ms: int, outcome: FiringOutcome) -> None:
    known = firings.known_lines(connection, [(due, step)])
    made = [firings.missed_line(due, step.missed, now_ms)] if step.missed else []
    if step.fires is not None:
        made.append(firings.history_line(due, step.fires, now_ms, outcome))
    firings.write_lines(connection, [line for line in made if (line.schedule_id, line.due_ms) not in known])


def corrected(connection: Connection, due: StoredSchedule, step: Step, outcome: FiringOutcome) -> None:
    here = (schedule_firings.c.schedule_id == due.schedule_id) & (schedule_firings.c.due_ms == step.fires)
    connection.execute(update(schedule_firings).where(here).values(outcome=outcome))


LOST = "the history has it as fired, and the audit log does not"


@pytest.mark.parametrize("build", [EffectFirst, MoveFirst, Unfenced])
def test_judge_accepts_a_wrong_build_that_no_fault_strikes(build: Opened) -> None:
    """So it is the fault that shows what is wrong with it."""
    assert asyncio.run(struck_on_sqlite(1, 0, build)).wrong() == []


@pytest.mark.parametrize(
    ("build", "wrong"), [(EffectFirst, "fired twice"), (Unfenced, "fired twice"), (MoveFirst, LOST)]
)
def test_judge_catches_a_build_that_is_wrong(build: Opened, wrong: str) -> None:
    found = Counter[str]()
    for seed in range(1, 11):
        found.update(each.wrong for each in asyncio.run(struck_on_sqlite(seed, 30, build)).wrong())
        if found[wrong]:
            return
    raise AssertionError(f"the judge found {found}")
