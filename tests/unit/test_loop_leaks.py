"""The report on a loop that closes names what was left on it, and ends that."""

import asyncio
import gc
import socket
from collections.abc import Callable

import pytest
import uvloop

from tests.support.loop_leaks import taken


@pytest.mark.parametrize("kind", [asyncio.SelectorEventLoop, uvloop.Loop])
def test_loop_closed_with_a_pending_task_is_reported(kind: type[asyncio.AbstractEventLoop]) -> None:
    loop = kind()
    task = loop.create_task(asyncio.Event().wait(), name="forgotten")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    [found] = taken()
    assert "name='forgotten'" in found
    assert task.cancelled()


def test_loop_closed_with_an_open_connection_is_reported() -> None:
    async def open_one() -> None:
        await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)

    ours, theirs = socket.socketpair()
    with theirs:
        asyncio.run(open_one())
        [found] = taken()
        assert found.startswith("<_SelectorSocketTransport")
        assert theirs.recv(1) == b"", "the connection is ended"
    gc.collect()  # raises here what would disturb another test


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_loop_that_ends_in_order_is_not_reported(run: Callable[..., None]) -> None:
    run(asyncio.sleep(0))
    assert taken() == []
