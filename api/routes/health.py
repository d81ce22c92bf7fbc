"""/livez and /readyz: for those who start and stop masters. They need no key and tell nothing else."""

from fastapi import Response

from api.deps import Served
from api.routing import Router
from api.schemas.health import Health, Readiness

router = Router(tags=["health"])


@router.get("/livez", summary="Is the process alive", operation_id="livez")
async def livez() -> Health:
    """It answers, so its event loop turns."""
    return Health(status="ok")


@router.get(
    "/readyz", summary="Can it serve", operation_id="readyz",
    responses={503: {"model": Readiness, "description": "What `missing` names is away."}},
)  # fmt: skip
async def readyz(served: Served, response: Response) -> Readiness:
    """Whether everything it depends on answers; else 503 and what does not. Want of room is no reason not to be asked:
    `held` says it."""
    missing = list(await served.ready())
    response.status_code = 503 if missing else 200
    return Readiness(status="waiting" if missing else "ok", missing=missing, held=served.held())
