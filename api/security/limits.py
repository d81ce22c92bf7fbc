"""No request body is larger than it may be, whatever it says of itself."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Kind, Problem, answer

BODY_BYTES: Final = 4 << 20
"""A crawl spec with its 100,000 seeds of an ordinary length fits."""


class BodyLimit:
    """Refuses bodies above `most` bytes. Paths that end in `streamed` are read in pieces and bound themselves."""

    def __init__(self, app: ASGIApp, most: int = BODY_BYTES, streamed: tuple[str, ...] = ("/seeds",)) -> None:
        self._app = app
        self._most = most
        self._streamed = streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(self._streamed):
            await self._app(scope, receive, send)
            return
        problem = Problem(Kind.TOO_LARGE, f"a body may have {self._most} bytes")
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or int(length) > self._most:
            await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise TooLarge(413, problem.detail)
            return message

        await self._app(scope, counting, send)


class TooLarge(HTTPException):
    """Raised out of the reading of a body; an HTTPException, because the framework hides every other."""
