"""/v1/crawls/{name}/seed-sets: named sets of seeds. Each request declares a whole set."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final

from fastapi import Path, Response

from api.http.deps import (
    CONDITIONAL,
    UNCHANGED,
    By,
    Expected,
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
from api.routes.urls import Name
from api.schemas.crawls import NAME
from api.schemas.hosts import CommandAccepted
from api.schemas.model import Listing
from api.schemas.plans import DeclarationPlan, declaration_plan
from api.schemas.seed_sets import SeedSet, SeedSetInput, SeedSetSummary, seed_set_body, seed_set_summary
from shared.domain.crawl.spec import decode_spec
from shared.domain.crawl.spec_parse import SpecError
from shared.domain.ops.seed_sets import SeedSetSpec, set_spec
from shared.domain.reads.declared import PutOutcome
from shared.ports.catalog import Missing
from shared.wire.events import EventKind

router = Router(prefix="/v1/crawls/{name}/seed-sets", tags=["seeds"], responses=problems(404))

SetName = Annotated[str, Path(alias="set", pattern=NAME, description="The set's name.", examples=["partners"])]
_EVENT: Final = "seed-sets"


@router.get("", summary="List seed sets")
async def list_seed_sets(name: Name, served: Served, page: Page, response: Response) -> Listing[SeedSetSummary]:
    """List the seed sets of a crawl by name, without their seeds."""
    rows = await served.desired.seed_sets(name, after=page.place(str, ""), max_count=page.max_count + 1)
    shown = rows[: page.max_count]
    place = shown[-1].name if len(rows) > page.max_count else None
    return Listing(items=[seed_set_summary(each) for each in shown], next=page.next(place, response))


@router.get("/{set}", summary="Get a seed set", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_seed_set(name: Name, set_name: SetName, served: Served, response: Response) -> SeedSet:
    """Return a seed set with its seeds, exactly as they were put."""
    stored = await served.desired.seed_set(name, set_name)
    response.headers.update(etag(stored.tag))
    return seed_set_body(stored)


@router.put(
    "/{set}", summary="Create or replace a seed set",
    responses={
        201: {"model": SeedSet, "description": "It was created."}, **problems(ProblemKind.FULL, 412)
    },
)  # fmt: skip
async def put_seed_set(
    name: Name,
    set_name: SetName,
    wanted: SeedSetInput,
    served: Served,
    by: By,
    expected: IfMatch,
    new: OnlyNew,
    response: Response,
) -> SeedSet:
    """Create a seed set, or replace it as a whole. If nothing differs, nothing changes.

    New seeds of the set are added to the crawl. A URL that is no longer in the set is withdrawn, except in two cases:

    - Another set or the spec contains it.
    - It was uploaded.

    A withdrawn URL that was not fetched leaves the queue. It is excluded with the reason `seed_withdrawn`. There are
    two exceptions, because a link to a withdrawn URL is followed like any other link:

    - If the crawl has found such a link already, the URL stays in the queue.
    - If the crawl finds such a link later, the URL is queued again.

    Owners apply the change as a command. The response has the id of this command in the field `command`.
    """
    try:
        spec = await _spec(name, wanted, served)
    except Missing as error:  # It is no resource that If-Match is about, so this is 404 with that header, too.
        raise ApiProblem(ProblemKind.NOT_FOUND, str(error), hint="create the crawl first") from error
    check_conditions(new, expected)
    stored, outcome = await served.desired.put_seed_set(
        name,
        set_name,
        spec,
        served.partitions,
        expected=expected,
        new=new,
        actor=by,
        now_ms=served.clock.unix_ms(),
    )
    if outcome is not PutOutcome.UNCHANGED:
        _changed(name, set_name, outcome, served)
    created = outcome is PutOutcome.CREATED
    response.status_code = 201 if created else 200
    response.headers.update(etag(stored.tag))
    if created:
        response.headers["Location"] = f"/v1/crawls/{name}/seed-sets/{set_name}"
    return seed_set_body(stored)


@router.post("/{set}/plan", summary="Plan a change of a seed set")
async def plan_seed_set(name: Name, set_name: SetName, wanted: SeedSetInput, served: Served) -> DeclarationPlan:
    """Return what a PUT of the set would change, without changing anything. The request is validated as for a PUT.

    If the crawl does not exist, the plan has a warning, but the request is not refused. The seeds are then not checked
    against the scope of the crawl.
    """
    before, warnings = None, []
    try:
        await _spec(name, wanted, served)
    except Missing as error:
        warnings.append(f"{error}: create it before the seed set")
    with suppress(Missing):
        before = {"seeds": json.loads((await served.desired.seed_set(name, set_name)).document)}
    return declaration_plan(before, {"seeds": wanted.seeds}, warnings)


@router.delete("/{set}", status_code=202, summary="Delete a seed set", responses=problems(412))
async def delete_seed_set(name: Name, set_name: SetName, served: Served, by: By, expected: Expected) -> CommandAccepted:
    """Delete a seed set. Its URLs are withdrawn as if a PUT had removed all of them from the set."""
    command = await served.desired.delete_seed_set(
        name, set_name, served.partitions, expected=expected, actor=by, now_ms=served.clock.unix_ms()
    )
    _changed(name, set_name, "deleted", served)
    return CommandAccepted(command=command)


async def _spec(name: str, wanted: SeedSetInput, served: Services) -> SeedSetSpec:
    """Return the seed set that the request body `wanted` declares for the crawl `name`.

    - If the crawl exists: raise ApiProblem if the crawl cannot fetch all seeds.
    - If the crawl does not exist: raise ApiProblem if some seeds are invalid for every crawl, otherwise raise Missing.

    The ApiProblem names the wrong seeds.
    """
    try:
        scope = decode_spec((await served.catalog.crawl(name)).spec).scope
    except Missing:
        _checked(wanted, {})
        raise
    return _checked(wanted, {"schemes": list(scope.schemes), "max_url_length": scope.max_url_length})


def _checked(wanted: SeedSetInput, bounds: Mapping[str, object]) -> SeedSetSpec:
    try:
        return set_spec(wanted.seeds, bounds)
    except SpecError as error:
        wrong = [FieldError(each.path, each.message, each.hint) for each in error.problems]
        raise ApiProblem(ProblemKind.INVALID, "the seeds are not valid", errors=wrong) from error


def _changed(name: str, set_name: str, change: str, served: Services) -> None:
    served.plane.wake()
    data = {"crawl": name, "set": set_name, "change": change}
    served.telling.publish(EventKind.CONFIG, _EVENT, "updated", data=data)
