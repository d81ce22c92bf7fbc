"""/v1/schedules: when verbs are applied to crawls, and the outcome of each due time."""

import asyncio
from typing import Annotated, Final

from fastapi import Path, Query, Response

from api.http.deps import (
    CONDITIONAL,
    UNCHANGED,
    By,
    Expected,
    Idempotent,
    IfMatch,
    OnlyNew,
    Page,
    Served,
    Services,
    check_conditions,
    etag,
    problems,
)
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.crawls import NAME
from api.schemas.model import Listing
from api.schemas.plans import DeclarationPlan
from api.schemas.schedules import (
    Schedule,
    ScheduleFiring,
    ScheduleInput,
    ScheduleReplacement,
    ScheduleSummary,
    firing_body,
    plan_body,
    schedule_body,
    schedule_problems,
    summary_body,
)
from shared.domain.crawl.state import DECIDED_BY_DESIRED
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import StoredSchedule
from shared.ports.catalog import Missing

router = Router(prefix="/v1/schedules", tags=["schedules"])

ScheduleName = Annotated[str, Path(pattern=NAME)]
_LATEST: Final = 2**62
"""A time in Unix ms that is later than every due time.

A request for the history of a schedule gets due times before a given time, newest first. This time stands for "no
limit": the first page of the history begins with the newest due time.
"""


@router.get("", summary="List schedules")
async def list_schedules(
    served: Served,
    page: Page,
    response: Response,
    crawl: Annotated[str | None, Query(pattern=NAME, description="Only schedules that name this crawl.")] = None,
) -> Listing[ScheduleSummary]:
    """List schedules by name."""
    rows = await served.schedules.listing(after=page.place(str, ""), max_count=page.max_count + 1, crawl=crawl)
    shown = rows[: page.max_count]
    place = shown[-1].name if len(rows) > page.max_count else None
    return Listing(items=[summary_body(each) for each in shown], next=page.next(place, response))


@router.post(
    "", status_code=201, summary="Create a schedule",
    responses=problems(ProblemKind.EXISTS, ProblemKind.FULL),
)  # fmt: skip
async def create_schedule(
    wanted: ScheduleInput, served: Served, by: By, repeatable: Idempotent, response: Response
) -> Schedule:
    """Create a schedule. Its first due time is in the future.

    A repeated request with the same Idempotency-Key does not create another schedule.
    """
    spec, now_ms = await _checked(wanted, served), served.clock.unix_ms()
    stored = await served.schedules.create(
        wanted.name, spec, paused=wanted.paused, actor=by, now_ms=now_ms, repeatable=repeatable
    )
    response.headers["Location"] = f"/v1/schedules/{stored.name}"
    return await _body(stored, served, response)


@router.get(
    "/{schedule}", summary="Get a schedule", dependencies=[CONDITIONAL],
    responses={**UNCHANGED, **problems(404)},
)  # fmt: skip
async def get_schedule(schedule: ScheduleName, served: Served, response: Response) -> Schedule:
    """Return a schedule and its next due times."""
    return await _body(await served.schedules.schedule(schedule), served, response)


@router.put(
    "/{schedule}", summary="Create or replace a schedule",
    responses={201: {"model": Schedule, "description": "It was created."}, **problems(404, ProblemKind.FULL, 412)},
)  # fmt: skip
async def put_schedule(
    schedule: ScheduleName,
    wanted: ScheduleReplacement,
    served: Served,
    by: By,
    expected: IfMatch,
    new: OnlyNew,
    response: Response,
) -> Schedule:
    """Create the schedule, or replace it.

    If nothing differs, nothing changes. If its times change, the next due time is the first one after this request. Due
    times before the request are skipped.
    """
    spec, now_ms = await _checked(wanted, served), served.clock.unix_ms()
    check_conditions(new, expected)
    stored, created = await served.schedules.put(
        schedule, spec, paused=wanted.paused, expected=expected, new=new, actor=by, now_ms=now_ms
    )
    response.status_code = 201 if created else 200
    if created:
        response.headers["Location"] = f"/v1/schedules/{schedule}"
    return await _body(stored, served, response)


@router.post("/{schedule}/plan", summary="Plan a change of a schedule")
async def plan_schedule(schedule: ScheduleName, wanted: ScheduleReplacement, served: Served) -> DeclarationPlan:
    """Return what a PUT of the schedule would change, without changing anything. The request is validated as for a PUT.

    Two faults only cause a warning in the plan, because the crawl may be created or changed before the PUT:

    - The crawl does not exist.
    - The verb starts or stops the crawl, but the crawl's `desired` decides whether the crawl runs.
    """
    spec = wanted.spec()
    await _check(spec, served)
    try:
        stored = await served.schedules.schedule(schedule)
    except Missing:
        stored = None
    return plan_body(stored, wanted, _warnings(await _refused(spec, served), "create it before the schedule"))


