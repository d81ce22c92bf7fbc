"""Limits that are checked before a request is read.

The size of the request body is bounded whatever Content-Length claims. NUL in the address is refused, because no
database stores it.
"""

import re
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import ApiProblem, ProblemKind, answer
from api.http.headers import header_of

BODY_BYTES: Final = 4 << 20
"""Enough for a crawl spec with 100,000 seeds of ordinary length."""

_UPLOAD: Final = re.compile(r"/v1/crawls/[^/]+/seeds")


class BodyLimit:
    """Layer: refuses addresses with NUL, and request bodies above `max_count` bytes.

    Uploads of seeds are exempt: they are read in parts and have their own bounds.
    """

    def __init__(self, app: ASGIApp, max_count: int = BODY_BYTES) -> None:
        self._app = app
        self._max_count = max_count
        self._detail = f"a body may have {max_count} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            problem = ApiProblem(ProblemKind.MALFORMED, "the address has a NUL character in it")
            await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        if scope["type"] != "http" or (scope["method"] == "POST" and _UPLOAD.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        length = header_of(scope, b"content-length") or b"0"
        if not length.isdigit() or int(length) > self._max_count:
            problem = ApiProblem(ProblemKind.TOO_LARGE, self._detail)
            await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_count:
                raise BodyTooLarge(413, self._detail)
            return message

        await self._app(scope, counting, send)


class BodyTooLarge(HTTPException):
    """Raised while a request body is read that is too large.

    It is an HTTPException because FastAPI hides every other exception raised there.
    """
