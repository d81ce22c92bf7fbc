"""Answer every error as problem+json (RFC 9457), with one table of problems and one exception handler.

`type` is stable: programs may rely on it. A problem names the wrong fields and, if known, the remedy.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from math import ceil
from typing import Any, Final

import msgspec
import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.crawls.seed_upload import RejectedLine, UploadCounts
from api.http.fields import FieldError, field_errors, joined
from shared.domain.crawl.spec_parse import SpecError
from shared.domain.crawl.state import IllegalTransition
from shared.domain.errors import Permanent, Refused, Transient
from shared.domain.suggestions import SUGGESTED
from shared.ports.catalog import Exists, Full, LastAdmin, Missing, NoSecret, ReusedKey, Stale
from shared.ports.schedules import ScheduleUnreadable

log = structlog.get_logger("orb.api")

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:orbweaver:problem:"


class ProblemKind(Enum):
    """The kinds of problem. A value is: the last part of `type`, the HTTP status, the title."""

    MALFORMED = ("malformed", 400, "The request cannot be read")
    UNAUTHENTICATED = ("unauthenticated", 401, "Authentication is needed")
    FORBIDDEN = ("forbidden", 403, "The key or certificate does not allow this")
    NOT_FOUND = ("not-found", 404, "Not found")
    METHOD = ("method-not-allowed", 405, "This resource does not have that method")
    EXISTS = ("exists", 409, "It already exists")
    LAST_ADMIN = ("last-admin-key", 409, "It is the last admin key")
    FULL = ("full", 409, "The limit is reached")
    NO_ARCHIVE = ("no-archive", 409, "This master cannot read the archive")
    ILLEGAL_TRANSITION = ("illegal-transition", 409, "The crawl's state does not allow this")
    LOST_UPDATE = ("lost-update", 412, "It was changed by another request")
    TOO_LARGE = ("too-large", 413, "The request is too large")
    MEDIA = ("unsupported-media-type", 415, "The request's content type is not supported")
    RANGE = ("range-not-satisfiable", 416, "The file has no such bytes")
    INVALID = ("invalid", 422, "The request is not valid")
    REUSED_KEY = ("idempotency-key-reused", 422, "The idempotency key was used for another request")
    BUSY = ("busy", 429, "Too many requests are waiting")
    RATE_LIMITED = ("rate-limited", 429, "Too many requests were sent")
    INTERNAL = ("internal", 500, "Internal error")
    NO_LEADER = ("no-leader", 503, "There is no leader")
    CROWDED = ("too-many-connections", 503, "Too many connections")
    UNAVAILABLE = ("unavailable", 503, "A dependency is not available")
    OTHER = ("http", 400, "The request was refused")


class ApiProblem(Exception):
    """An error that is answered as a problem (RFC 9457). Raise it in a route or layer to send that response.

    - `detail`: what is wrong. `hint`: what the client can do.
    - `errors`: the wrong fields of the request.
    - `allowed_verbs`: the verbs that the crawl's state allows now.
    - `headers`: additional headers of the response.
    - `status`: the HTTP status, if it differs from that of `kind`.
    - `upload`: the counts of the durable lines of an interrupted upload of seeds.
    """

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        hint: str = "",
        errors: Sequence[FieldError] = (),
        allowed_verbs: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
        upload: UploadCounts | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.hint = kind, detail, hint
        self.errors, self.allowed_verbs = tuple(errors), tuple(allowed_verbs)
        self.headers = dict(headers or {})
        self.upload = upload
        self.status = kind.value[1] if status is None else status


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON body of a problem. Fields with their default value are omitted."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    hint: str = ""
    errors: list[FieldError] = []
    allowed_verbs: list[str] = []
    accepted: int | None = None
    duplicate: int | None = None
    rejected: int | None = None
    durable_lines: int | None = None
    first_rejected: list[RejectedLine] = []


def problem_of(error: Exception, body: Any = None) -> ApiProblem:
    """Return the problem that answers this exception. An unknown exception becomes an internal error (500).

    `body`: the type of the request body, if known. It is used to suggest names for unknown fields.
    """
    match error:
        case ApiProblem():
            return error
        case RequestValidationError():
            return _invalid(error, body)
        case SpecError():
            errors = [FieldError(joined("spec", each.path), each.message, each.hint) for each in error.problems]
            return ApiProblem(ProblemKind.INVALID, "the crawl spec cannot be used", errors=errors)
        case Missing():
            return ApiProblem(ProblemKind.NOT_FOUND, str(error))
        case Exists():
            return ApiProblem(ProblemKind.EXISTS, str(error))
        case Full():
            return ApiProblem(ProblemKind.FULL, str(error), hint=error.remedy)
        case LastAdmin():
            return ApiProblem(ProblemKind.LAST_ADMIN, str(error), hint="create another admin key first")
        case NoSecret():
            hint = "delete it, and put it again: that makes a key with a secret"
            wrong = FieldError("kind", "is certificate, and a certificate has no secret, so it cannot become key", hint)
            return ApiProblem(ProblemKind.INVALID, str(error), errors=[wrong])
        case Stale():
            hint = "get the current version, apply the change to it, and send that with its ETag"
            return ApiProblem(ProblemKind.LOST_UPDATE, str(error), hint=hint, headers={"ETag": f'"{error.current}"'})
        case ReusedKey():
            return ApiProblem(ProblemKind.REUSED_KEY, str(error), hint="use a new key for every new request")
        case IllegalTransition():
            legal = ", ".join(error.legal) or "nothing"
            return ApiProblem(
                ProblemKind.ILLEGAL_TRANSITION, str(error), hint=f"allowed now: {legal}", allowed_verbs=error.legal
            )
        case Refused():
            return ApiProblem(ProblemKind.BUSY, str(error), headers=_retry(error))
        case Transient():
            return ApiProblem(ProblemKind.UNAVAILABLE, str(error), headers=_retry(error))
        case HTTPException():
            return _http(error)
        case ScheduleUnreadable():
            log.error("request.refused", error=str(error))
            hint = "send the request to a master of the newer version, or put or delete the schedule"
            return ApiProblem(ProblemKind.INTERNAL, str(error), hint=hint)
        case Permanent():
            log.error("request.refused", error=str(error))
            return ApiProblem(ProblemKind.INTERNAL, "the request failed; the log has the reason")
        case _:
            return ApiProblem(ProblemKind.INTERNAL, "internal error; the log has it under the id of the request")


def answer(problem: ApiProblem, path: str, request_id: str) -> Response:
    """Return the HTTP response that sends a problem. `path`: the path of the request."""
    name, _, title = problem.kind.value
    upload = problem.upload
    if problem.kind is ProblemKind.OTHER:
        title = HTTPStatus(problem.status).phrase
    body = _Body(
        type=TYPE + name,
        title=title,
        status=problem.status,
        detail=problem.detail,
        instance=path,
        request_id=request_id,
        hint=problem.hint,
        errors=list(problem.errors),
        allowed_verbs=[str(verb) for verb in problem.allowed_verbs],
        accepted=None if upload is None else upload.accepted,
        duplicate=None if upload is None else upload.duplicate,
        rejected=None if upload is None else upload.rejected,
        durable_lines=None if upload is None else upload.durable_lines,
        first_rejected=[] if upload is None else upload.first_rejected,
    )
    return Response(msgspec.json.encode(body), problem.status, problem.headers, MEDIA_TYPE)


async def respond(request: Request, error: Exception) -> Response:
    """Return the response to a request that raised `error`. It is the only exception handler of the application."""
    route = request.scope.get("route")
    field, responses = getattr(route, "body_field", None), getattr(route, "responses", {})
    body = None if field is None else field.field_info.annotation
    # A route that takes If-Match declares the response 412, and one that creates the missing resource declares 201.
    if isinstance(error, Missing) and "if-match" in request.headers and 412 in responses:
        hint = "omit If-Match to create it" if 201 in responses else "it was deleted or never existed: list what exists"
        error = ApiProblem(ProblemKind.LOST_UPDATE, str(error), hint=hint)  # RFC 9110 §13.1.1
    problem = problem_of(error, body)
    # A seed set (`set`) below a crawl (`name`) has a tag of its own.
    if isinstance(error, Stale) and "name" in request.path_params and "set" not in request.path_params:
        problem.headers |= await _shown_tag(request)
    return answer(problem, request.url.path, getattr(request.state, "request_id", ""))


async def _shown_tag(request: Request) -> dict[str, str]:
    """Return the ETag header that a GET of the request's crawl has now; empty if the crawl cannot be read."""
    services = request.app.state.services
    try:
        shown = await services.shown.answer(request.path_params["name"], services.catalog, services)
    except (Missing, Transient) as unread:
        log.debug("etag.omitted", error=str(unread))
        return {}  # The problem keeps the crawl's version as its ETag, which If-Match accepts.
    return {"ETag": shown.headers["ETag"]}


