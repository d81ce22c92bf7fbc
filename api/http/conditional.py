"""Conditional reads: answer 304 if the client has the current version already (RFC 9110, If-None-Match)."""

import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAG: Final = re.compile(rb'(?:W/)?("[^"]*")')


class Conditional:
    """ASGI layer that answers 304 without a body if the client's If-None-Match header has the ETag of the response.

    Routes only need to set their ETag. A route whose response is expensive calls `has` first, to avoid making it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = known_tags(scope) if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") else b""
        if not known:
            await self._app(scope, receive, send)
            return
        unchanged = False

        async def sending(message: Message) -> None:
            nonlocal unchanged
            if message["type"] == "http.response.start":
                tag = next((value for name, value in message["headers"] if name.lower() == b"etag"), b"")
                if message["status"] == 200 and has(known, tag):
                    unchanged = True
                    kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(b"content-")]
                    message = {**message, "status": 304, "headers": kept}
            elif unchanged:
                if message.get("more_body", False):
                    return
                message = {**message, "body": b""}
            await send(message)

        await self._app(scope, receive, sending)


def known_tags(scope: Scope) -> bytes:
    """Return the ETags that the request's If-None-Match headers list, unparsed.

    Return b"" if there is no such header.
    """
    return b",".join(value for name, value in scope["headers"] if name == b"if-none-match")


def has(known: bytes, tag: bytes) -> bool:
    """Return True if `known`, the value of If-None-Match, contains the ETag `tag`.

    `*` matches every tag. A weak tag matches, too. An empty `tag` matches nothing.
    """
    if not tag:
        return False
    return known.strip() == b"*" or tag.removeprefix(b"W/") in _TAG.findall(known)
