"""What routes are given: the services of this master, who asks, preconditions and pages.

Dependencies are coroutines even where they await nothing: the framework runs plain functions in threads, which costs
more than what they do.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant

from api.control.plane import ControlPlane
from api.control.roster import Roster
from api.control.telling import Telling
from api.errors import MEDIA_TYPE, Kind, Problem
from api.feeds import OpenStreams
from api.fields import FieldError
from api.routing import documents
from api.security.authentication import Keyring
from api.security.limits import BODY_BYTES
from api.shown import ShownCrawls
from shared.domain.access import ApiKey, Role
from shared.domain.config import MasterTuning
from shared.domain.declared import ANY_TAG, Actor, Repeatable
from shared.domain.meant import did_you_mean
from shared.ports.archive import PageArchive
from shared.ports.backlog import Backlog
from shared.ports.broker import Broker
from shared.ports.catalog import Catalog
from shared.ports.clock import Clock
from shared.ports.desired import Desired
from shared.ports.events import Events
from shared.ports.overview import Overview
from shared.wire.wanted import NOTHING_SAID, Wanted

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

T = TypeVar("T")

_SHOWN: Final = 10

DEFAULT_PAGE: Final = 50
LARGEST_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Services:
    """What a master answers with. `member` is its id; `ready` names the dependencies that are missing; `tuning` has the
    values that it runs with now, `registry` its metrics. `archive` is None where it was not told where the archive is;
    `exports` are those under way, `shown` the crawls that were shown last; a body may have `body_bytes`. `overview` and
    `backlog` see the whole of what waits, `events` what happened; `telling` takes what happens here; `held` says why
    this master takes on nothing new, None while it does. `longest_grant_s` and `ack_wait_s` are those of its owners."""

    catalog: Catalog
    broker: Broker
    plane: ControlPlane
    clock: Clock
    keyring: Keyring
    partitions: int
    member: str
    ready: Callable[[], Awaitable[Sequence[str]]]
    desired: Desired
    events: Events
    overview: Overview
    backlog: Backlog
    telling: Telling
    streams: OpenStreams = field(default_factory=OpenStreams)
    roster: Roster = field(default_factory=Roster)
    tuning: Callable[[], MasterTuning] = MasterTuning
    wanted: Callable[[], Wanted] = lambda: NOTHING_SAID
    longest_grant_s: float = 30.0
    ack_wait_s: float = 30.0
    held: Callable[[], str | None] = lambda: None
    registry: "CollectorRegistry | None" = None
    archive: PageArchive | None = None
    shown: ShownCrawls = field(default_factory=ShownCrawls)
    exports: OpenStreams = field(default_factory=OpenStreams)
    body_bytes: int = BODY_BYTES


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _actor(request: Request) -> Actor:
    key: ApiKey = request.state.key
    return Actor(key.key_id, key.name, request.state.request_id)


Served = Annotated[Services, Depends(_services)]
By = Annotated[Actor, Depends(_actor)]


def needs(role: Role) -> Any:
    """The dependency of a route for which a key needs `role`; it refuses parameters that the route does not have, too:
    a filter that is misspelt would show everything."""

    async def allowed(request: Request) -> None:
        if request.scope["query_string"]:
            _refuse_unknown(request)
        key: ApiKey = request.scope["state"]["key"]
        if not key.role.covers(role):
            detail = f"this needs the role {role}, and the key {key.name!r} has {key.role}"
            raise Problem(Kind.FORBIDDEN, detail)

    return Depends(allowed)


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
        raise Problem(Kind.INVALID, "the request is not valid", errors=errors)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for part in dependant.dependencies:
        yield from _parameters(part)


# --- preconditions ----------------------------------------------------------------------------------------------------


_TAG: Final = r'(?:W/)?"[^"]*"'
TAGS: Final = rf"^(\*|{_TAG}(\s*,\s*{_TAG})*)$"


def etag(tag: str) -> dict[str, str]:
    """The header that names a version."""
    return {"ETag": f'"{tag}"'}


async def _expected(
    if_match: Annotated[
        str | None,
        Header(
            json_schema_extra={"pattern": TAGS},
            description='The ETag you saw, or several: `"7-3"`; `*` stands for any. The change is refused with 412 if '
            "the resource has none of these, or is not there. Of a crawl, what stands behind a dot changes while it "
            "runs, and does not matter here.",
        ),
    ] = None,
) -> frozenset[str] | None:
    """The tags of the versions that may be changed, None for whatever is there (RFC 9110 §13.1.1). A weak tag is the
    tag of no version: If-Match compares strongly."""
    if if_match is None:
        return None
    said = if_match.strip()
    if said == "*":
        return ANY_TAG
    if re.fullmatch(TAGS, said) is None:
        error = FieldError("If-Match", "expected ETags in quotes, separated by commas, or *")
        raise Problem(Kind.INVALID, "a header is not valid", errors=[error])
    tags = re.findall(_TAG, said)
    return frozenset(tag[1:-1].partition(".")[0] for tag in tags if not tag.startswith("W/"))


Expected = Annotated[frozenset[str] | None, Depends(_expected)]


@documents
async def _known(
    if_none_match: Annotated[
        str | None, Header(description="ETags that you have: where one still holds, the answer is 304 and empty.")
    ] = None,
) -> None:
    """Documents what api.conditional does."""


CONDITIONAL: Final = Depends(_known)
"""The dependency of a read that shows an ETag."""

UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "You have it already."}}
"""The further answer of such a read, for the OpenAPI document."""


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

GREATEST: Final = 2**63 - 1
"""The greatest number that a database's column holds."""


def _storable(place: object, greatest: int) -> bool:
    """Whether a database can compare with it."""
    match place:
        case int():
            return -1 <= place <= greatest
        case str():
            return "\0" not in place
        case tuple():
            return all(_storable(part, greatest) for part in place)
    return True


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page is asked for: `most` entries behind the place that `cursor` holds."""

    most: int
    cursor: str | None
    request: Request

    def place(self, kind: type[T], start: T, *, greatest: int = GREATEST) -> T:
        """The place the page begins behind; `start` for the first. No number in it is beyond `greatest`."""
        if self.cursor is None:
            return start
        try:
            padded = self.cursor + "=" * (-len(self.cursor) % 4)
            place = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=kind)
            if not _storable(place, greatest):
                raise ValueError("no database has such a place")
            return place
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


async def _paging(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Entries a page.")] = DEFAULT_PAGE,
    cursor: Annotated[str | None, Query(max_length=1024, description="`next` of the page before.")] = None,
) -> Paging:
    return Paging(limit, cursor, request)


Page = Annotated[Paging, Depends(_paging)]


# --- the document -----------------------------------------------------------------------------------------------------


def problems(*kinds: Kind | int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route besides those that every route has, for the OpenAPI document. A status stands for the first
    kind that has it."""
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        named = kind if isinstance(kind, Kind) else next(each for each in Kind if each.value[1] == kind)
        by_status.setdefault(named.value[1], []).append(named)
    return {
        status: {"description": named[0].value[2], "content": problem_content(*named)}
        for status, named in by_status.items()
    }


def problem_content(*kinds: Kind) -> dict[str, Any]:
    """The content of an answer that is one of these problems, an example of each among it."""
    examples = {kind.value[0]: {"$ref": f"#/components/examples/{kind.value[0]}"} for kind in kinds}
    return {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}, "examples": examples}}
