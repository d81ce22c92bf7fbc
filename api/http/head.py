"""HEAD on every resource that has GET: the status and headers of GET, without a body (RFC 9110 §9.3.2)."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.runtime.supervise import Tasks


async def head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a HEAD request with the headers of `app`'s response to GET.

    A body of several pieces is stopped after the first, so that no export or stream is produced in vain.
    """
    over = asyncio.Event()

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif message.get("more_body", False):
            over.set()

    async with Tasks() as tasks:
        answering = tasks.start("head", _answer(app, {**scope, "method": "GET"}, receive, sending))
        answering.add_done_callback(lambda _: over.set())
        await over.wait()


async def _answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
