"""The guard that a route gets from the table of rights."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from fastapi import Request
from fastapi.dependencies.models import Dependant

from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.security.rights import Right
from shared.domain.ops.access import ApiKey
from shared.domain.suggestions import did_you_mean

_SHOWN: Final = 10


def guard_of(right: Right) -> Callable[[Request], Awaitable[None]]:
    """Return the guard of a route below /v1. It refuses API keys whose role does not have `right`.

    It also refuses query parameters that the route does not have: a misspelt filter would show everything.
    """
    role = right.role
    assert role is not None, "a route without a role has no guard"

    async def allowed(request: Request) -> None:
        if request.scope["query_string"]:
            _refuse_unknown(request)
        key: ApiKey = request.scope["state"]["key"]
        if not right.allows(key.role):
            detail = f"this needs the role {role}, and the key {key.name!r} has {key.role}"
            raise ApiProblem(ProblemKind.FORBIDDEN, detail)

    return allowed


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