def _retry(error: Transient) -> dict[str, str]:
    return {"Retry-After": str(max(1, ceil(error.retry_in)))}


def _http(error: HTTPException) -> ApiProblem:
    kinds = {
        kind.value[1]: kind
        for kind in (
            ProblemKind.NOT_FOUND,
            ProblemKind.METHOD,
            ProblemKind.TOO_LARGE,
            ProblemKind.MEDIA,
            ProblemKind.MALFORMED,
        )
    }
    kind = kinds.get(error.status_code, ProblemKind.OTHER)
    return ApiProblem(kind, str(error.detail), headers=error.headers, status=error.status_code)


def _invalid(error: RequestValidationError, body: Any) -> ApiProblem:
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        return ApiProblem(
            ProblemKind.MALFORMED, f"the body is not JSON: {found[0].get('ctx', {}).get('error', '')}".rstrip(": ")
        )
    if isinstance(error.body, bytes) and any(tuple(each["loc"]) == ("body",) for each in found):
        hint = "send the header `Content-Type: application/json`"
        return ApiProblem(ProblemKind.MEDIA, "the content type of the body is not JSON", hint=hint)
    wrong: list[FieldError] = []
    for one in found:
        wrong += field_errors(one, body, suggest=len(wrong) < SUGGESTED)
    of_spec = all(isinstance(one.get("ctx", {}).get("error"), SpecError) for one in found)
    detail = "the crawl spec cannot be used" if of_spec else "the request is not valid"
    return ApiProblem(ProblemKind.INVALID, detail, errors=wrong)
