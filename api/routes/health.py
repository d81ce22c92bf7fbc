"""/livez and /readyz: probes for programs that start and stop masters. They need no key."""

from fastapi import Response

from api.http.deps import Served
from api.http.routing import Router
from api.schemas.health import Health, Readiness
from api.schemas.pressure import pressure_body

router = Router(tags=["health"])


@router.get("/livez", summary="Check that the process is alive", operation_id="livez")
async def livez() -> Health:
    """Return 200 if the event loop of the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz", summary="Check that the master is ready", operation_id="readyz",
    responses={503: {"model": Readiness, "description": "A dependency in `missing` does not answer."}},
)  # fmt: skip
async def readyz(served: Served, response: Response) -> Readiness:
    """Return 200 if every dependency answers, else 503 and the dependencies that do not.

    A master under resource pressure is still ready; `resource_pressure` lists the resources that are nearly full.
    """
    missing = list(await served.ready())
    response.status_code = 503 if missing else 200
    return Readiness(
        status="waiting" if missing else "ok",
        missing=missing,
        resource_pressure=pressure_body(served.member, served.pressure()),
    )
