"""/v1/crawls: declare crawls, and read their specs, states and revisions."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Path, Query, Response

from api.http.cached_reads import described
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
from api.routes.crawl_verbs import collect
from api.routes.pages import NO_ARCHIVE_HINT
from api.schemas.changes import recrawl_plan
from api.schemas.crawls import (
    MAX_LABELS,
    NAME,
    Change,
    Crawl,
    CrawlInput,
    CrawlPatch,
    CrawlReplacement,
    CrawlSummary,
    GivenSpec,
    Plan,
    Revision,
    RevisionDiff,
    RevisionSummary,
    changes_body,
    given_spec,
    needs_of,
    revision_body,
    revision_summary,
    scope_plan_body,
    summary_body,
)
from api.schemas.model import Listing
from shared.domain.crawl.host_specs import compiled_scope
from shared.domain.crawl.scope_change import same_scope
from shared.domain.crawl.spec import CrawlSpec, decode_spec, encode_spec
from shared.domain.crawl.spec_diff import Difference, merge_patch, spec_difference
from shared.domain.crawl.state import DesiredRun, Verb, initial_state, status_after_new_spec, status_as_desired
from shared.domain.crawl.wider_scope import may_admit_more
from shared.domain.explain.excluded_links import OUTLINKS
from shared.domain.frontier.counters import Counters
from shared.domain.frontier.recrawl_pages import RATES
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import Revision as RevisionNumber
from shared.domain.ops.published_specs import size_problem
from shared.domain.reads.declared import CrawlFilter, Declaration, DeclaredCrawl
from shared.ports.catalog import Exists, Missing, Stale

router = Router(prefix="/v1/crawls", tags=["crawls"])

Name = Annotated[str, Path(pattern=NAME, description="The crawl's name.", examples=["docs"])]
Fields = Annotated[Literal["spec"] | None, Query(description="`spec`: add the whole spec to each entry.")]
_PATCH_ATTEMPTS: Final = 5
_STORING: Final = (CrawlState.SEEDING, CrawlState.RUNNING)
_MAY_NEED_ARCHIVE: Final = (
    "the wider scope needs the links of pages that are being stored, and this master cannot read the archive; it is "
    "accepted while the crawl is paused and no URL is leased, if no stored page has links that the scope left out"
)
_NEEDS_ARCHIVE: Final = "the wider scope needs the links of stored pages, and this master cannot read the archive"


@router.get("", summary="List crawls")
async def list_crawls(
    served: Served,
    page: Page,
    response: Response,
    state: Annotated[CrawlState | None, Query(description="Only crawls in this state.")] = None,
    prefix: Annotated[str, Query(max_length=63, description="Only crawls whose names begin with this.")] = "",
    label: Annotated[
        list[str],
        Query(
            max_length=8,
            description="Only crawls with this label, as `team=search`. If there are several, a "
            "crawl needs all of them.",
        ),
    ] = [],  # noqa: B006  the framework copies it
    fields: Fields = None,
) -> Listing[CrawlSummary]:
    """List crawls by name.

    Their specs are included only with `fields=spec`. A page with specs ends early once it has 8 MiB of specs.
    """
    which = CrawlFilter(state, prefix, _labels(label))
    whole = fields is not None
    rows, more = await served.catalog.crawls(which, after=page.place(str, ""), max_count=page.max_count, specs=whole)
    place = rows[-1].name if more else None
    return Listing(items=[summary_body(crawl, served, spec=whole) for crawl in rows], next=page.next(place, response))


@router.post(
    "", status_code=201, summary="Create a crawl",
    responses=problems(ProblemKind.EXISTS, ProblemKind.FULL),
)  # fmt: skip
async def create_crawl(wanted: CrawlInput, served: Served, by: By, repeatable: Idempotent, response: Response) -> Crawl:
    """Create a crawl and start it, unless `start` is false.

    A repeated request with the same Idempotency-Key does not create another crawl.
    """
    declaration = _declared(wanted.name, wanted.spec, wanted.labels, wanted.desired)
    made = await served.catalog.create(
        declaration,
        start=wanted.start,
        actor=by,
        now_ms=served.clock.unix_ms(),
        repeatable=repeatable,
        max_count=served.tuning().max_crawls,
    )
    served.plane.wake()
    body, tag = described(made, served)
    response.headers.update(etag(tag) | {"Location": f"/v1/crawls/{made.name}"})
    return body


@router.get(
    "/{name}", summary="Get a crawl", dependencies=[CONDITIONAL], responses={**UNCHANGED, **problems(404)},
    response_model=Crawl,
)  # fmt: skip
async def get_crawl(name: Name, served: Served) -> Response:
    """Return the spec and state of a crawl. Its counters are under /stats."""
    return await served.shown.answer(name, served.catalog, served)


@router.put(
    "/{name}", summary="Create or replace a crawl",
    responses={
        201: {"model": Crawl, "description": "It was created."},
        **problems(404, ProblemKind.FULL, ProblemKind.NO_ARCHIVE, 412),
    },
)  # fmt: skip
async def put_crawl(
    name: Name,
    wanted: CrawlReplacement,
    served: Served,
    by: By,
    expected: IfMatch,
    new: OnlyNew,
    response: Response,
) -> Crawl:
    """Create the crawl, or replace its spec, its labels and `desired`.

    If nothing differs, nothing changes. If the crawl's state does not agree with `desired`, the crawl is started or
    paused. A changed spec becomes a new revision.

    A wider scope may admit links of stored pages. These links are read from the archive. A master that cannot read the
    archive refuses a wider scope in two cases:

    - The crawl is still storing pages.
    - Stored pages have links that the earlier scope excluded.
    """
    declaration = _declared(name, wanted.spec, wanted.labels, wanted.desired)
    await _check_archive(served, declaration)
    check_conditions(new, expected)
    now_ms, max_count = served.clock.unix_ms(), served.tuning().max_crawls
    if new:
        try:
            made = await served.catalog.create(
                declaration, start=wanted.start, actor=by, now_ms=now_ms, max_count=max_count
            )
            created = True
        except Exists as error:
            raise Stale((await served.catalog.crawl(name)).tag) from error
    else:
        made, created = await served.catalog.put(
            declaration, expected=expected, start=wanted.start, actor=by, now_ms=now_ms, max_count=max_count
        )
    served.plane.wake()
    body, tag = described(made, served)
    response.status_code = 201 if created else 200
    response.headers.update(etag(tag) | ({"Location": f"/v1/crawls/{name}"} if created else {}))
    return body


@router.patch(
    "/{name}", summary="Change parts of a crawl",
    responses=problems(404, ProblemKind.NO_ARCHIVE, 412),
)  # fmt: skip
async def patch_crawl(
    name: Name, patch: CrawlPatch, served: Served, by: By, expected: Expected, response: Response
) -> Crawl:
    """Apply a merge patch (RFC 7396) to the spec, the labels and `desired` of a crawl.

    Without If-Match the patch is applied to the current version. A changed spec becomes a new revision.
    """
    attempts = 0
    while True:
        stored = await served.catalog.crawl(name)
        labels = merge_patch(dict(stored.labels), patch.labels)
        if len(labels) > MAX_LABELS:
            wrong = FieldError("labels", f"there would be more than {MAX_LABELS}")
            raise ApiProblem(ProblemKind.INVALID, "the labels are not valid", errors=[wrong])
        changes_run = "desired" in patch.model_fields_set
        desired = patch.desired if changes_run else stored.desired
        declaration = _declared(name, given_spec(merge_patch(_spec(stored), patch.spec)), labels, desired)
        await _check_archive(served, declaration)
        try:
            made, _ = await served.catalog.put(
                declaration,
                expected=frozenset({stored.tag}) if expected is None else expected,
                start=False,
                actor=by,
                now_ms=served.clock.unix_ms(),
                enforce=changes_run,
            )
            break
        except Stale:
            attempts += 1
            if expected is not None or attempts == _PATCH_ATTEMPTS:
                raise
    served.plane.wake()
    body, tag = described(made, served)
    response.headers.update(etag(tag))
    return body


@router.delete("/{name}", status_code=204, summary="Delete a crawl", responses=problems(404, 412))
async def delete_crawl(name: Name, served: Served, by: By, expected: Expected) -> None:
    """Delete the crawl.

    Its name can be used again at once; its rows are removed in the background. Archived pages are kept.
    """
    before, _ = await served.catalog.turn(name, Verb.DELETE, expected=expected, actor=by, now_ms=served.clock.unix_ms())
    served.plane.wake()
    await collect(served, before.crawl_id, by)


@router.post("/{name}/plan", summary="Plan a change of a crawl")
async def plan_crawl(name: Name, wanted: CrawlReplacement, served: Served) -> Plan:
    """Return what a PUT of the crawl would change, without changing anything. The request is validated as for a PUT."""
    declaration = _declared(name, wanted.spec, wanted.labels, wanted.desired)
    warnings = list(needs_of(declaration.spec).warnings(served))
    try:
        stored = await served.catalog.crawl(name)
    except Missing:
        state = initial_state(declaration.desired, start=wanted.start)
        return Plan(action="create", revision=1, state=state, changes=[], warnings=warnings, recrawl=None, scope=None)
    differences = spec_difference(stored.spec, declaration.spec)
    labels = spec_difference(
        msgspec.json.encode(stored.labels).decode(), msgspec.json.encode(declaration.labels).decode()
    )
    status = status_after_new_spec(stored.status) if differences else stored.status
    planned = status_as_desired(declaration.desired, status)
    run = _desired_change(stored, declaration, restores_desired=planned != status)
    recrawl = scope = None
    spec = decode_spec(declaration.spec)
    moved = _scope_differs(stored.spec, spec)
    if spec.recrawl.used or moved:
        counters, tallies, _ = await served.catalog.stats(stored.crawl_id)
        if spec.recrawl.used:
            recrawl = await asyncio.to_thread(recrawl_plan, spec.recrawl, tallies.get(RATES, {}))
        if moved:
            change = await served.catalog.scope_change(stored.crawl_id, compiled_scope(spec))
            wider = _is_wider(stored.spec, spec)
            scope = scope_plan_body(change, tallies.get("excluded", {}), tallies.get(OUTLINKS, {}) if wider else {})
            need = _need_of_archive(stored.state, counters, tallies) if wider and served.archive is None else None
            if need is not None:
                warnings.append(f"{need}; a PUT is refused")
    return Plan(
        action="update" if differences or labels or run else "none",
        revision=stored.revision + bool(differences),
        state=planned.state,
        changes=[*run, *changes_body(labels, below="labels."), *changes_body(differences)],
        warnings=warnings,
        recrawl=recrawl,
        scope=scope,
    )


def _desired_change(stored: DeclaredCrawl, wanted: Declaration, *, restores_desired: bool) -> list[Change]:
    """Return how a PUT of `wanted` would change whether the crawl runs: one change for the plan, or an empty list.

    `restores_desired`: True if the PUT would start, resume or pause the crawl, so that its state agrees with
    `wanted.desired`.

    - The PUT changes the field `desired`: return this change. Example: `desired`, from `paused` to `running`.
    - The PUT keeps `desired`, and `restores_desired` is True: return the change of the crawl's state. Example:
      `desired` is `running`, but an operator has paused the crawl. The change is `state`, from `paused` to `running`.
    - The PUT keeps `desired`, and `restores_desired` is False: return an empty list.
    """
    if stored.desired != wanted.desired:
        return [Change(path="desired", before=stored.desired, after=wanted.desired)]
    return [Change(path="state", before=stored.state, after=wanted.desired)] if restores_desired else []


async def _check_archive(served: Services, declaration: Declaration) -> None:
    """Raise ApiProblem if the declaration needs the archive, and this master cannot read the archive.

    A wider scope of a stored crawl can need it, because the links of stored pages are then read from the archive.
    """
    if served.archive is not None:
        return
    try:
        stored = await served.catalog.crawl(declaration.name)
    except Missing:
        return
    if not _is_wider(stored.spec, decode_spec(declaration.spec)):
        return
    counters, tallies, _ = await served.catalog.stats(stored.crawl_id)
    if (need := _need_of_archive(stored.state, counters, tallies)) is not None:
        raise ApiProblem(ProblemKind.NO_ARCHIVE, need, hint=NO_ARCHIVE_HINT)


def _need_of_archive(state: CrawlState, counters: Counters, tallies: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return why a master without an archive must refuse to widen the scope of a crawl. Return None if it may accept.

    A wider scope can admit links that the present scope excluded. The crawl then reads these links from the archive.
    Two cases are refused:

    - Stored pages have excluded links.
    - The crawl can still store pages. These pages could have excluded links.
    """
    if tallies.get(OUTLINKS, {}).get("left_out", 0) > 0:
        return _NEEDS_ARCHIVE
    # A crawl without URLs stores no pages. A crawl that is not running can still store pages of leased URLs.
    storing = counters.discovered > 0 and (state in _STORING or counters.leased > 0)
    return _MAY_NEED_ARCHIVE if storing else None


