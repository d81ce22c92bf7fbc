"""The request and response bodies of schedules and their history."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from api.schemas.crawls import CrawlName, Labels
from api.schemas.model import ONE_LINE, WHOLE, Model, RequestModel, field, moment_of, when
from api.schemas.plans import DeclarationPlan, declaration_plan
from shared.domain.crawl.spec import LABEL, LABEL_WORDS
from shared.domain.crawl.state import Verb
from shared.domain.schedules.history import Firing, FiringOutcome
from shared.domain.schedules.spec import (
    MAX_CRON_CHARS,
    MAX_EVERY_S,
    MAX_JITTER_S,
    MAX_LATE_S,
    MIN_EVERY_S,
    CatchUp,
    Overlap,
    ScheduleProblem,
    ScheduleSpec,
    Window,
    problems_of,
)
from shared.domain.schedules.stored import MAX_SELECTED, StoredSchedule, UnreadableSchedule
from shared.domain.schedules.times import due_times, fires_at, jitter_problem, never_due

SHOWN: Final = 10
"""How many of the next firings are shown."""

CLOCK: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_Clock = Annotated[str, StringConstraints(pattern=CLOCK)]

ScheduleName = Annotated[
    str,
    StringConstraints(pattern=LABEL),
    Field(description=f"The schedule's name: {LABEL_WORDS}.", examples=["nightly"]),
]
ScheduledVerb = Literal["start", "refresh", "reset", "retry-failed", "pause", "resume"]
EXAMPLE: Final[dict[str, Any]] = {
    "selector": {"team": "search"}, "verb": "start", "cron": "30 2 * * *", "zone": "Europe/Berlin", "catch_up": "last",
}  # fmt: skip


class ScheduleWindow(RequestModel):
    """The hours of each day in which due times fire. A jitter or an outage can delay a firing beyond `end`."""

    start: _Clock = field("When it begins, as HH:MM in the schedule's zone. Included.", "22:00")
    end: _Clock = field("When it ends, excluded. If it is before `start`, the window spans midnight.", "06:00")


class ScheduleReplacement(RequestModel):
    """The declaration of a schedule: which crawls, which verb, and when. A PUT replaces the present one as a whole."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    crawl: CrawlName | None = Field(
        None, description="The crawl. Either this or `selector` is set. Default: unset.", examples=["docs"]
    )
    selector: Labels = Field(
        default_factory=dict,
        description=f"Labels that the crawls must have, at most {MAX_SELECTED} crawls.",
        examples=[{"team": "search"}],
    )
    verb: ScheduledVerb = field("What is applied to the crawls.", "start")
    cron: Annotated[str, StringConstraints(max_length=MAX_CRON_CHARS, pattern=ONE_LINE)] | None = Field(
        None,
        description="Minute, hour, day of month, month, day of week. Either this or `every_s` is set. Default: unset.",
        examples=["30 2 * * *"],
    )
    every_s: Annotated[int, Field(ge=MIN_EVERY_S, le=MAX_EVERY_S), WHOLE] | None = Field(
        None, description="An interval in seconds, counted from 1970-01-01T00:00:00Z. Default: unset.", examples=[3600]
    )
    zone: Annotated[str, StringConstraints(max_length=64, pattern=ONE_LINE)] = Field(
        "UTC", description="The IANA time zone of `cron` and `window`.", examples=["Europe/Berlin"]
    )
    window: ScheduleWindow | None = Field(
        None, description="The part of each day whose due times fire. Others are left out. Default: all day."
    )
    jitter_s: Annotated[int, Field(ge=0, le=MAX_JITTER_S), WHOLE] = Field(
        0,
        description="Each firing is delayed by up to this many seconds, always the same for one due time.",
        examples=[300],
    )
    overlap: Literal["skip", "queue"] = Field(
        "skip",
        description="What `start` and `reset` do while a run of the crawl is not over: `skip` drops the firing, "
        "`queue` lets one firing wait for the end.",
    )
    catch_up: Literal["none", "last"] = Field(
        "none",
        description="What becomes of due times that are more than `late_s` too late: `none` misses them all, `last` "
        "fires for the last of them.",
    )
    late_s: Annotated[int, Field(ge=1, le=MAX_LATE_S), WHOLE] = Field(
        120, description="A due time fires if it is at most this many seconds late.", examples=[600]
    )
    paused: bool = Field(False, description="True: nothing fires. Due times meanwhile are left out.")

    def spec(self) -> ScheduleSpec:
        """Return the declaration as the database stores it."""
        return ScheduleSpec(
            verb=Verb(self.verb),
            crawl=self.crawl,
            selector=dict(sorted(self.selector.items())),
            cron=self.cron,
            every_s=self.every_s,
            zone=self.zone,
            window=None if self.window is None else Window(self.window.start, self.window.end),
            jitter_s=self.jitter_s,
            overlap=Overlap(self.overlap),
            catch_up=CatchUp(self.catch_up),
            late_s=self.late_s,
        )


