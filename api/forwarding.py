"""Writes that only the leader carries out, passed on by whoever else they reach: one hop, in bounded time.

The caller's key, preconditions and request id go along, so the leader judges and logs the request as if it had come
straight to it. A request that was passed on once is never passed on again: two replicas that each take the other for
the leader answer 503 instead of passing it to and fro.
"""

import re
import ssl
from typing import Final

import httpx
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.control.plane import ControlPlane
from api.errors import Kind, Problem, answer
from api.security.limits import TooLarge

log = structlog.get_logger("orb.api")

PASSED_ON: Final = b"x-orb-forwarded"
ANSWER_S: Final = 10.0
KEPT_S: Final = 2.0
"""For how long a connection to the leader waits for the next write: less than half of what the leader waits
(`serving.RESTS_S`). A write that meets the leader's closing is carried out by nobody, and nobody here could tell."""

_CONNECTIONS: Final = 100
_RETRY: Final = {"Retry-After": "2"}
_HINT: Final = "repeat it with the same Idempotency-Key or If-Match: then it cannot happen twice"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_API: Final = b"/v1/"
"""How an address begins, as it was sent. One that only reads so once it is decoded would not end the leader's own
address but go on with it: what stands behind `http://leader` may make it the name of a user at another host."""

_ANYWHERE: Final = re.compile(r"/v1/(crawls/[^/]+/(seeds|plan)|hosts/.*|dead-letters(/.*)?)")
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
_BROUGHT_BACK: Final = ("allow", "content-type", "etag", "location", "link", "retry-after", "www-authenticate")


def leaders_client(
    verify: ssl.SSLContext | bool, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """What `Forwarding` asks the leader with; `verify`: how it makes sure of a leader over TLS."""
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=KEPT_S)
    return httpx.AsyncClient(follow_redirects=False, verify=verify, limits=limits, transport=transport)


def needs_leader(method: str, path: str) -> bool:
    """Whether only the leader carries it out: every write but those that travel to owners through the broker."""
    if method in _SAFE or not path.startswith("/v1/"):
        return False
    return _ANYWHERE.fullmatch(path) is None or (method == "DELETE" and _CHANGES_SPEC.fullmatch(path) is not None)


class Forwarding:
    """Passes on what needs the leader, where this replica is not it."""

    def __init__(
        self, app: ASGIApp, plane: ControlPlane, client: httpx.AsyncClient, member: str, answer_s: float
    ) -> None:
        self._app = app
        self._plane = plane
        self._client = client
        self._member = member
        self._answer_s = answer_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not needs_leader(scope["method"], scope["path"]) or self._plane.is_leader():
            await self._app(scope, receive, send)
            return
        request_id = scope["state"]["request_id"]
        try:
            response = await self._passed_on(scope, receive, request_id)
        except Problem as problem:
            response = answer(problem, scope["path"], request_id)
        await response(scope, receive, send)

    async def _passed_on(self, scope: Scope, receive: Receive, request_id: str) -> Response:
        leader = self._plane.leader_address()
        if leader is None or any(name == PASSED_ON for name, _ in scope["headers"]):
            raise Problem(Kind.NO_LEADER, "no master leads at the moment; reads go on", headers=_RETRY)
        address = scope.get("raw_path") or scope["path"].encode()
        if not address.startswith(_API) or not address.isascii():
            raise Problem(Kind.NOT_FOUND, "there is no such address")
        body = await _body(receive)
        headers = [(name, value) for name, value in scope["headers"] if name in _TAKEN_ALONG]
        headers += [(b"x-request-id", request_id.encode()), (PASSED_ON, self._member.encode())]
        base = leader if "://" in leader else f"http://{leader}"
        target = base.rstrip("/") + address.decode("ascii")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("ascii")
        try:
            said = await self._client.request(
                scope["method"], target, content=body, headers=headers, timeout=self._answer_s, follow_redirects=False
            )
        except httpx.InvalidURL as error:
            raise Problem(Kind.NOT_FOUND, "there is no such address") from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            log.warning("http.leader_unreachable", leader=leader, error=repr(error))
            raise Problem(Kind.NO_LEADER, "the leader cannot be reached; nothing was done", headers=_RETRY) from error
        except httpx.HTTPError as error:
            log.warning("http.leader_silent", leader=leader, error=repr(error))
            detail = "the leader did not answer in time: it may have been done, or not"
            raise Problem(Kind.NO_LEADER, detail, hint=_HINT, headers=_RETRY) from error
        back = {name: said.headers[name] for name in _BROUGHT_BACK if name in said.headers}
        return Response(said.content, said.status_code, back)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    more = True
    while more:
        try:
            message: Message = await receive()
        except TooLarge as error:
            raise Problem(Kind.TOO_LARGE, str(error.detail)) from error
        if message["type"] == "http.disconnect":
            raise Problem(Kind.MALFORMED, "the connection was closed before the end of the body")
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
