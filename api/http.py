"""The application: routes, the one exception handler, and the layers around them, in the order they are passed."""

from typing import Any, Final

import httpx
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.deps import Services
from api.document import document
from api.errors import Problem, respond
from api.forwarding import ANSWER_S, Forwarding
from api.routes import cluster, crawls, health, hosts, keys, letters, progress, reading, seeds, turning, urls
from api.security.authentication import Authentication
from api.security.context import RequestContext
from api.security.limits import BodyLimit
from shared.domain.crawl_state import IllegalTransition
from shared.domain.errors import Permanent, Transient
from shared.domain.spec_parse import SpecError
from shared.ports.catalog import Exists, Missing, ReusedKey, Stale

ROUTERS: Final = (
    health.router,
    crawls.router,
    turning.router,
    seeds.router,
    progress.router,
    urls.router,
    hosts.router,
    letters.router,
    cluster.router,
    keys.router,
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
    Stale,
    ReusedKey,
    Transient,
    Permanent,
)


class _Application(FastAPI):
    """A FastAPI application with our document."""

    def openapi(self) -> dict[str, Any]:
        return document(self)


def application(
    services: Services | None = None, client: httpx.AsyncClient | None = None, *, answer_s: float = ANSWER_S
) -> FastAPI:
    """The application; without services only its document can be asked for.

    `client` carries what is passed on to the leader; whoever gives it closes it.
    `answer_s`: for how long the leader may think.
    """
    app = _Application(docs_url=None, redoc_url=None, openapi_url="/openapi.json", redirect_slashes=False)
    for router in ROUTERS:
        app.include_router(router)
    for kind in _OURS:
        app.add_exception_handler(kind, respond)
    if services is not None and client is not None:
        app.state.services = services
        # Added from inside out: a request passes the last one first.
        app.add_middleware(Forwarding, plane=services.plane, client=client, member=services.member, answer_s=answer_s)
        app.add_middleware(Authentication, keyring=services.keyring)
        app.add_middleware(BodyLimit)
        app.add_middleware(RequestContext)
    return app
