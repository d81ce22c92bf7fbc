"""A response of any length is sent as slowly as its client reads, and ends when the client reads nothing."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from api.http.streamed import SLOW_S, BrokenOff, Streamed
from tests.support.simulation.world import SimLoop

BYTES = 3_000_000
PARTS = (b"begun", b"a" * BYTES, b"", b"b" * BYTES)


async def rest() -> AsyncGenerator[bytes, None]:
    for part in PARTS[1:]:
        yield part


def received(bytes_s: float) -> tuple[float, bytes, Exception | None]:
    """Return the seconds of a download at this rate, what the client got, and the error of the server, if any."""
    loop = SimLoop()
    begun = loop.now
    body = b""

    async def send(message: Any) -> None:
        nonlocal body
        data = message.get("body", b"")
        await asyncio.sleep(len(data) / bytes_s)
        body += data

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    task = loop.create_task(Streamed(PARTS[0], rest())(scope, receive, send))
    loop.pump()
    while (timer := loop.next_timer()) is not None and not task.done():
        loop.now = timer
        loop.pump()
    spent, error = loop.now - begun, task.exception()
    loop.close()
    assert error is None or isinstance(error, Exception)
    return spent, body, error


def test_client_that_reads_slowly_gets_the_whole_file() -> None:
    spent, body, error = received(bytes_s=5_000)
    assert error is None
    assert body == b"".join(PARTS)
    assert spent > 10 * SLOW_S


def test_client_that_reads_nothing_is_disconnected() -> None:
    spent, body, error = received(bytes_s=1e-9)
    assert isinstance(error, BrokenOff)
    assert spent == pytest.approx(SLOW_S)
    assert body == b""
