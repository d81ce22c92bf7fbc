"""Forward writes that only the leader may execute from other masters to the leader: one hop, in bounded time.

The client's key, preconditions and request id are forwarded. Its address and certificate are forwarded in a signed
header. So the leader authorizes and logs the request as if the client had sent it directly. A forwarded request is
never forwarded again: if two masters each take the other for the leader, they answer 503.
"""

import re
import ssl
from typing import Final

import httpx
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import ApiProblem, ProblemKind, answer, problem_of
from api.http.limits import BodyTooLarge
from api.members.control_plane import ControlPlane
from api.security.vouching import CLIENT, Vouching
from shared.domain.errors import Transient

log = structlog.get_logger("orb.api")

PASSED_ON: Final = b"x-orb-forwarded"
ANSWER_S: Final = 10.0
KEPT_S: Final = 2.0
"""How long this master keeps an idle connection to the leader. The leader keeps it longer (`serving.RESTS_S`).

Otherwise the leader might close the connection while a write is sent, and the write would be lost.
"""

_CONNECTIONS: Final = 100
_RETRY: Final = {"Retry-After": "2"}
_HINT: Final = "repeat it with the same Idempotency-Key or If-Match: then it cannot happen twice"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_API: Final = b"/v1/"
"""A path is appended to the leader's address only if the path, not yet decoded, begins with this prefix.

Otherwise a path could send the request to another host. Example: `http://leader` and `@host/` give
`http://leader@host/`, which names `host`.
"""

_ANYWHERE: Final = re.compile(
    r"/v1/(crawls/[^/]+/(seeds|plan|seed-sets/[^/]+/plan)|(schedules|host-policies|api-keys)/[^/]+/plan"
    r"|(exclusions|config)/plan|hosts/.*|dead-letters(/.*)?)"
)
_CHANGES_SPEC: Final = re.compile(r"/v1/crawls/[^/]+/seeds")
_TAKEN_ALONG: Final = frozenset(
    (
        b"authorization",
        b"content-type",
        b"content-encoding",
        b"accept",
        b"if-match",
        b"if-none-match",
        b"idempotency-key",
    )
)
_BROUGHT_BACK: Final = (
    "allow",
    "content-type",
    "etag",
    "location",
    "link",
    "retry-after",
    "www-authenticate",
    "ratelimit",
    "ratelimit-policy",
)


def leaders_client(
    verify: ssl.SSLContext | bool, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """Return the HTTP client that `Forwarding` uses to reach the leader.

    - `verify`: the TLS context that verifies the leader's certificate, or True for the default one.
    - `transport`: sends the requests, in tests. None: they are sent over the network.
    """
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=KEPT_S)
    return httpx.AsyncClient(follow_redirects=False, verify=verify, limits=limits, transport=transport)


def needs_leader(method: str, path: str) -> bool:
    """Return True if only the leader may execute the request.

    That is every write below /v1, except plans, uploads of seeds, and commands about hosts and dead letters.
    """
    if method in _SAFE or not path.startswith("/v1/"):
        return False
    return _ANYWHERE.fullmatch(path) is None or (method == "DELETE" and _CHANGES_SPEC.fullmatch(path) is not None)


class Forwarding:
    """ASGI layer that sends requests that only the leader may execute to the leader, unless this master leads.

    Every other request goes to the next layer. `answer_s`: the timeout in seconds, for each step of the exchange with
    the leader (connect, send, receive).
    """

    def __init__(
        self,
        app: ASGIApp,
        plane: ControlPlane,
        client: httpx.AsyncClient,
        member: str,
        answer_s: float,
        vouching: Vouching,
    ) -> None:
        self._app = app
        self._plane = plane
        self._client = client
        self._member = member
        self._answer_s = answer_s
        self._vouching = vouching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not needs_leader(scope["method"], scope["path"]) or self._plane.is_leader():
            await self._app(scope, receive, send)
            return
        request_id = scope["state"]["request_id"]
        try:
            response = await self._forward(scope, receive, request_id)
        except (ApiProblem, Transient) as error:
            response = answer(problem_of(error), scope["path"], request_id)
        await response(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, request_id: str) -> Response:
        leader = self._plane.leader_address()
        if leader is None or any(name == PASSED_ON for name, _ in scope["headers"]):
            raise ApiProblem(
                ProblemKind.NO_LEADER, "there is no leader at the moment; reads still work", headers=_RETRY
            )
        address = scope.get("raw_path") or scope["path"].encode()
        if not address.startswith(_API) or not address.isascii():
            raise ApiProblem(ProblemKind.NOT_FOUND, "unknown address")
        body = await _body(receive)
        headers = [(name, value) for name, value in scope["headers"] if name in _TAKEN_ALONG]
        headers += [(b"x-request-id", request_id.encode()), (PASSED_ON, self._member.encode())]
        headers.append((CLIENT, await self._vouching.sign(scope, scope["state"]["peer"])))
        base = leader if "://" in leader else f"http://{leader}"
        target = base.rstrip("/") + address.decode("ascii")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("ascii")
        try:
            response = await self._client.request(
                scope["method"], target, content=body, headers=headers, timeout=self._answer_s, follow_redirects=False
            )
        except httpx.InvalidURL as error:
            raise ApiProblem(ProblemKind.NOT_FOUND, "unknown address") from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            log.warning("forwarded_request.failed", leader=leader, error=repr(error))
            raise ApiProblem(
                ProblemKind.NO_LEADER, "the leader cannot be reached; nothing was done", headers=_RETRY
            ) from error
        except httpx.HTTPError as error:
            log.warning("forwarded_request.interrupted", leader=leader, error=repr(error))
            detail = "the leader did not answer in time: it may have been done, or not"
            raise ApiProblem(ProblemKind.NO_LEADER, detail, hint=_HINT, headers=_RETRY) from error
        headers_back = {name: response.headers[name] for name in _BROUGHT_BACK if name in response.headers}
        return Response(response.content, response.status_code, headers_back)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    more = True
    while more:
        try:
            message: Message = await receive()
        except BodyTooLarge as error:
            raise ApiProblem(ProblemKind.TOO_LARGE, str(error.detail)) from error
        if message["type"] == "http.disconnect":
            raise ApiProblem(ProblemKind.MALFORMED, "the connection was closed before the end of the body")
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