class ScheduleInput(ScheduleReplacement):
    """The body of a request that creates a schedule."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "nightly", **EXAMPLE}]})

    name: ScheduleName


class NextFiring(Model):
    """A future firing of a schedule.

    `due_at` is the time that the cron expression or the interval gives. The jitter delays the firing until `fires_at`.
    """

    due_at: datetime = field("The due time.", "2030-01-01T01:30:00Z")
    fires_at: datetime = field("When it fires: the due time and its jitter.", "2030-01-01T01:30:00Z")


class ScheduleSummary(Model):
    """A schedule in a list of schedules.

    If this master cannot read a schedule that a later version wrote, `unreadable` has the reason. The fields that say
    what the schedule does, and when, then have no value.
    """

    name: ScheduleName
    id: int = field("The schedule's number. It is never reused, even if the name is.", 3)
    unreadable: str | None = Field(
        None,
        description="Why this master cannot read the schedule: a later version wrote it. Null if it can.",
        examples=["its spec cannot be read: Invalid enum value 'replace' - at `$.overlap`"],
    )
    crawl: str | None = field("The crawl. Null if there is a selector.", "docs")
    selector: dict[str, str] = field("Labels that the crawls must have. Empty if there is a crawl.", {})
    verb: ScheduledVerb | None = field("What is applied to the crawls. Null if it is unreadable.", "start")
    cron: str | None = field("The cron expression. Null if there is an interval.", "30 2 * * *")
    every_s: int | None = field("The interval in seconds. Null if there is a cron expression.", None)
    zone: str | None = field("The IANA time zone. Null if it is unreadable.", "Europe/Berlin")
    window: ScheduleWindow | None = field("The part of each day whose due times fire. Null: all day.", None)
    jitter_s: int | None = field("The greatest delay of a firing in seconds. Null if it is unreadable.", 0)
    overlap: Overlap | None = field(
        "What a firing does while a run of the crawl is not over. Null if it is unreadable."
    )
    catch_up: CatchUp | None = field("What becomes of due times that are too late. Null if it is unreadable.")
    late_s: int | None = field("How late a due time may fire, in seconds. Null if it is unreadable.", 120)
    paused: bool = field("True: nothing fires.", False)
    next_at: datetime | None = field(
        "When it fires next. Null if it is paused or never fires again.", "2030-01-01T01:30:00Z"
    )
    last_due_at: datetime | None = field("The last due time that was handled.", "2029-12-31T01:30:00Z")
    created_at: datetime = field("When it was created.", "2029-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first-admin (76f4e1d9b2a0c3f5)")


class Schedule(ScheduleSummary):
    """A schedule with its next firings."""

    next_firings: list[NextFiring] = field(f"The next {SHOWN} firings, empty if it is paused.")
    warnings: list[str] = field("What keeps it from having an effect now.", ["there is no crawl 'docs'"])


class FiringEffect(Model):
    """What one firing of a schedule did to one crawl."""

    crawl: str = field("The crawl's name.", "docs")
    crawl_id: int | None = field("The crawl's number before the verb. Null if there was no such crawl.", 7)
    outcome: FiringOutcome = field("What became of it.")
    detail: str = field("The reason if the verb was not applied, else empty.", "the crawl is running")
    at: datetime = field("When.", "2030-01-01T01:30:00Z")
    command: str | None = field("The id of the command to the owners, see /v1/commands/{id}.", None)


class ScheduleFiring(Model):
    """An entry in the history of a schedule: the result of one due time, or of several missed due times in a row."""

    due_at: datetime = field("The due time.", "2030-01-01T01:30:00Z")
    at: datetime = field("When it was handled.", "2030-01-01T01:30:00Z")
    verb: ScheduledVerb = field("The verb that was due.", "start")
    outcome: FiringOutcome = field("What became of it: the best of what became of its crawls.")
    detail: str = field("The reason if the whole firing had no effect, else empty.", "")
    missed: int = field("How many due times in a row were missed, from `due_at` to `until`.", 0)
    until: datetime = field("The last of the missed due times, else the due time.", "2030-01-01T01:30:00Z")
    effects: list[FiringEffect] = field("What it did to each crawl.")


def schedule_problems(spec: ScheduleSpec, now_ms: int) -> list[ScheduleProblem]:
    """Return what is wrong with a declaration, each problem with its field. Return an empty list if it is valid.

    A schedule that is never due after `now_ms` (Unix ms) is not valid.
    """
    found = list(problems_of(spec))
    if found:
        return found
    return [problem for problem in (never_due(spec, now_ms), jitter_problem(spec, now_ms)) if problem is not None]


def summary_body(stored: StoredSchedule | UnreadableSchedule) -> ScheduleSummary:
    """Return a schedule as a list of schedules shows it."""
    if isinstance(stored, StoredSchedule):
        return ScheduleSummary(**_summary(stored))
    spec: dict[str, Any] = dict.fromkeys(
        ("verb", "cron", "every_s", "zone", "window", "jitter_s", "overlap", "catch_up", "late_s")
    )
    return ScheduleSummary(unreadable=stored.reason, crawl=stored.crawl, selector={}, **spec, **_row(stored))


def schedule_body(stored: StoredSchedule, warnings: list[str]) -> Schedule:
    """Return a schedule with its next firings, as the API shows it.

    `warnings`: sentences on why the schedule would have no effect now.
    """
    return Schedule(**_summary(stored), next_firings=list(_next(stored)), warnings=warnings)


def plan_body(stored: StoredSchedule | None, wanted: ScheduleReplacement, warnings: list[str]) -> DeclarationPlan:
    """Return what a PUT of `wanted` would change. `stored` is the present schedule, None if it does not exist.

    `warnings`: sentences on why the schedule would have no effect, such as a missing crawl.
    """
    before = None if stored is None else _declaration(summary_body(stored))
    return declaration_plan(before, _declaration(wanted), warnings)


def firing_body(firing: Firing) -> ScheduleFiring:
    """Return an entry of a schedule's history as the API shows it."""
    effects = [FiringEffect.of(each) for each in firing.effects]
    times = {"due_at": moment_of(firing.due_ms), "until": moment_of(firing.until_ms)}
    return ScheduleFiring.of(firing, verb=str(firing.verb), effects=effects, **times)


