"""Measure HTTP requests by the path template of their route, so that clients cannot create new labels in metrics."""

import re
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from prometheus_fastapi_instrumentator import metrics
from prometheus_fastapi_instrumentator.metrics import Info
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from prometheus_fastapi_instrumentator.routing import get_route_name
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from shared.domain.ops.counts import OTHER

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

NO_ROUTE: Final = "none"
_CONVERTER: Final = re.compile(r":\w+(?=\})")
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_MAX_PATHS: Final = 1024
"""Maximum number of results of `_route_of` that are cached: one for each pair (method, path)."""

_DURATIONS_S: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def measure(app: FastAPI, registry: "CollectorRegistry") -> None:
    """Count every request to `app`, and measure its time until the response begins. Add the metrics to `registry`.

    The time does not include the body, because a stream may be open for hours.
    """
    counted = metrics.requests(
        metric_name="http_requests_total",
        metric_doc="Requests to the API, by the template of their route.",
        metric_namespace="orb",
        registry=registry,
    )
    timed = metrics.latency(
        metric_name="http_request_duration_seconds",
        metric_doc="From a request's arrival to the beginning of its answer.",
        metric_namespace="orb",
        should_include_status=False,
        should_exclude_streaming_duration=True,
        buckets=_DURATIONS_S,
        registry=registry,
    )
    assert counted is not None, "the registry has it already"
    assert timed is not None, "the registry has it already"
    app.add_middleware(_Watch, instrumentations=[counted, timed], registry=registry)


class _Watch(PrometheusInstrumentatorMiddleware):
    """Middleware that measures requests with the metrics of prometheus_fastapi_instrumentator.

    The package's own middleware is slower, because it matches each route a second time.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, began, answered = 500, perf_counter(), 0.0

        async def sending(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], perf_counter()
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            ended = perf_counter()
            info = Info(
                request=Request(scope),
                response=None,
                method=scope["method"] if scope["method"] in _METHODS else OTHER,  # The server accepts any word.
                modified_handler=self._template(scope),
                modified_status=str(int(status)),
                modified_duration=ended - began,
                modified_duration_without_streaming=(answered or ended) - began,
            )
            for observe in self.instrumentations:
                observe(info)

    @cached_property
    def _route_of(self) -> Callable[[FastAPI, str, str], str]:
        return lru_cache(_MAX_PATHS)(_route_of)

    def _template(self, scope: Scope) -> str:
        """Return the path template of the request's route, as in the OpenAPI document.

        A request that was refused or forwarded before the routing has no route yet. Find its route by method and path.
        """
        route = scope.get("route")
        if isinstance(route, Route):
            return _documented(route.path)
        return _documented(self._route_of(scope["app"], scope["method"], scope["path"]))


def _route_of(app: FastAPI, method: str, path: str) -> str:
    """Return the path template of the route that serves this method and path; NO_ROUTE if there is none.

    It tries all routes, which is slow, so the caller caches the result.
    """
    scope = {"type": "http", "app": app, "method": method, "path": path, "root_path": "", "headers": []}
    return get_route_name(Request(scope), False) or NO_ROUTE


@cache
def _documented(path: str) -> str:
    return _CONVERTER.sub("", path)
