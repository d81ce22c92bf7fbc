"""Check, for each route, the role of the API key, the query parameters and the rate limit."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from fastapi import Request
from fastapi.dependencies.models import Dependant

from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.security.limits import rate_headers
from api.security.rights import Right, RouteClass
from shared.domain.ops.access import ApiKey
from shared.domain.ops.permits import BURST_S, Permit
from shared.domain.suggestions import did_you_mean

_SHOWN: Final = 10


def guard_of(right: Right) -> Callable[[Request], Awaitable[None]]:
    """Return the guard of a route that needs `right`. The guard raises ApiProblem for a request that is not allowed.

    It refuses a key whose role does not have the right, a key above its rate limit, and unknown query parameters. A
    misspelt filter would otherwise be ignored, and the response would contain everything.
    """
    role = right.role
    assert role is not None, "a route without a role has no guard"

    async def allowed(request: Request) -> None:
        if request.scope["query_string"]:
            _refuse_unknown(request)
        key: ApiKey = request.scope["state"]["key"]
        if not right.allows(key.role):
            detail = f"this needs the role {role}, and the {key.kind} {key.name!r} has {key.role}"
            raise ApiProblem(ProblemKind.FORBIDDEN, detail)
        _take_permit(request, key, right.route_class)

    return allowed


def _take_permit(request: Request, key: ApiKey, route_class: RouteClass) -> None:
    """Count the request against the key's rate limit. Raise ApiProblem (429) if the limit is reached.

    Otherwise put the headers that show the limit into the request's state. Do nothing if the class of route has no
    limit.
    """
    services = request.app.state.services
    permit: Permit | None = services.permits.take(key.key_id, route_class, services.clock.elapsed())
    if permit is None:
        return
    headers = rate_headers(permit, route_class)
    if not permit.allowed:
        per_s = permit.quota // BURST_S
        detail = f"the {key.kind} {key.name!r} sent more than {per_s} requests a second of the class {route_class}"
        hint = "wait as Retry-After says, and spread requests"
        again = {"Retry-After": str(permit.wait_s)}
        raise ApiProblem(ProblemKind.RATE_LIMITED, detail, hint=hint, headers={**headers, **again})
    request.scope["state"]["headers"] = [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _refuse_unknown(request: Request) -> None:
    known = set(_parameters(request.scope["route"].dependant))
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        errors = [
            FieldError(
                f"query.{name}",
                "there is no such parameter",
                did_you_mean(name, sorted(known)) if known else "there are none here",
            )
            for name in unknown[:_SHOWN]
        ]
        raise ApiProblem(ProblemKind.INVALID, "the request is not valid", errors=errors)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for part in dependant.dependencies:
        yield from _parameters(part)
