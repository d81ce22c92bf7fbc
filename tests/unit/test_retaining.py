"""The leader's background work of forgetting: one bounded step of each kind at a look, then a rest, and on again."""

import asyncio

import pytest

from api.crawls.retention_sweeper import REST_S, RetentionSweeper
from shared.domain.errors import Permanent, Transient
from shared.domain.ops.config import HotConfig, MasterTuning, RetentionPart, master_tuning
from shared.domain.ops.retention import KEPT_BY_DEFAULT, RetainedKind, Retention
from shared.ports.retained import SweepResult


class Tables:
    """Remembers what is asked of it, and has so many steps of commands to forget."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.away = False
        self.asked: list[tuple[RetainedKind, str]] = []
        self.rules: list[Retention] = []

    async def forget(self, what: RetainedKind, rules: Retention, now_ms: int, place: str) -> SweepResult:
        self.asked.append((what, place))
        self.rules.append(rules)
        if self.away:
            raise Transient("the database is away")
        if what is RetainedKind.LETTERS:
            raise Permanent("never")
        if what is RetainedKind.COMMANDS and self.steps:
            self.steps -= 1
            return SweepResult(5, f"after {self.steps}")
        return SweepResult(0, "")


class Time:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def elapsed(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return int(self.now * 1000)


def test_a_walk_goes_on_where_it_was_and_rests_when_it_is_through() -> None:
    tables, clock = Tables(2), Time()
    retaining = RetentionSweeper(tables, lambda: KEPT_BY_DEFAULT, clock)

    async def looks(n: int) -> list[tuple[RetainedKind, str]]:
        tables.asked.clear()
        for _ in range(n):
            await retaining.once()
        return list(tables.asked)

    first = asyncio.run(looks(1))
    assert [what for what, _ in first] == list(RetainedKind), "one that fails for good keeps none of the others back"
    assert asyncio.run(looks(5)) == [(RetainedKind.COMMANDS, "after 1"), (RetainedKind.COMMANDS, "after 0")]
    clock.now += REST_S
    assert asyncio.run(looks(2)) == [(what, "") for what in RetainedKind]


def test_a_walk_that_the_database_broke_off_goes_on_where_it_was() -> None:
    """One over millions of hosts takes hours, and would never come to its end."""
    tables = Tables(2)
    retaining = RetentionSweeper(tables, lambda: KEPT_BY_DEFAULT, Time())

    async def story() -> None:
        await retaining.once()
        tables.away = True
        with pytest.raises(Transient):
            await retaining.once()
        tables.away = False
        tables.asked.clear()
        await retaining.once()

    asyncio.run(story())
    assert tables.asked == [(RetainedKind.COMMANDS, "after 1")]


def test_the_rules_are_those_of_the_hot_configuration_over_the_defaults() -> None:
    config = HotConfig(retention=RetentionPart(audit_days=7, revisions=2))
    tuning = master_tuning(config, MasterTuning())
    assert tuning.retention == Retention(audit_days=7, revisions=2)
    assert master_tuning(HotConfig(), tuning).retention == KEPT_BY_DEFAULT