def _is_wider(stored: str, wanted: CrawlSpec) -> bool:
    """Return True if the scope of `wanted` may admit a URL that the stored spec does not.

    Return True as well if this version cannot read the stored spec.
    """
    try:
        return may_admit_more(decode_spec(stored), wanted)
    except msgspec.MsgspecError:
        return True


def _scope_differs(stored: str, wanted: CrawlSpec) -> bool:
    """Return True if the scopes of the two specs differ, or if this version cannot read the stored spec."""
    try:
        return not same_scope(decode_spec(stored), wanted)
    except msgspec.MsgspecError:
        return True


@router.get("/{name}/revisions", summary="List a crawl's revisions", responses=problems(404))
async def list_revisions(
    name: Name, served: Served, page: Page, response: Response, fields: Fields = None
) -> Listing[RevisionSummary]:
    """List the revisions of a crawl's spec, newest first.

    The specs are included only with `fields=spec`. A page with specs ends early once it has 8 MiB of specs.
    """
    crawl = await served.catalog.crawl(name)
    before = page.place(int, crawl.revision + 1, greatest=2**31 - 1)
    whole = fields is not None
    rows = await served.catalog.revisions(crawl.crawl_id, before=before, max_count=page.max_count, specs=whole)
    last = rows[-1].revision if rows else 1
    place = last if last > 1 else None
    return Listing(items=[revision_summary(each, spec=whole) for each in rows], next=page.next(place, response))


