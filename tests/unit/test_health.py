"""When a master is fit to lead: by what its engines and its loop say, without changing its mind to and fro."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from api.members.health import (
    HealthLimits,
    HealthMonitor,
    HealthState,
    LoopStalled,
    Observation,
    ProbeAnswered,
    ProbeMissed,
    health_after,
)
from shared.adapters.local.clock import SystemClock
from shared.domain.errors import Transient

RULES = HealthLimits(silent_s=6.0, stalled_s=5.0, well_s=4.0)
CLOCK = SystemClock()
ENGINES = ("database", "nats")

steps = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.sampled_from([*map(ProbeAnswered, ENGINES), *map(ProbeMissed, ENGINES), LoopStalled(3.0), LoopStalled(5.0)]),
    ),
    max_size=80,
)


def followed(seen: Sequence[tuple[float, Observation]]) -> list[tuple[float, Observation, HealthState]]:
    """Each observation with its time and the condition after it; `seen` holds the time since the one before."""
    now, condition, found = 0.0, HealthState(), []
    for wait_s, observation in seen:
        now += wait_s
        condition = health_after(condition, observation, now, RULES)
        found.append((now, observation, condition))
    return found


def again(times: int, every_s: float, observation: Observation) -> list[tuple[float, Observation]]:
    return [(every_s, observation)] * times


def ailments(*seen: tuple[float, Observation]) -> list[str | None]:
    return [condition.ailment for _, _, condition in followed(seen)]


def test_engine_silent_for_long_is_unhealthy_and_briefly_is_not() -> None:
    misses = again(6, 1.0, ProbeMissed("nats"))
    assert ailments((0.0, ProbeAnswered("nats")), *misses[:5])[-1] is None
    assert ailments((0.0, ProbeAnswered("nats")), *misses)[-1] == "nats is silent for 6.0 s"
    assert ailments((0.0, ProbeAnswered("nats")), *misses[:5], (0.1, ProbeAnswered("nats")), *misses[:5])[-1] is None


def test_fit_again_takes_a_while_in_which_nothing_went_wrong() -> None:
    sick = [*again(1, 0.0, ProbeAnswered("nats")), *again(3, 2.0, ProbeMissed("nats"))]
    well = again(9, 1.0, ProbeAnswered("nats"))
    assert ailments(*sick, *well[:4])[-1] is None
    assert ailments(*sick, *well[:3])[-1] is not None
    assert ailments(*sick, *well[:3], (0.9, ProbeMissed("nats")), *well[:3])[-1] is not None, "a relapse"


def test_a_loop_that_stood_still_makes_unfit_and_a_hiccup_does_not() -> None:
    answers = again(4, 1.0, ProbeAnswered("nats"))
    assert ailments((0.0, LoopStalled(4.9)))[-1] is None
    assert ailments((0.0, LoopStalled(5.1)))[-1] == "the loop stood still for 5.1 s"
    assert ailments((0.0, LoopStalled(5.1)), *answers)[-1] is None


def test_fit_again_needs_a_word_from_every_engine() -> None:
    start = [*again(1, 0.0, ProbeAnswered("nats")), *again(1, 0.0, ProbeAnswered("database"))]
    sick = [*start, *again(2, 3.0, ProbeMissed("nats"))]
    well = again(9, 1.0, ProbeAnswered("nats"))
    assert ailments(*sick, *well)[-1] is not None
    assert ailments(*sick, *well, (0.0, ProbeAnswered("database")), (0.0, ProbeAnswered("nats")))[-1] is None


@given(steps)
def test_nobody_is_fit_again_within_the_time_that_all_must_be_well(seen: list[tuple[float, Observation]]) -> None:
    unfit_at = None
    for now, _, condition in followed(seen):
        if condition.ailment is not None:
            unfit_at = now if unfit_at is None else unfit_at
        elif unfit_at is not None:
            assert now - unfit_at >= RULES.well_s
            unfit_at = None


@given(steps)
def test_fit_is_who_heard_of_every_engine_in_time_and_never_stood_still(seen: list[tuple[float, Observation]]) -> None:
    """Whatever else happens: who is fit has no engine silent for too long, as far as it was asked."""
    answered: dict[str, float] = {}
    for now, observation, condition in followed(seen):
        match observation:
            case ProbeAnswered(engine):
                answered[engine] = now
            case ProbeMissed(engine):
                if now - answered.setdefault(engine, now) >= RULES.silent_s:
                    assert condition.ailment is not None
            case LoopStalled(seconds):
                assert seconds < RULES.stalled_s or condition.ailment is not None


def test_an_engine_that_goes_away_and_comes_back_is_noticed_both_times() -> None:
    async def story() -> None:
        away = asyncio.Event()

        async def probe() -> None:
            if away.is_set():
                raise Transient("away")

        health = HealthMonitor({"nats": probe}, CLOCK, HealthLimits(0.05, 5.0, 0.05), every_s=0.005)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            running = group.create_task(health.run())
            await health.fit()
            away.set()
            assert (await health.unfit()).startswith("nats is silent")
            away.clear()
            await health.fit()
            running.cancel()

    asyncio.run(story())


def test_an_engine_that_never_answers_its_probe_is_silent() -> None:
    async def story() -> None:
        async def probe() -> None:
            await asyncio.Event().wait()

        health = HealthMonitor({"nats": probe}, CLOCK, HealthLimits(0.1, 5.0, 0.05), every_s=0.005)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            running = group.create_task(health.run())
            assert (await health.unfit()).startswith("nats is silent")
            running.cancel()

    asyncio.run(story())


def test_engine_whose_probe_waits_behind_other_work_is_not_silent() -> None:
    """A probe that finds every connection in use says nothing about a database that answers all the others."""

    async def story() -> None:
        busy, asked = asyncio.Event(), asyncio.Event()
        busy.set()

        async def probe() -> None:
            asked.set()
            await asyncio.Event().wait()

        health = HealthMonitor(
            {"database": probe},
            CLOCK,
            HealthLimits(0.1, 60.0, 0.05),
            every_s=0.005,
            silent_s={"database": lambda: 0.0 if busy.is_set() else 60.0},
        )
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            running = group.create_task(health.run())
            for _ in range(5):
                asked.clear()
                await asked.wait()
                assert health.ailment is None
            busy.clear()
            assert (await health.unfit()).startswith("database is silent")
            running.cancel()

    asyncio.run(story())
