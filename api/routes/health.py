"""/livez, /readyz and /metrics, for programs that start, stop and monitor masters.

They need no key. So /metrics contains no URLs and no hosts, but it contains the names of crawls.
"""

from fastapi import Request, Response

from api.http.deps import Served, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.routing import Router
from api.schemas.health import Health, Readiness
from api.schemas.pressure import pressure_body
from shared.telemetry import exposed

router = Router(tags=["health"])


@router.get("/livez", summary="Check that the process is alive")
async def livez() -> Health:
    """Return 200. A response shows that the event loop of the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz", summary="Check that the master is ready",
    responses={503: {"model": Readiness, "description": "A dependency in `missing` does not answer."}},
)  # fmt: skip
async def readyz(served: Served, response: Response) -> Readiness:
    """Return 200 if the database, NATS and etcd answer. Otherwise return 503 with the names of those that do not.

    A master under resource pressure is still ready; `resource_pressure` lists the resources that are nearly full.
    """
    missing = list(await served.ready())
    response.status_code = 503 if missing else 200
    return Readiness(
        status="waiting" if missing else "ok",
        missing=missing,
        resource_pressure=pressure_body(served.member, served.pressure()),
    )


@router.get(
    "/metrics", summary="Metrics for Prometheus", response_class=Response,
    responses={
        200: {"description": "All metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(404)
    },
)  # fmt: skip
async def metrics(request: Request, served: Served) -> Response:
    """Return this master's metrics in the text format of Prometheus; docs/metrics.md explains each metric.

    No key is needed, so every client that can connect can read the names of crawls and their counters.
    """
    if served.registry is None:
        raise ApiProblem(ProblemKind.NOT_FOUND, "this process keeps no metrics")
    # Run on the event loop, not in a thread: the state that is read belongs to the loop.
    text, media_type = exposed(served.registry, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": media_type})
