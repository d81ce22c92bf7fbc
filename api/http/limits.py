"""Limits that are checked before a request reaches a route.

The size of a request body is counted as it is read, even if Content-Length is wrong. Compressed bodies
are refused, except for uploads of seeds, which are decompressed. NUL in the path or query is refused, because no
database stores it.
"""

import re
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import ApiProblem, ProblemKind, answer
from api.http.headers import header_of

BODY_BYTES: Final = 4 << 20
"""Default limit of a request body in bytes: enough for a crawl spec with 100,000 seeds of ordinary length."""

_ACCEPTED: Final = {"Accept-Encoding": "identity"}
_NO_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PLAIN: Final = frozenset({b"", b"identity"})
_UPLOAD: Final = re.compile(r"/v1/crawls/[^/]+/seeds")


class BodyLimit:
    """ASGI layer that refuses compressed request bodies, bodies above `max_count` bytes, and NUL in the path or query.

    An upload of seeds may be compressed and of any size: its route reads it in parts and has its own limits.
    """

    def __init__(self, app: ASGIApp, max_count: int = BODY_BYTES) -> None:
        self._app = app
        self._max_count = max_count
        self._detail = f"a body may have {max_count} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["method"] == "POST" and _UPLOAD.fullmatch(scope["path"]) is not None
        problem = self._problem(scope, upload)
        if problem is not None:
            await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
            return
        if upload:
            await self._app(scope, receive, send)
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

    def _problem(self, scope: Scope, upload: bool) -> ApiProblem | None:
        """Return the problem with the path, the query or the headers of a request. Return None if it may be executed.

        `upload`: True if the request is an upload of seeds, whose body has no limit here.
        """
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return ApiProblem(ProblemKind.MALFORMED, "the address has a NUL character in it")
        if upload:
            return None
        if scope["method"] not in _NO_BODY and header_of(scope, b"content-encoding").lower() not in _PLAIN:
            hint = "send the body as it is, without Content-Encoding"
            return ApiProblem(ProblemKind.MEDIA, "the body is compressed", hint=hint, headers=_ACCEPTED)
        length = header_of(scope, b"content-length") or b"0"
        if not length.isdigit() or int(length) > self._max_count:
            return ApiProblem(ProblemKind.TOO_LARGE, self._detail)
        return None


class BodyTooLarge(HTTPException):
    """Raised while a request body is read, when it exceeds the limit.

    It is an HTTPException, because FastAPI hides every other exception that is raised while it reads a body.
    """
