"""What FastAPI passes to routes: this master's services, the actor of the request, preconditions and paging.

These dependencies are coroutines even if they await nothing: FastAPI runs plain functions in threads, which costs more
than the functions themselves.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Header, Query, Request, Response

from api.events.publisher import EventPublisher
from api.http.authentication import Keyring
from api.http.cached_reads import CachedCrawlReads
from api.http.errors import MEDIA_TYPE, ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.limits import BODY_BYTES
from api.http.sse import StreamLimit
from api.members.control_plane import ControlPlane
from api.members.member_stats import MemberStats
from api.schemas.model import ANYTHING
from api.security.key_uses import KeyUses
from api.security.limits import Permits, WrongKeys
from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.ops.access import ApiKey
from shared.domain.ops.config import MasterTuning
from shared.domain.ops.watermarks import Pressure
from shared.domain.reads.declared import ANY_TAG, Actor, Repeatable
from shared.ports.archive import PageArchive
from shared.ports.broker import Backlog, Broker
from shared.ports.catalog import Catalog
from shared.ports.clock import Clock
from shared.ports.desired import Desired
from shared.ports.events import Events
from shared.ports.overview import Overview
from shared.ports.schedules import Schedules
from shared.wire.desired_state import NOTHING_SAID, DesiredState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

T = TypeVar("T")

DEFAULT_PAGE: Final = 50
LARGEST_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes of a master use: its services, its view of the cluster and its limits.

    - `catalog`, `desired` and `schedules` read and write the declared resources in SQL. `broker` publishes to NATS.
    - `plane` is this master's view of the cluster: leader, members and owners. `roster` has their statistics.
    - `member`: the master's id. `partitions`: the cluster's number of partitions.
    - `ready` checks the database, NATS and etcd. It returns the names of those that do not answer; none if all do.
    - `tuning` returns the hot configuration that this master runs with. `wanted` returns the desired state of the
      members.
    - `exclusions` returns the exclusions in force. `pressure` returns the resources of this master that are nearly
      full.
    - `registry`: the metrics of this master. `archive` reads archived pages; None if no archive is configured.
    - `streams` and `exports` limit the open event streams and exports. `shown` caches responses that show a crawl.
    - `overview` reads crawls, lag and the audit log in SQL. `backlog` counts the reports that are not applied yet.
    - `events` reads events, `telling` publishes them.
    - `keyring` verifies API keys, `uses` stores when each was last used. `permits` and `wrong_keys` limit requests.
    - `longest_grant_s`: the setting `grant_s` with which the master was started. The hot configuration may set a grant
      of at most this length. `ack_wait_s`: the setting of that name at the start.
    - `body_bytes`: the maximum size of a request body.
    """

    catalog: Catalog
    broker: Broker
    plane: ControlPlane
    clock: Clock
    keyring: Keyring
    uses: KeyUses
    partitions: int
    member: str
    ready: Callable[[], Awaitable[Sequence[str]]]
    desired: Desired
    schedules: Schedules
    events: Events
    overview: Overview
    backlog: Backlog
    telling: EventPublisher
    streams: StreamLimit = field(default_factory=StreamLimit)
    roster: MemberStats = field(default_factory=MemberStats)
    tuning: Callable[[], MasterTuning] = MasterTuning
    wanted: Callable[[], DesiredState] = lambda: NOTHING_SAID
    exclusions: Callable[[], Exclusions] = lambda: NO_EXCLUSIONS
    longest_grant_s: float = 30.0
    ack_wait_s: float = 30.0
    pressure: Callable[[], Sequence[Pressure]] = tuple
    registry: "CollectorRegistry | None" = None
    archive: PageArchive | None = None
    shown: CachedCrawlReads = field(default_factory=CachedCrawlReads)
    exports: StreamLimit = field(default_factory=StreamLimit)
    body_bytes: int = BODY_BYTES
    permits: Permits = field(default_factory=Permits)
    wrong_keys: WrongKeys = field(default_factory=WrongKeys)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _actor(request: Request) -> Actor:
    key: ApiKey = request.state.key
    return Actor(key.key_id, key.name, request.state.request_id)


Served = Annotated[Services, Depends(_services)]
By = Annotated[Actor, Depends(_actor)]


# --- preconditions ----------------------------------------------------------------------------------------------------


_TAG: Final = r'(?:W/)?"[^"]*"'
TAGS: Final = rf"^(\*|{_TAG}(\s*,\s*{_TAG})*)$"


def etag(tag: str) -> dict[str, str]:
    """Return an ETag header with this tag. `tag` has no quotes."""
    return {"ETag": f'"{tag}"'}


async def _if_match(
    if_match: Annotated[
        str | None,
        Header(
            json_schema_extra={"pattern": TAGS},
            description='The ETag of the version to change, or several, as `"7-3"`; `*` is any version. The change is '
            "refused with 412 if the resource has none of them, or does not exist. The part of a crawl's ETag after a "
            "dot is ignored.",
        ),
    ] = None,
) -> frozenset[str] | None:
    """Return the versions that the request may change, as the tags in If-Match (RFC 9110 §13.1.1).

    - Without the header, return None: the request may change any version, or create the resource.
    - For `*`, return ANY_TAG: the request may change any version, but the resource must exist.
    - Otherwise return the tags. Ignore weak tags. Remove the part of a tag after a dot: `"7-3.5e1f"` -> `7-3`.

    Raise ApiProblem if the header is malformed.
    """
    if if_match is None:
        return None
    given = if_match.strip()
    if given == "*":
        return ANY_TAG
    if re.fullmatch(TAGS, given) is None:
        error = FieldError("If-Match", "expected ETags in quotes, separated by commas, or *")
        raise ApiProblem(ProblemKind.INVALID, "a header is not valid", errors=[error])
    tags = re.findall(_TAG, given)
    return frozenset(tag[1:-1].partition(".")[0] for tag in tags if not tag.startswith("W/"))


