"""Conditional reads: answer 304 if the client has the current version already (RFC 9110, If-None-Match)."""

import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAG: Final = re.compile(rb'(?:W/)?("[^"]*")')


class Conditional:
    """Layer: turns the response to a read into 304 if its ETag is among those in If-None-Match.

    Routes only need to set their ETag. A route whose response is expensive calls `has` first.
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
    """Return the value of the request's If-None-Match header; empty without one."""
    return b",".join(value for name, value in scope["headers"] if name == b"if-none-match")


def has(known: bytes, tag: bytes) -> bool:
    """Return True if the If-None-Match value `known` has the ETag `tag`.

    `*` matches every tag; weak tags match, too.
    """
    if not tag:
        return False
    return known.strip() == b"*" or tag.removeprefix(b"W/") in _TAG.findall(known)