@router.delete("/{schedule}", status_code=204, summary="Delete a schedule", responses=problems(404, 412))
async def delete_schedule(schedule: ScheduleName, served: Served, by: By, expected: Expected) -> None:
    """Delete a schedule and its history. Crawls that it has started continue."""
    await served.schedules.delete(schedule, expected=expected, actor=by, now_ms=served.clock.unix_ms())


@router.post("/{schedule}/pause", summary="Pause a schedule", responses=problems(404, 412))
async def pause_schedule(
    schedule: ScheduleName, served: Served, by: By, expected: Expected, response: Response
) -> Schedule:
    """Pause a schedule: apply no verb until it is resumed. A repeated request changes nothing."""
    return await _paused(schedule, True, served, by, expected, response)


@router.post("/{schedule}/resume", summary="Resume a schedule", responses=problems(404, 412))
async def resume_schedule(
    schedule: ScheduleName, served: Served, by: By, expected: Expected, response: Response
) -> Schedule:
    """Resume a schedule from the next due time on. Due times during the pause are skipped.

    A repeated request changes nothing.
    """
    return await _paused(schedule, False, served, by, expected, response)


@router.get("/{schedule}/history", summary="List what became of due times", responses=problems(404))
async def list_firings(
    schedule: ScheduleName, served: Served, page: Page, response: Response
) -> Listing[ScheduleFiring]:
    """List the outcomes of the due times of a schedule, newest first."""
    stored = await served.schedules.schedule(schedule)
    before_ms = page.place(int, _LATEST)
    rows = await served.schedules.history(stored.schedule_id, before_ms=before_ms, max_count=page.max_count + 1)
    shown = rows[: page.max_count]
    place = shown[-1].due_ms if len(rows) > page.max_count else None
    return Listing(items=[firing_body(each) for each in shown], next=page.next(place, response))


async def _checked(wanted: ScheduleReplacement, served: Services) -> ScheduleSpec:
    """Return the schedule in the request.

    Raise ApiProblem if it is invalid, or if its verb cannot be applied to its crawl now.
    """
    spec = wanted.spec()
    await _check(spec, served)
    if (refused := await _refused(spec, served)) is not None:
        raise _invalid([refused])
    return spec


async def _check(spec: ScheduleSpec, served: Services) -> None:
    """Raise ApiProblem with all invalid fields of the schedule, if there are any.

    The function does not check that the schedule's crawl exists.
    """
    # A window without a due time takes half a second to find out.
    problems = await asyncio.to_thread(schedule_problems, spec, served.clock.unix_ms())
    if problems:
        raise _invalid([FieldError(*map(str, (each.path, each.message, each.hint))) for each in problems])


def _invalid(wrong: list[FieldError]) -> ApiProblem:
    return ApiProblem(ProblemKind.INVALID, "the schedule cannot be used", errors=wrong)


async def _refused(spec: ScheduleSpec, served: Services) -> FieldError | None:
    """Return an error if the schedule names a crawl to which its verb cannot be applied. Otherwise return None.

    The verb cannot be applied in these cases:

    - The crawl does not exist.
    - The crawl has `desired`, and the verb is one of DECIDED_BY_DESIRED.
    """
    if spec.crawl is None:
        return None
    try:
        crawl = await served.catalog.crawl(spec.crawl)
    except Missing as error:
        return FieldError("crawl", str(error), "create the crawl first")
    if crawl.desired is None or spec.verb not in DECIDED_BY_DESIRED:
        return None
    reason = f"is refused: the crawl declares `desired: {crawl.desired}`, so no schedule applies {spec.verb} to it"
    return FieldError("verb", reason, "leave `desired` out of the crawl, or schedule another verb")


def _warnings(refused: FieldError | None, remedy: str) -> list[str]:
    """Convert `refused`, the result of `_refused`, to a list of one warning. Return an empty list for None.

    `remedy`: advice for the user, which is added to the warning if the crawl does not exist.
    """
    if refused is None:
        return []
    return [f"{refused.message}: {remedy}" if refused.path == "crawl" else f"each firing {refused.message}"]


async def _paused(
    name: str, paused: bool, served: Services, by: By, expected: Expected, response: Response
) -> Schedule:
    stored = await served.schedules.pause(
        name, paused=paused, expected=expected, actor=by, now_ms=served.clock.unix_ms()
    )
    return await _body(stored, served, response)


async def _body(stored: StoredSchedule, served: Services, response: Response) -> Schedule:
    """Return a schedule as the API shows it, and set its ETag.

    Add a warning if its verb cannot be applied to its crawl.
    """
    refused = await _refused(stored.spec, served)
    response.headers.update(etag(stored.shown_tag))
    return schedule_body(stored, _warnings(refused, "create it, or delete this schedule"))