def _declaration(body: Model | RequestModel) -> dict[str, Any]:
    """Return the fields of a schedule that a client declares, as JSON values, without those that the server sets."""
    return body.model_dump(mode="json", include=set(ScheduleReplacement.model_fields))


def _next(stored: StoredSchedule) -> Iterator[NextFiring]:
    if stored.paused or stored.due_ms is None:
        return
    for due_ms in (stored.due_ms, *due_times(stored.spec, stored.due_ms, SHOWN - 1)):
        at_ms = fires_at(stored.spec, stored.schedule_id, due_ms)
        yield NextFiring(due_at=moment_of(due_ms), fires_at=moment_of(at_ms))


def _row(stored: StoredSchedule | UnreadableSchedule) -> dict[str, Any]:
    """Return the fields of a schedule that are not in its spec."""
    return {
        "name": stored.name,
        "id": stored.schedule_id,
        "paused": stored.paused,
        "next_at": None if stored.paused else when(stored.fires_ms),
        "last_due_at": when(stored.last_ms or None),
        "created_at": moment_of(stored.created_at_ms),
        "created_by": stored.created_by,
    }


def _summary(stored: StoredSchedule) -> dict[str, Any]:
    spec = stored.spec
    window = None if spec.window is None else ScheduleWindow(start=spec.window.start, end=spec.window.end)
    return _row(stored) | {
        "crawl": spec.crawl,
        "selector": dict(spec.selector),
        "verb": str(spec.verb),
        "cron": spec.cron,
        "every_s": spec.every_s,
        "zone": spec.zone,
        "window": window,
        "jitter_s": spec.jitter_s,
        "overlap": spec.overlap,
        "catch_up": spec.catch_up,
        "late_s": spec.late_s,
    }