@router.get(
    "/{name}/revisions/{revision}", summary="Get a revision", dependencies=[CONDITIONAL],
    responses={**UNCHANGED, **problems(404)},
)  # fmt: skip
async def get_revision(
    name: Name, revision: Annotated[int, Path(ge=1, le=2**31 - 1)], served: Served, response: Response
) -> Revision:
    """Return a revision of a crawl's spec."""
    crawl = await served.catalog.crawl(name)
    response.headers.update(etag(f"{crawl.crawl_id}-r{revision}"))
    return revision_body(await served.catalog.revision(crawl.crawl_id, RevisionNumber(revision)))


@router.get("/{name}/revisions/{revision}/diff", summary="Compare revisions", responses=problems(404))
async def diff_revision(
    name: Name,
    revision: Annotated[int, Path(ge=1, le=2**31 - 1)],
    served: Served,
    against: Annotated[
        int | None,
        Query(
            ge=1, le=2**31 - 1, description="The number of the revision to compare with. Without it: the previous one."
        ),
    ] = None,
) -> RevisionDiff:
    """Return the fields in which a revision of a crawl's spec differs from another revision, with both values.

    The first revision has no previous one, so by default its diff is empty.
    """
    crawl = await served.catalog.crawl(name)
    other = max(1, revision - 1) if against is None else against
    after, before = await asyncio.gather(
        served.catalog.revision(crawl.crawl_id, RevisionNumber(revision)),
        served.catalog.revision(crawl.crawl_id, RevisionNumber(other)),
    )
    differences: list[Difference] = spec_difference(before.spec, after.spec)
    return RevisionDiff(revision=revision, against=other, changes=changes_body(differences))


