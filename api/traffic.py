"""HTTP requests as metrics: by the template of their route, so that nobody who asks chooses a label."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from prometheus_fastapi_instrumentator import metrics
from prometheus_fastapi_instrumentator.metrics import Info
from prometheus_fastapi_instrumentator.middleware import PrometheusInstrumentatorMiddleware
from prometheus_fastapi_instrumentator.routing import get_route_name
from starlette.requests import Request

from shared.domain.tally import OTHER

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

NO_ROUTE: Final = "none"
_CONVERTER: Final = re.compile(r":\w+(?=\})")
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_DURATIONS_S: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def measure(app: FastAPI, registry: "CollectorRegistry") -> None:
    """Count and time every request to `app`, until its answer begins; what is streamed may go on for hours."""
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
    observed = [_bounded(counted), _bounded(timed)]
    app.add_middleware(_Watch, should_group_status_codes=False, instrumentations=observed, registry=registry)


class _Watch(PrometheusInstrumentatorMiddleware):
    """Does not look for the route before the router does, which took 54 to 152 us a request with 70 routes."""

    def _get_handler(self, request: Request) -> tuple[str, bool]:
        return NO_ROUTE, True


def _bounded(observe: Callable[[Info], None]) -> Callable[[Info], None]:
    """With labels of ours. A method may be any word, and the server passes each one on."""

    def observed(info: Info) -> None:
        info.modified_handler = _template(info.request)
        if info.method not in _METHODS:
            info.method = OTHER
        observe(info)

    return observed


def _template(request: Request) -> str:
    """The route that the router found, as the document writes it; what did not get so far (no key, passed on to the
    leader) is looked up."""
    path = getattr(request.scope.get("route"), "path", None)
    return _CONVERTER.sub("", path or get_route_name(request, should_include_root_path=False) or NO_ROUTE)
