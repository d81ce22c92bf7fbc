"""The HTTP application of a master: the routes, the exception handler, and the layers around them."""

import asyncio
import re
from typing import Any, Final

import httpx
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.authentication import Authentication
from api.http.conditional import Conditional
from api.http.deps import Services
from api.http.document import document
from api.http.errors import ApiProblem, ProblemKind, respond
from api.http.forwarding import ANSWER_S, Forwarding
from api.http.limits import BodyLimit
from api.http.request_context import RequestContext
from api.http.routing import check_rights, mount
from api.http.wrong_keys import WrongKeyRefusal
from api.observe.traffic import measure
from api.routes import (
    audit,
    changes,
    cluster,
    config,
    crawls,
    events,
    exclusions,
    exports,
    health,
    hosts,
    items,
    keys,
    pages,
    progress,
    replay,
    schedules,
    seed_sets,
    seeds,
    urls,
    versions,
)
from api.routes import crawl_verbs as turning
from api.routes import dead_letters as letters
from api.routes import docs as reading
from api.routes import seed_list as declared_seeds
from api.security.vouching import Vouching
from shared.domain.crawl.spec_parse import SpecError
from shared.domain.crawl.state import IllegalTransition
from shared.domain.errors import Permanent, Transient
from shared.ports.catalog import Exists, Full, LastAdmin, Missing, NoSecret, ReusedKey, Stale
from shared.runtime.supervise import Tasks

ROUTERS: Final = (
    crawls.router,  # The router tries them in this order, so the most frequent come first.
    health.router,
    turning.router,
    seeds.router,
    declared_seeds.router,
    seed_sets.router,
    progress.router,
    progress.lag_router,
    events.router,
    urls.router,
    changes.router,
    versions.router,
    pages.router,
    replay.router,
    items.router,
    exports.router,
    hosts.router,
    exclusions.router,
    hosts.policies,
    schedules.router,
    letters.router,
    cluster.router,
    config.router,
    keys.router,
    audit.router,
    reading.router,
)
_OURS: Final = (
    ApiProblem,
    HTTPException,
    RequestValidationError,
    SpecError,
    IllegalTransition,
    Missing,
    Exists,
    Full,
    LastAdmin,
    NoSecret,
    Stale,
    ReusedKey,
    Transient,
    Permanent,
)


_METHODS: Final[tuple[tuple[re.Pattern[str], frozenset[str]], ...]] = tuple(
    (route.path_regex, frozenset(route.methods or ()))
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, Route)
)


async def _no_such_method(request: Request, error: Exception) -> Response:
    """Answer 405, and list all methods that the path has.

    Starlette would list only the methods of the first route that has this path.
    """
    allowed = frozenset().union(*(methods for path, methods in _METHODS if path.match(request.url.path)))
    allowed |= {"HEAD"} if "GET" in allowed else frozenset()
    detail = f"{request.url.path} is for {', '.join(sorted(allowed))}"
    return await respond(request, ApiProblem(ProblemKind.METHOD, detail, headers={"Allow": ", ".join(sorted(allowed))}))


class _Application(FastAPI):
    """The FastAPI application, with the OpenAPI document of `api.http.document` in place of FastAPI's."""

    def openapi(self) -> dict[str, Any]:
        return document(self)


class HeadReads:
    """ASGI layer that answers HEAD with the status and headers of GET, without a body (RFC 9110 §9.3.2).

    A route that sends its body in several parts, such as an export, is cancelled after the first part.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        over = asyncio.Event()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif message.get("more_body", False):
                over.set()

        async def answer() -> None:
            await self._app({**scope, "method": "GET"}, receive, sending)

        async with Tasks() as tasks:
            tasks.start("head", answer()).add_done_callback(lambda _: over.set())
            await over.wait()


def application(
    services: Services | None = None, client: httpx.AsyncClient | None = None, *, answer_s: float = ANSWER_S
) -> FastAPI:
    """Return the HTTP application of a master.

    Without `services` or `client`, it can only answer requests that do not use them, such as one for /openapi.json.

    - `client` sends forwarded requests to the leader. The caller closes it.
    - `answer_s`: the timeout in seconds of each step of forwarding a request (connect, send, receive).
    """
    app = _Application(
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it would look for each at every request
    )
    for router in ROUTERS:
        mount(app, router)
    check_rights(app)
    for kind in _OURS:
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(405, _no_such_method)
    if services is not None and client is not None:
        app.state.services = services
        vouching = Vouching(services.catalog, services.clock)
        # Layers are added from the inside out: a request passes the last one first.
        app.add_middleware(Conditional)
        app.add_middleware(
            Forwarding,
            plane=services.plane,
            client=client,
            member=services.member,
            answer_s=answer_s,
            vouching=vouching,
        )
        app.add_middleware(
            Authentication,
            keyring=services.keyring,
            vouching=vouching,
            uses=services.uses,
            wrong_keys=services.wrong_keys,
            clock=services.clock,
        )
        app.add_middleware(BodyLimit, max_count=services.body_bytes)
        app.add_middleware(RequestContext)
        if services.registry is not None:
            measure(app, services.registry)
        app.add_middleware(
            WrongKeyRefusal, keyring=services.keyring, wrong_keys=services.wrong_keys, clock=services.clock
        )
    app.add_middleware(HeadReads)
    return app