def _declared(name: str, given: GivenSpec, labels: dict[str, str], desired: str | None) -> Declaration:
    """Return the declaration of the crawl `name` in the request.

    Raise ApiProblem if the spec has another name, or is too large to be published to the workers.
    """
    if given.name not in (None, name):
        wrong = FieldError("spec.name", f"is not {name!r}", "leave it out: the path names the crawl")
        raise ApiProblem(ProblemKind.INVALID, "the crawl spec cannot be used", errors=[wrong])
    spec = encode_spec(msgspec.structs.replace(given.spec, name=name))
    if (problem := size_problem(spec)) is not None:
        wrong = FieldError(f"spec.{problem.path}".rstrip("."), problem.message, problem.hint)
        raise ApiProblem(ProblemKind.INVALID, "the crawl spec cannot be used", errors=[wrong])
    return Declaration(name, spec.decode(), labels, None if desired is None else DesiredRun(desired))


def _spec(crawl: DeclaredCrawl) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.json.decode(crawl.spec)
    return stored


def _labels(given: Sequence[str]) -> dict[str, str]:
    """Return the labels of the filters `given`, such as `team=search`. Raise ApiProblem for two values of one label."""
    labels: dict[str, str] = {}
    for each in given:
        label, equals, value = each.partition("=")
        if not equals:
            raise _invalid_filter(f"{each!r} is not of the form label=value")
        if labels.setdefault(label, value) != value:
            raise _invalid_filter(f"{label!r} is given twice with different values, which no crawl can have")
    return labels


def _invalid_filter(message: str) -> ApiProblem:
    return ApiProblem(ProblemKind.INVALID, "the filter is not valid", errors=[FieldError("label", message)])
