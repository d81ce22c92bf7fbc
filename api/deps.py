"""What routes are given: the services of this master, who asks, preconditions and pages."""

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Header, Query, Request, Response

from api.control.plane import ControlPlane
from api.errors import MEDIA_TYPE, FieldError, Kind, Problem
from api.security.authentication import Keyring
from shared.domain.access import ApiKey, Role
from shared.domain.declared import Actor, Repeatable
from shared.ports.broker import Broker
from shared.ports.catalog import Catalog
from shared.ports.clock import Clock

T = TypeVar("T")

DEFAULT_PAGE: Final = 50
LARGEST_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Services:
    """What a master answers with. `member` is its id; `ready` names the dependencies that are missing."""

    catalog: Catalog
    broker: Broker
    plane: ControlPlane
    clock: Clock
    keyring: Keyring
    partitions: int
    member: str
    ready: Callable[[], Awaitable[Sequence[str]]]


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _actor(request: Request) -> Actor:
    key: ApiKey = request.state.key
    return Actor(key.key_id, key.name, request.state.request_id)


Served = Annotated[Services, Depends(_services)]
By = Annotated[Actor, Depends(_actor)]


def needs(role: Role) -> Any:
    """The dependency of a route for which a key needs `role`."""

    def allowed(request: Request) -> None:
        key: ApiKey = request.state.key
        if not key.role.covers(role):
            detail = f"this needs the role {role}, and the key {key.name!r} has {key.role}"
            raise Problem(Kind.FORBIDDEN, detail)

    return Depends(allowed)


# --- preconditions ----------------------------------------------------------------------------------------------------


def etag(tag: str) -> dict[str, str]:
    """The header that names a version."""
    return {"ETag": f'"{tag}"'}


def _expected(
    if_match: Annotated[
        str | None,
        Header(description='The ETag you saw: `"7-3"`. The change is refused with 412 where it is no longer that.'),
    ] = None,
) -> str | None:
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip()
    if len(tag) < 2 or tag[0] != '"' or tag[-1] != '"' or '"' in tag[1:-1]:
        error = FieldError("If-Match", "expected one strong ETag in quotes, or *")
        raise Problem(Kind.INVALID, "a header is not valid", errors=[error])
    return tag[1:-1]


Expected = Annotated[str | None, Depends(_expected)]


async def _repeatable(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="A name of your own for this request: repeated within a day, it is carried out once.",
        ),
    ] = None,
) -> Repeatable | None:
    if idempotency_key is None:
        return None
    asked = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return Repeatable(idempotency_key, hashlib.sha256(asked).digest())


Idempotent = Annotated[Repeatable | None, Depends(_repeatable)]


# --- pages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page is asked for: `most` entries behind the place that `cursor` holds."""

    most: int
    cursor: str | None
    request: Request

    def place(self, kind: type[T], start: T) -> T:
        """The place the page begins behind; `start` for the first."""
        if self.cursor is None:
            return start
        try:
            padded = self.cursor + "=" * (-len(self.cursor) % 4)
            return msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=kind)
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            wrong = FieldError("cursor", "is not one that a list gave", "take `next` of the page before, as it is")
            raise Problem(Kind.INVALID, "the cursor is not valid", errors=[wrong]) from error

    def next(self, place: object, response: Response) -> str | None:
        """The cursor of the page behind `place`, told by the Link header, too; None where there is no place."""
        if place is None:
            return None
        cursor = base64.urlsafe_b64encode(msgspec.json.encode(place)).rstrip(b"=").decode()
        url = self.request.url.include_query_params(cursor=cursor)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        return cursor


def _paging(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Entries a page.")] = DEFAULT_PAGE,
    cursor: Annotated[str | None, Query(max_length=1024, description="`next` of the page before.")] = None,
) -> Paging:
    return Paging(limit, cursor, request)


Page = Annotated[Paging, Depends(_paging)]


# --- the document -----------------------------------------------------------------------------------------------------


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route besides those that every route has, for the OpenAPI document."""
    return {status: {"description": HTTPStatus(status).phrase, "content": PROBLEM_CONTENT} for status in statuses}


PROBLEM_CONTENT: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
