"""The layer that assigns an id to every request, logs it, and answers even after an unexpected error."""

import re
import secrets
import time
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import ApiProblem, ProblemKind, answer
from api.http.headers import header_of

log = structlog.get_logger("orb.api")

HEADER: Final = b"x-request-id"
_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """ASGI layer that assigns an id to each request, logs it with status and duration, and answers unexpected errors.

    It adds headers to the response: the request id, the fixed headers `ALWAYS`, and those that an inner layer has
    stored in the request's state as `headers`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = scope["state"].get("headers", ())
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode()), *ALWAYS, *own]
            await send(message)

        began = time.monotonic()
        bound = structlog.contextvars.bind_contextvars(request=request_id)
        try:
            try:
                await self._app(scope, receive, sending)
            except Exception:
                log.exception("request.failed", method=scope["method"], path=scope["path"])
                if status:  # A started response cannot be replaced, so the server closes the connection.
                    raise
                problem = ApiProblem(ProblemKind.INTERNAL, "internal error; the log has it under the id of the request")
                await answer(problem, scope["path"], request_id)(scope, receive, sending)
            log.info(
                "request.answered",
                method=scope["method"],
                path=scope["path"],
                status=status,
                duration_ms=round((time.monotonic() - began) * 1000, 1),
            )
        finally:
            structlog.contextvars.reset_contextvars(**bound)


def request_id_of(scope: Scope) -> str:
    """Return the client's X-Request-Id if that is well-formed, otherwise a new id."""
    given = header_of(scope, HEADER)
    return given.decode() if _ID.fullmatch(given) else secrets.token_hex(16)


ALWAYS: Final = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
"""Headers of each response."""
