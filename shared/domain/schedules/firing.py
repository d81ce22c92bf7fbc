"""Decide which due times of a schedule fire and which are missed, and what a firing does to each crawl. No I/O.

A schedule has one next due time, which the database stores. `step_of` decides if it fires, and computes the one after
it. Both results are stored in one transaction, on condition that the stored due time is still the same. So each due
time is processed once, whatever the clocks of the leaders show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shared.domain.crawl.state import CrawlStatus, IllegalTransition, Verb, status_after
from shared.domain.frontier.states import CrawlState
from shared.domain.schedules.history import FiringOutcome
from shared.domain.schedules.spec import BEGINS_RUN, CatchUp, Overlap, ScheduleSpec
from shared.domain.schedules.times import fires_at, next_due

MAX_MISSED: Final = 500
"""The maximum number of missed due times in one Step. Further ones go into the next steps.

The history has one line for the missed due times of each step."""

_RUNS: Final = frozenset({CrawlState.SEEDING, CrawlState.RUNNING, CrawlState.PAUSED})


@dataclass(frozen=True, slots=True)
class Step:
    """A decision about the next due times of a schedule. All times are Unix ms.

    - `missed`: due times that do not fire, in order.
    - `fires`: the due time that fires now, None if none does.
    - `next_ms`: the schedule's new next due time. None: the schedule is never due again.
    - `next_fires_ms`: when the due time `next_ms` fires: at most the schedule's `jitter_s` seconds after `next_ms`.
      None if `next_ms` is None.
    """

    missed: Sequence[int]
    fires: int | None
    next_ms: int | None
    next_fires_ms: int | None


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a firing on one crawl. `detail`: why the verb is not applied now, "" if it is applied."""

    outcome: FiringOutcome
    detail: str = ""


def step_of(spec: ScheduleSpec, schedule_id: int, due_ms: int, now_ms: int) -> Step | None:
    """Decide what a schedule does at `now_ms`: which of its due times are missed, and which one fires.

    `due_ms`: the schedule's stored next due time. All times are Unix ms.

    - If `due_ms` fires later than `now_ms`: return None. The schedule has nothing to do yet. The jitter may delay a
      firing, so `due_ms` itself may have passed (`fires_at`).
    - Otherwise: return the decision on `due_ms` and the due times after it. At most one of them fires.

    Example: a schedule is due every hour, without jitter. A due time is missed if it is more than 2 minutes late.
    `due_ms` is 10:00, and `now_ms` is 12:01. Then 10:00 and 11:00 are missed, 12:00 fires, and `next_ms` is 13:00.

    If `next_ms` of the result is already in the past, call the function again with `next_ms` as `due_ms`.
    """
    if fires_at(spec, schedule_id, due_ms) > now_ms:
        return None
    late: list[int] = []
    due: int | None = due_ms
    while due is not None and len(late) < MAX_MISSED and _is_late(spec, schedule_id, due, now_ms):
        late.append(due)
        due = next_due(spec, due)
    if due is not None and fires_at(spec, schedule_id, due) <= now_ms:
        if len(late) == MAX_MISSED:  # it may be late, too: the next step decides
            return _step(spec, schedule_id, late, None, due)
        return _step(spec, schedule_id, late, due, next_due(spec, due))
    if spec.catch_up is CatchUp.LAST:
        return _step(spec, schedule_id, late[:-1], late[-1], due)
    return _step(spec, schedule_id, late, None, due)


def effect_of(verb: Verb, overlap: Overlap, now: CrawlStatus, *, waiting: bool) -> Effect:
    """Return the effect of a firing with this verb on a crawl with the status `now`.

    `waiting`: an earlier firing of the same schedule already waits for the end of the crawl's run.
    """
    if verb in BEGINS_RUN and now.state in _RUNS:
        if overlap is Overlap.SKIP:
            return Effect(FiringOutcome.SKIPPED, f"the crawl is {now.state}")
        if waiting:
            return Effect(FiringOutcome.SKIPPED, f"the crawl is {now.state}, and an earlier firing waits for its end")
        return Effect(FiringOutcome.QUEUED, f"the crawl is {now.state}")
    try:
        status_after(verb, now)
    except IllegalTransition as error:
        return Effect(FiringOutcome.REFUSED, str(error))
    return Effect(FiringOutcome.FIRED)


def outcome_of(effects: Sequence[FiringOutcome]) -> FiringOutcome:
    """Return the outcome of a firing as a whole: the first of FIRED, QUEUED, REFUSED, SKIPPED that occurs in `effects`.

    `effects` are the outcomes for its crawls. Without crawls it is REFUSED.
    """
    for outcome in (FiringOutcome.FIRED, FiringOutcome.QUEUED, FiringOutcome.REFUSED):
        if outcome in effects:
            return outcome
    return FiringOutcome.SKIPPED if effects else FiringOutcome.REFUSED


def _is_late(spec: ScheduleSpec, schedule_id: int, due_ms: int, now_ms: int) -> bool:
    return now_ms - fires_at(spec, schedule_id, due_ms) > spec.late_s * 1000


def _step(spec: ScheduleSpec, schedule_id: int, missed: Sequence[int], fires: int | None, next_ms: int | None) -> Step:
    at = None if next_ms is None else fires_at(spec, schedule_id, next_ms)
    return Step(missed, fires, next_ms, at)
