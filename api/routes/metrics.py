"""/metrics: for Prometheus. It needs no key, so it says nothing of URLs and hosts; names of crawls are in it."""

from fastapi import Request, Response

from api.deps import Served, problems
from api.errors import Kind, Problem
from api.routing import Router
from shared.telemetry import exposed

router = Router(tags=["health"])


@router.get(
    "/metrics", summary="Metrics for Prometheus", operation_id="metrics", response_class=Response,
    responses={
        200: {"description": "All metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(404)
    },
)  # fmt: skip
async def metrics(request: Request, served: Served) -> Response:
    """This master's metrics, as text; docs/metrics.md explains each. No key is needed: who may reach the port may read
    the names of crawls and how much they do."""
    if served.registry is None:
        raise Problem(Kind.NOT_FOUND, "this process keeps no metrics")
    # On the event loop, not in a thread: what is read belongs to it.
    text, media_type = exposed(served.registry, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": media_type})
