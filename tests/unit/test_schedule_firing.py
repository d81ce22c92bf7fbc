"""Each due time is handled once over drawn clock steps, stops and leaders, and a judge that notices when it is not."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.crawl.state import CrawlStatus, Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.schedules.firing import MAX_MISSED, Step, effect_of, outcome_of, step_of
from shared.domain.schedules.history import FiringOutcome
from shared.domain.schedules.spec import CatchUp, Overlap, ScheduleSpec
from shared.domain.schedules.times import due_times, fires_at, next_due

START = 1_800_000_000_000
ID = 7
Decide = Callable[[ScheduleSpec, int, int, int], Step | None]


@dataclass
class Stored:
    """What a database has of one schedule, and the transaction that moves it on."""

    due: int
    fired: list[tuple[int, int]] = field(default_factory=list)
    missed: list[tuple[int, int]] = field(default_factory=list)

    def commit(self, decided_on: int, step: Step, now: int) -> None:
        """Store a step, on condition that the due time is the one decided on."""
        if self.due != decided_on:
            return
        self.missed += [(due, now) for due in step.missed]
        self.fired += [] if step.fires is None else [(step.fires, now)]
        assert step.next_ms is not None
        self.due = step.next_ms


def judged(spec: ScheduleSpec, stored: Stored) -> list[str]:
    """Return what is wrong: a due time that was handled twice, left out, too early, too late or needlessly missed."""
    wrong = []
    handled = sorted([*stored.fired, *stored.missed])
    expected = due_times(spec, START, len(handled))
    if [due for due, _ in handled] != expected:
        wrong.append("not each due time once")
    for due, now in stored.fired:
        late = now - fires_at(spec, ID, due)
        if late < 0:
            wrong.append("too early")
        if late > spec.late_s * 1000 and (spec.catch_up is CatchUp.NONE or fires_at(spec, ID, after(spec, due)) <= now):
            wrong.append("too late")
    wrong += ["missed in time" for due, now in stored.missed if now - fires_at(spec, ID, due) <= spec.late_s * 1000]
    return wrong


def after(spec: ScheduleSpec, due: int) -> int:
    found = next_due(spec, due)
    assert found is not None
    return found


def run(spec: ScheduleSpec, moves: list[tuple[int, int, bool]], decide: Decide = step_of) -> Stored:
    """Let leaders act: at each move time passes, the clock of the acting leader steps, and a second may decide first.

    A leader that decided may be stopped, and commit its step only after the next leader's.
    """
    stored = Stored(after(spec, START))
    real, delayed = START, None
    for passed_s, step_s, stops in moves:
        real += passed_s * 1000
        for _ in range(50):
            now = max(START, real + step_s * 1000)
            decided_on = stored.due
            step = decide(spec, ID, decided_on, now)
            if step is None:
                break
            if stops and delayed is None:
                delayed = decided_on, step, now
                continue
            stored.commit(decided_on, step, now)
        if delayed is not None:
            stored.commit(*delayed)
            delayed = None
    return stored


SPECS = st.builds(
    ScheduleSpec,
    verb=st.just(Verb.START),
    crawl=st.just("docs"),
    every_s=st.sampled_from([60, 300, 3_600]),
    jitter_s=st.sampled_from([0, 59]),
    catch_up=st.sampled_from(CatchUp),
    late_s=st.sampled_from([1, 120, 7_200]),
)
MOVES = st.lists(st.tuples(st.integers(0, 4_000), st.integers(-60, 60), st.booleans()), min_size=1, max_size=30)


@given(SPECS, MOVES)
def test_due_time_is_handled_once_over_clock_steps_and_leaders(
    spec: ScheduleSpec, moves: list[tuple[int, int, bool]]
) -> None:
    assert judged(spec, run(spec, moves)) == []


def _twice(spec: ScheduleSpec, schedule_id: int, due: int, now: int) -> Step | None:
    """Take the next due time from the clock: after a step back the same one comes again."""
    step = step_of(spec, schedule_id, due, now)
    if step is None or step.fires is None:
        return step
    again = after(spec, now - 90_000)
    return Step(step.missed, step.fires, again, again)


def _skipping(spec: ScheduleSpec, schedule_id: int, due: int, now: int) -> Step | None:
    """Take the next due time from the clock: those before it are forgotten."""
    step = step_of(spec, schedule_id, due, now)
    return step and Step(step.missed, step.fires, after(spec, now), after(spec, now))


def _silent(spec: ScheduleSpec, schedule_id: int, due: int, now: int) -> Step | None:
    """Leave out what was missed."""
    step = step_of(spec, schedule_id, due, now)
    return step and Step((), step.fires, step.next_ms, step.next_fires_ms)


def _eager(spec: ScheduleSpec, schedule_id: int, due: int, now: int) -> Step | None:
    """Fire a minute too early."""
    return step_of(spec, schedule_id, due, now + 60_000)


@pytest.mark.parametrize("build", [_twice, _skipping, _silent, _eager])
def test_judge_catches_a_build_that_fires_twice_or_skips(build: Decide) -> None:
    spec = ScheduleSpec(Verb.START, crawl="docs", every_s=60)
    moves = [(61, 0, False), (30, 30, False), (600, 0, False), (45, -30, True), (20, 0, False), (90, 0, False)]
    assert judged(spec, run(spec, moves)) == []
    assert judged(spec, run(spec, moves, build)) != []


def test_due_times_of_a_gap_fire_by_the_rule_for_catching_up() -> None:
    for catch_up, fired in ((CatchUp.NONE, None), (CatchUp.LAST, 6)):
        spec = ScheduleSpec(Verb.START, crawl="docs", every_s=3_600, catch_up=catch_up)
        due = due_times(spec, START, 8)
        step = step_of(spec, ID, due[0], due[6] + 1_800_000)
        assert step is not None
        assert step.fires == (None if fired is None else due[fired])
        assert list(step.missed) == due[: 7 if fired is None else fired]
        assert step.next_ms == due[7]


def test_long_gap_is_passed_in_bounded_steps() -> None:
    spec = ScheduleSpec(Verb.START, crawl="docs", every_s=60, catch_up=CatchUp.LAST)
    due, now, steps = after(spec, START), START + 1_300 * 60_000, []
    while (step := step_of(spec, ID, due, now)) is not None:
        steps.append((len(step.missed), step.fires is not None))
        assert step.next_ms is not None
        due = step.next_ms
    assert steps[:2] == [(MAX_MISSED, False), (MAX_MISSED, False)]
    assert sum(missed + fires for missed, fires in steps) == 1_300


@pytest.mark.parametrize(
    ("verb", "state", "overlap", "waiting", "outcome"),
    [
        (Verb.START, CrawlState.FINISHED, Overlap.SKIP, False, FiringOutcome.FIRED),
        (Verb.START, CrawlState.RUNNING, Overlap.SKIP, False, FiringOutcome.SKIPPED),
        (Verb.START, CrawlState.PAUSED, Overlap.QUEUE, False, FiringOutcome.QUEUED),
        (Verb.START, CrawlState.RUNNING, Overlap.QUEUE, True, FiringOutcome.SKIPPED),
        (Verb.REFRESH, CrawlState.FINISHED, Overlap.SKIP, False, FiringOutcome.FIRED),
        (Verb.REFRESH, CrawlState.RUNNING, Overlap.SKIP, False, FiringOutcome.SKIPPED),
        (Verb.REFRESH, CrawlState.SEEDING, Overlap.QUEUE, False, FiringOutcome.QUEUED),
        (Verb.RESET, CrawlState.SEEDING, Overlap.SKIP, False, FiringOutcome.SKIPPED),
        (Verb.RESET, CrawlState.CREATED, Overlap.SKIP, False, FiringOutcome.FIRED),
        (Verb.RETRY_FAILED, CrawlState.RUNNING, Overlap.SKIP, False, FiringOutcome.FIRED),
        (Verb.PAUSE, CrawlState.RUNNING, Overlap.SKIP, False, FiringOutcome.FIRED),
        (Verb.PAUSE, CrawlState.FINISHED, Overlap.QUEUE, False, FiringOutcome.REFUSED),
        (Verb.RESUME, CrawlState.PAUSED, Overlap.SKIP, False, FiringOutcome.FIRED),
    ],
)
def test_effect_depends_on_state_and_overlap(
    verb: Verb, state: CrawlState, overlap: Overlap, waiting: bool, outcome: FiringOutcome
) -> None:
    effect = effect_of(verb, overlap, CrawlStatus(state), waiting=waiting)
    assert effect.outcome is outcome
    assert (effect.detail == "") == (outcome is FiringOutcome.FIRED)


def test_outcome_of_a_firing_is_the_best_of_its_crawls() -> None:
    ranked = [FiringOutcome.FIRED, FiringOutcome.QUEUED, FiringOutcome.REFUSED, FiringOutcome.SKIPPED]
    for place, best in enumerate(ranked):
        assert outcome_of(ranked[place:]) is best
    assert outcome_of([]) is FiringOutcome.REFUSED
