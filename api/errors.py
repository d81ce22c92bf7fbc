"""Every error as problem+json (RFC 9457), by one table and one function.

`type` is stable: programs may rely on it. A problem says what was wrong with which field, and what to do about it where
that is known.
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

from api.fields import FieldError, joined, told
from shared.domain.crawl_state import IllegalTransition
from shared.domain.errors import Permanent, Refused, Transient
from shared.domain.meant import SUGGESTED
from shared.domain.spec_parse import SpecError
from shared.ports.catalog import Exists, Full, LastAdmin, Missing, ReusedKey, Stale

log = structlog.get_logger("orb.api")

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:orbweaver:problem:"


class Kind(Enum):
    """The kinds of problem: the last part of `type`, the status, the title."""

    MALFORMED = ("malformed", 400, "The request cannot be read")
    UNAUTHENTICATED = ("unauthenticated", 401, "Authentication is needed")
    FORBIDDEN = ("forbidden", 403, "The key's role does not allow this")
    NOT_FOUND = ("not-found", 404, "Not found")
    METHOD = ("method-not-allowed", 405, "This resource does not have that method")
    EXISTS = ("exists", 409, "It exists already")
    LAST_ADMIN = ("last-admin-key", 409, "It is the last admin key")
    FULL = ("full", 409, "There are as many as there may be")
    NO_ARCHIVE = ("no-archive", 409, "This master cannot read it in the archive")
    ILLEGAL_TRANSITION = ("illegal-transition", 409, "The crawl's state does not allow this")
    LOST_UPDATE = ("lost-update", 412, "It was changed since you saw it")
    TOO_LARGE = ("too-large", 413, "The request is too large")
    MEDIA = ("unsupported-media-type", 415, "The request's content type is not understood")
    INVALID = ("invalid", 422, "The request is not valid")
    REUSED_KEY = ("idempotency-key-reused", 422, "The idempotency key was used for another request")
    BUSY = ("busy", 429, "Too much is waiting already")
    INTERNAL = ("internal", 500, "Something went wrong here")
    NO_LEADER = ("no-leader", 503, "There is no leader now")
    CROWDED = ("too-many-connections", 503, "There are as many connections as there may be")
    UNAVAILABLE = ("unavailable", 503, "Something this needs is away")
    OTHER = ("http", 400, "The request was refused")


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        hint: str = "",
        errors: Sequence[FieldError] = (),
        legal: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
        accepted: int | None = None,
        durable_lines: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.hint = kind, detail, hint
        self.errors, self.legal = tuple(errors), tuple(legal)
        self.headers = dict(headers or {})
        self.accepted, self.durable_lines = accepted, durable_lines
        self.status = kind.value[1] if status is None else status


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """What there is nothing to say of is left out."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    hint: str = ""
    errors: list[FieldError] = []
    legal: list[str] = []
    accepted: int | None = None
    durable_lines: int | None = None


def problem_of(error: Exception, body: Any = None) -> Problem:
    """The problem that an exception is for whoever asked; `body` is the type of what he was to send."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return _invalid(error, body)
        case SpecError():
            errors = [FieldError(joined("spec", each.path), each.message, each.hint) for each in error.problems]
            return Problem(Kind.INVALID, "the crawl spec cannot be used", errors=errors)
        case Missing():
            return Problem(Kind.NOT_FOUND, str(error))
        case Exists():
            return Problem(Kind.EXISTS, str(error))
        case Full():
            hint = "delete crawls that are no longer needed, or raise master.most_crawls (/v1/config)"
            return Problem(Kind.FULL, str(error), hint=hint)
        case LastAdmin():
            return Problem(Kind.LAST_ADMIN, str(error), hint="create another admin key first")
        case Stale():
            hint = "get it again, apply your change to what you find, and send that with its ETag"
            return Problem(Kind.LOST_UPDATE, str(error), hint=hint, headers={"ETag": f'"{error.current}"'})
        case ReusedKey():
            return Problem(Kind.REUSED_KEY, str(error), hint="use a new key for every new request")
        case IllegalTransition():
            legal = ", ".join(error.legal) or "nothing"
            return Problem(Kind.ILLEGAL_TRANSITION, str(error), hint=f"legal now: {legal}", legal=error.legal)
        case Refused():
            return Problem(Kind.BUSY, str(error), headers=_retry(error))
        case Transient():
            return Problem(Kind.UNAVAILABLE, str(error), headers=_retry(error))
        case HTTPException():
            return _http(error)
        case Permanent():
            log.error("http.refused_by_engine", error=str(error))
            return Problem(Kind.INTERNAL, "the request could not be carried out; the log says why")
        case _:
            return Problem(Kind.INTERNAL, "something went wrong here; the log has it under the request's id")


def answer(problem: Problem, path: str, request_id: str) -> Response:
    """The response that tells a problem."""
    name, _, title = problem.kind.value
    if problem.kind is Kind.OTHER:
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
        legal=[str(verb) for verb in problem.legal],
        accepted=problem.accepted,
        durable_lines=problem.durable_lines,
    )
    return Response(msgspec.json.encode(body), problem.status, problem.headers, MEDIA_TYPE)


async def respond(request: Request, error: Exception) -> Response:
    """The one exception handler of the application."""
    field = getattr(request.scope.get("route"), "body_field", None)
    body = None if field is None else field.field_info.annotation
    if isinstance(error, Missing) and "if-match" in request.headers and request.method not in ("GET", "HEAD"):
        error = Problem(Kind.LOST_UPDATE, str(error), hint="leave If-Match out to create it")  # RFC 9110 §13.1.1
    problem = problem_of(error, body)
    if isinstance(error, Stale) and "name" in request.path_params:
        problem.headers |= await _shown_tag(request)
    return answer(problem, request.url.path, getattr(request.state, "request_id", ""))


async def _shown_tag(request: Request) -> dict[str, str]:
    """Return the ETag that GET of this crawl has now. Return nothing if it cannot be read: the version that the
    problem names is enough for If-Match."""
    services = request.app.state.services
    try:
        shown = await services.shown.answer(request.path_params["name"], services.catalog, services)
    except (Missing, Transient) as unread:
        log.debug("http.tag_not_read", error=str(unread))
        return {}
    return {"ETag": shown.headers["ETag"]}


def _retry(error: Transient) -> dict[str, str]:
    return {"Retry-After": str(max(1, ceil(error.retry_in)))}


def _http(error: HTTPException) -> Problem:
    kinds = {kind.value[1]: kind for kind in (Kind.NOT_FOUND, Kind.METHOD, Kind.TOO_LARGE, Kind.MEDIA, Kind.MALFORMED)}
    kind = kinds.get(error.status_code, Kind.OTHER)
    return Problem(kind, str(error.detail), headers=error.headers, status=error.status_code)


def _invalid(error: RequestValidationError, body: Any) -> Problem:
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        return Problem(Kind.MALFORMED, f"the body is not JSON: {found[0].get('ctx', {}).get('error', '')}".rstrip(": "))
    if isinstance(error.body, bytes) and any(tuple(each["loc"]) == ("body",) for each in found):
        hint = "send the header `Content-Type: application/json`"
        return Problem(Kind.MEDIA, "the body is not said to be JSON", hint=hint)
    wrong: list[FieldError] = []
    for one in found:
        wrong += told(one, body, suggest=len(wrong) < SUGGESTED)
    of_spec = all(isinstance(one.get("ctx", {}).get("error"), SpecError) for one in found)
    detail = "the crawl spec cannot be used" if of_spec else "the request is not valid"
    return Problem(Kind.INVALID, detail, errors=wrong)
