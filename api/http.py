"""The application: routes, the one exception handler, and the layers around them, in the order they are passed."""

import re
from functools import partial
from typing import Any, Final

import httpx
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from api.conditional import Conditional
from api.deps import Services
from api.document import document
from api.errors import Kind, Problem, respond
from api.forwarding import ANSWER_S, Forwarding
from api.head import head
from api.routes import (
    audit,
    cluster,
    config,
    crawls,
    declared_seeds,
    events,
    exports,
    health,
    hosts,
    items,
    keys,
    lag,
    letters,
    metrics,
    pages,
    progress,
    reading,
    seed_deletion,
    seeds,
    turning,
    urls,
)
from api.routing import mount
from api.security.authentication import Authentication
from api.security.context import RequestContext
from api.security.limits import BodyLimit
from api.traffic import measure
from shared.domain.crawl_state import IllegalTransition
from shared.domain.errors import Permanent, Transient
from shared.domain.spec_parse import SpecError
from shared.ports.catalog import Exists, Full, LastAdmin, Missing, ReusedKey, Stale

ROUTERS: Final = (
    crawls.router,  # looked through in this order: what is asked for most comes first
    health.router,
    metrics.router,
    turning.router,
    seeds.router,
    seed_deletion.router,
    declared_seeds.router,
    progress.router,
    lag.router,
    events.router,
    urls.router,
    pages.router,
    items.router,
    exports.router,
    hosts.router,
    letters.router,
    cluster.router,
    config.router,
    keys.router,
    audit.router,
    reading.router,
)
_OURS: Final = (
    Problem,
    HTTPException,
    RequestValidationError,
    SpecError,
    IllegalTransition,
    Missing,
    Exists,
    Full,
    LastAdmin,
    Stale,
    ReusedKey,
    Transient,
    Permanent,
)


_METHODS: Final[tuple[tuple[re.Pattern[str], frozenset[str]], ...]] = tuple(
    (compile_path(route.path)[0], frozenset(route.methods or ()))
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, Route)
)


async def _no_such_method(request: Request, error: Exception) -> Response:
    """The router names the methods of the first route of that path only; each of ours has one."""
    allowed = frozenset().union(*(methods for path, methods in _METHODS if path.match(request.url.path)))
    allowed |= {"HEAD"} if "GET" in allowed else frozenset()
    detail = f"{request.url.path} is for {', '.join(sorted(allowed))}"
    return await respond(request, Problem(Kind.METHOD, detail, headers={"Allow": ", ".join(sorted(allowed))}))


class _Application(FastAPI):
    """A FastAPI application with our document."""

    def openapi(self) -> dict[str, Any]:
        return document(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette has it: the framework would look for somebody's tracer at every request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await head(partial(Starlette.__call__, self), scope, receive, send)
        else:
            await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Our layers around the handlers of exceptions around the routes. Of the framework's own, the one that answers
        what nobody handled is ours (`RequestContext`), as is the bound of bodies."""
        app: ASGIApp = ExceptionMiddleware(self.router, handlers=self.exception_handlers)
        for layer, positional, named in reversed(self.user_middleware):
            app = layer(app, *positional, **named)
        return app


def application(
    services: Services | None = None, client: httpx.AsyncClient | None = None, *, answer_s: float = ANSWER_S
) -> FastAPI:
    """The application; without services only its document can be asked for.

    `client` carries what is passed on to the leader; whoever gives it closes it.
    `answer_s`: for how long the leader may think.
    """
    app = _Application(docs_url=None, redoc_url=None, openapi_url="/openapi.json", redirect_slashes=False)
    for router in ROUTERS:
        mount(app, router)
    for kind in _OURS:
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(405, _no_such_method)
    if services is not None and client is not None:
        app.state.services = services
        # Added from inside out: a request passes the last one first.
        app.add_middleware(Conditional)
        app.add_middleware(Forwarding, plane=services.plane, client=client, member=services.member, answer_s=answer_s)
        app.add_middleware(Authentication, keyring=services.keyring)
        app.add_middleware(BodyLimit, most=services.body_bytes)
        app.add_middleware(RequestContext)
        if services.registry is not None:
            measure(app, services.registry)
    return app
