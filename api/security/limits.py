"""What every request is held to before anything reads it: a body of bounded size, whatever it says of itself, and an
address without NUL, which no database keeps."""

import re
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Kind, Problem, answer
from api.security.headers import header_of

BODY_BYTES: Final = 4 << 20
"""A crawl spec with its 100,000 seeds of an ordinary length fits."""

_UPLOAD: Final = re.compile(r"/v1/crawls/[^/]+/seeds")


class BodyLimit:
    """Refuses addresses with NUL, and bodies above `most` bytes. Uploads are read in pieces and bound themselves."""

    def __init__(self, app: ASGIApp, most: int = BODY_BYTES) -> None:
        self._app = app
        self._most = most
        self._told = f"a body may have {most} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            problem = Problem(Kind.MALFORMED, "the address has a NUL character in it")
            await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        if scope["type"] != "http" or (scope["method"] == "POST" and _UPLOAD.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
            return
        length = header_of(scope, b"content-length") or b"0"
        if not length.isdigit() or int(length) > self._most:
            problem = Problem(Kind.TOO_LARGE, self._told)
            await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise TooLarge(413, self._told)
            return message

        await self._app(scope, counting, send)


class TooLarge(HTTPException):
    """Raised out of the reading of a body; an HTTPException, because the framework hides every other."""
