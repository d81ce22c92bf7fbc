"""/metrics: for Prometheus. It needs no key, so it exposes no URLs and hosts, but the names of crawls."""

from fastapi import Request, Response

from api.http.deps import Served, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.routing import Router
from shared.telemetry import exposed

router = Router(tags=["health"])


@router.get(
    "/metrics", summary="Metrics for Prometheus", operation_id="metrics", response_class=Response,
    responses={
        200: {"description": "All metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(404)
    },
)  # fmt: skip
async def metrics(request: Request, served: Served) -> Response:
    """Return this master's metrics as text; docs/metrics.md explains each.

    No key is needed: every client that can reach the port can read the names of crawls and how much they do.
    """
    if served.registry is None:
        raise ApiProblem(ProblemKind.NOT_FOUND, "this process keeps no metrics")
    # Run on the event loop, not in a thread: the state that is read belongs to the loop.
    text, media_type = exposed(served.registry, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": media_type})
