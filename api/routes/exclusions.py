"""/v1/exclusions: hosts, URL prefixes and address ranges that no crawl requests."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Path, Query, Response

from api.http.deps import (
    CONDITIONAL,
    UNCHANGED,
    By,
    Expected,
    Idempotent,
    Page,
    Served,
    Services,
    etag,
    problems,
)
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.exclusions import Exclusion, ExclusionChange, ExclusionInput, exclusion_body, terms_body
from api.schemas.model import Listing
from api.schemas.plans import DeclarationPlan, declaration_plan
from shared.domain.crawl.exclusions import (
    MAX_TARGET_CHARS,
    Target,
    TargetRefused,
    partitions_with,
    read_target,
    stored_target,
)
from shared.domain.ops.exclusions import ExclusionTerms, StoredExclusion
from shared.wire.events import EventKind
from shared.wire.keys import EXCLUSIONS

router = Router(prefix="/v1/exclusions", tags=["exclusions"])

ExclusionId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The `id` of the exclusion.", examples=[7])]


@router.get("", summary="List exclusions")
async def list_exclusions(
    served: Served,
    page: Page,
    response: Response,
    target: Annotated[
        str | None,
        Query(min_length=1, max_length=MAX_TARGET_CHARS, description="Only the exclusion with this target."),
    ] = None,
) -> Listing[Exclusion]:
    """List exclusions in the order of their creation.

    Exclusions that have ended are included until they are deleted.
    """
    rows = await served.desired.exclusions(
        after=page.place(int, 0),
        max_count=page.max_count + 1,
        target=None if target is None else _target(target, "query.target", stored_target).text,
    )
    shown, now_ms = rows[: page.max_count], served.clock.unix_ms()
    place = shown[-1].exclusion_id if len(rows) > page.max_count else None
    return Listing(items=[exclusion_body(each, now_ms) for each in shown], next=page.next(place, response))


@router.post(
    "", status_code=201, summary="Exclude a host, URL prefix or address range",
    responses=problems(ProblemKind.EXISTS, ProblemKind.FULL),
)  # fmt: skip
async def create_exclusion(
    wanted: ExclusionInput, served: Served, by: By, repeatable: Idempotent, response: Response
) -> Exclusion:
    """Forbid all crawls to request the target, from now on.

    Every worker applies the exclusion within about a second. It is checked before each request, even of robots.txt.
    Queued URLs of the target are excluded with the reason `owner`. A repeated request with the same Idempotency-Key
    creates no other exclusion.
    """
    target, terms = _target(wanted.target), _checked(_terms(wanted), served)
    stored = await served.desired.add_exclusion(
        target.text,
        terms,
        len(partitions_with(target, served.partitions)),
        actor=by,
        now_ms=served.clock.unix_ms(),
        repeatable=repeatable,
    )
    _changed(stored.exclusion_id, "created", served)
    response.headers.update(etag(stored.tag) | {"Location": f"/v1/exclusions/{stored.exclusion_id}"})
    return _body(stored, served)


@router.post("/plan", summary="Plan an exclusion or a change of one")
async def plan_exclusion(wanted: ExclusionInput, served: Served) -> DeclarationPlan:
    """Return what would change if the target were excluded as the body declares it, without changing anything.

    The request is validated as for a PUT if an exclusion with this target exists, otherwise as for a POST.
    """
    rows = await served.desired.exclusions(after=0, max_count=1, target=_target(wanted.target).text)
    terms, stored = _terms(wanted), rows[0].terms if rows else None
    if terms != stored:
        _checked(terms, served)
    return declaration_plan(None if stored is None else terms_body(stored), terms_body(terms))


@router.get(
    "/{exclusion_id}", summary="Get an exclusion", dependencies=[CONDITIONAL],
    responses={**UNCHANGED, **problems(404)},
)  # fmt: skip
async def get_exclusion(exclusion_id: ExclusionId, served: Served, response: Response) -> Exclusion:
    """Return an exclusion."""
    stored = await served.desired.exclusion(exclusion_id)
    response.headers.update(etag(stored.tag))
    return _body(stored, served)


@router.put(
    "/{exclusion_id}", summary="Change an exclusion",
    responses=problems(404, 412),
)  # fmt: skip
async def put_exclusion(
    exclusion_id: ExclusionId, wanted: ExclusionChange, served: Served, by: By, expected: Expected, response: Response
) -> Exclusion:
    """Replace all fields of an exclusion except its target: `reason`, `requested_by`, `until` and `withdraw`.

    If nothing differs, nothing changes.
    """
    terms = _terms(wanted)
    before = await served.desired.exclusion(exclusion_id)
    if terms != before.terms:
        _checked(terms, served)
    stored = await served.desired.put_exclusion(
        exclusion_id,
        terms,
        len(partitions_with(_target(before.target, read=stored_target), served.partitions)),
        expected=expected,
        actor=by,
        now_ms=served.clock.unix_ms(),
    )
    if stored.revision != before.revision:
        _changed(exclusion_id, "replaced", served)
    response.headers.update(etag(stored.tag))
    return _body(stored, served)


@router.delete(
    "/{exclusion_id}", status_code=204, summary="Delete an exclusion",
    responses=problems(404, 412),
)  # fmt: skip
async def delete_exclusion(exclusion_id: ExclusionId, served: Served, by: By, expected: Expected) -> None:
    """Delete an exclusion, so that it no longer applies.

    A URL that it excluded is queued again when a page links to it, or when it is added as a seed again.
    """
    await served.desired.delete_exclusion(exclusion_id, expected=expected, actor=by, now_ms=served.clock.unix_ms())
    _changed(exclusion_id, "deleted", served)


def _target(text: str, field: str = "target", read: Callable[[str], Target] = read_target) -> Target:
    """Return the target that `text` names. Raise ApiProblem if `read` refuses it.

    `read`: `read_target` for a new exclusion, `stored_target` for one that an earlier version may have stored.
    """
    try:
        return read(text)
    except TargetRefused as error:
        wrong = FieldError(field, error.reason, error.hint)
        raise ApiProblem(ProblemKind.INVALID, "the target cannot be excluded", errors=[wrong]) from error


def _terms(wanted: ExclusionChange) -> ExclusionTerms:
    if wanted.until is not None and wanted.until.tzinfo is None:
        wrong = FieldError("until", "has no time zone")
        raise ApiProblem(ProblemKind.INVALID, "the time is not valid", errors=[wrong])
    return wanted.terms()


def _checked(terms: ExclusionTerms, served: Services) -> ExclusionTerms:
    """Return `terms`. Raise ApiProblem if their end, `until_ms`, is in the past."""
    if terms.until_ms is not None and terms.until_ms <= served.clock.unix_ms():
        wrong = FieldError("until", "is in the past", "delete the exclusion to end it now")
        raise ApiProblem(ProblemKind.INVALID, "the time is not valid", errors=[wrong])
    return terms


def _changed(exclusion_id: int, change: str, served: Services) -> None:
    served.plane.wake()
    data = {"exclusion": exclusion_id, "change": change}
    served.telling.publish(EventKind.CONFIG, EXCLUSIONS, "updated", data=data)


def _body(stored: StoredExclusion, served: Services) -> Exclusion:
    return exclusion_body(stored, served.clock.unix_ms())
