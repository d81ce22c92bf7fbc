"""Responses of any length that are produced while they are sent, as fast as the client reads, in bounded memory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

SLOW_S: Final = 60.0
"""A client that reads nothing for this many seconds is disconnected."""

_SLICE: Final = 1 << 16
"""The maximum bytes of one message to the server.

The server accepts a message when it has sent nearly all of the previous one. A slow client cannot read a large message
within `SLOW_S`, even if it never stops reading.
"""


class BrokenOff(Exception):
    """Raised if a response that has begun cannot be completed.

    The server then closes the connection, so that the client detects it.
    """


class Streamed(StreamingResponse):
    """A response that sends the bytes `begun`, then each part that `rest` yields.

    When the client disconnects, `rest` is closed at once. When it reads nothing for `SLOW_S` seconds, `rest` is closed,
    too, and BrokenOff is raised.
    """

    def __init__(self, begun: bytes, rest: AsyncGenerator[bytes, None], **more: Any) -> None:
        super().__init__(_sliced(begun, rest), **more)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patiently(message: Message) -> None:
            try:
                async with asyncio.timeout(SLOW_S):
                    await send(message)
            except TimeoutError as error:
                raise BrokenOff(f"the caller took nothing for {SLOW_S:g} s") from error

        async with aclosing(self._rest):
            await super().__call__(scope, receive, patiently)


async def _sliced(begun: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(begun), _SLICE):
        yield begun[at : at + _SLICE]
    async for part in rest:
        for at in range(0, len(part), _SLICE):
            yield part[at : at + _SLICE]