IfMatch = Annotated[frozenset[str] | None, Depends(_if_match)]
"""The versions that a PUT may change. It is for routes that also create the resource, and that take `OnlyNew`."""


async def _only_new(
    if_none_match: Annotated[
        str | None,
        Header(
            pattern=ANYTHING,
            description="`*`: only if the resource does not exist. A request that cannot create it is then refused.",
        ),
    ] = None,
) -> bool:
    return if_none_match is not None


OnlyNew = Annotated[bool, Depends(_only_new)]
"""True if a PUT has `If-None-Match: *`, so that it may only create the resource."""


async def _expected(if_match: IfMatch, new: OnlyNew) -> frozenset[str] | None:
    """Return the versions that the request may change, as `_if_match`. With `If-None-Match: *` return an empty set.

    With an empty set the write always fails (RFC 9110 §13.1.2). It raises Stale if the resource exists, else Missing.
    """
    return frozenset() if new else if_match


Expected = Annotated[frozenset[str] | None, Depends(_expected)]
"""The versions that a write may change. It is for routes that never create the resource, such as verbs and DELETE."""


def check_conditions(new: bool, expected: frozenset[str] | None) -> None:
    """Raise ApiProblem if a PUT has both If-None-Match and If-Match, because no state of the resource fulfills both.

    - `new`: True if the request has If-None-Match.
    - `expected`: the tags in If-Match; None without it.

    Call it after all other checks: a precondition is evaluated only for a request that is otherwise valid (RFC 9110
    §13.2.2).
    """
    if new and expected is not None:
        raise ApiProblem(ProblemKind.LOST_UPDATE, "nothing meets both If-Match and If-None-Match", hint="omit one")


async def _known(
    if_none_match: Annotated[
        str | None,
        Header(
            description="ETags of versions that the client has. If one is current, the answer is 304 without a body."
        ),
    ] = None,
) -> None:
    """Declare the header If-None-Match in the OpenAPI document. `api.http.conditional` evaluates it."""


CONDITIONAL: Final = Depends(_known)
"""Declares the header If-None-Match of a route in the OpenAPI document, and has no other effect.

Every read whose response has an ETag has this dependency."""

UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "The client has the current version."}}
"""The additional response of a read whose response has an ETag, for the OpenAPI document."""


async def _repeatable(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="A name that the client chooses for this request. If it is repeated "
            "within a day, it is executed once.",
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
"""The greatest integer that a database column holds."""


def _storable(place: object, greatest: int) -> bool:
    """Return True if a database can compare its rows with `place`, the position in a list that a cursor encodes.

    A client can invent a cursor, so each value in `place` is checked. Text must have no NUL. An integer must be from -1
    to `greatest`; -1 stands for the place before the first id. Example: `_storable((-1, "a"), 10)` returns True.
    """
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
    """The page of a list that a request asks for: at most `max_count` entries, after the entry that `cursor` encodes.

    `cursor` is None for the first page.
    """

    max_count: int
    cursor: str | None
    request: Request

    def place(self, kind: type[T], start: T, *, greatest: int = GREATEST) -> T:
        """Decode the cursor. Return the key of the entry after which the page begins; `start` for the first page.

        `kind`: the type of the key. Raise ApiProblem for an invalid cursor, or if a number in it is above `greatest`.
        """
        if self.cursor is None:
            return start
        try:
            padded = self.cursor + "=" * (-len(self.cursor) % 4)
            place = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=kind)
            if not _storable(place, greatest):
                raise ValueError("no database has such a place")
            return place
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            wrong = FieldError("cursor", "is not a cursor of this list", "use `next` of the previous page unchanged")
            raise ApiProblem(ProblemKind.INVALID, "the cursor is not valid", errors=[wrong]) from error

    def next(self, place: object, response: Response) -> str | None:
        """Return the cursor of the next page, and add the address of that page to `response` as the Link header.

        `place`: the key of the last entry of this page. If it is None, there is no next page: return None and add no
        header.
        """
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


def problems(*kinds: ProblemKind | int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route for the OpenAPI document, by status.

    Each of `kinds` is a kind of problem, or an HTTP status. A status stands for one kind: the first member of the enum
    `ProblemKind` with this status. For example, 409 stands for EXISTS, the first of several kinds with the status 409.
    """
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in kinds:
        named = kind if isinstance(kind, ProblemKind) else next(each for each in ProblemKind if each.value[1] == kind)
        by_status.setdefault(named.value[1], []).append(named)
    return {
        status: {"description": named[0].value[2], "content": problem_content(*named)}
        for status, named in by_status.items()
    }


def problem_content(*kinds: ProblemKind) -> dict[str, Any]:
    """Return the content of a response that is one of these problems, for the OpenAPI document, with their examples."""
    examples = {kind.value[0]: {"$ref": f"#/components/examples/{kind.value[0]}"} for kind in kinds}
    return {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}, "examples": examples}}
