"""What a test leaves on an event loop that it closes: tasks that are pending, and connections that are open.

Python reports both when they are collected as garbage, which may be during any later test. Here the loop's close finds
them, so that the report names the test that left them. It also ends them, so that they disturb no other test.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import uvloop

_END_S: Final = 5.0

_found: Final[list[str]] = []


def watch() -> None:
    """Look at every loop of this process as it closes, from now on."""
    for kind in (asyncio.BaseEventLoop, uvloop.Loop):
        setattr(kind, "close", _looking(kind.close))  # noqa: B010  the libraries have no hook for it


def taken() -> list[str]:
    """Return what was found since the last call, one line for each."""
    found = _found.copy()
    _found.clear()
    return found


def _looking(close: Callable[[Any], None]) -> Callable[[Any], None]:
    def closing(loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed() and not loop.is_running():
            tasks = asyncio.all_tasks(loop)
            # A part of asyncio's own loops alone: uvloop keeps its connections to itself.
            connections = [each for each in getattr(loop, "_transports", {}).values() if not each.is_closing()]
            if tasks or connections:
                _found.extend(map(repr, (*tasks, *connections)))
                loop.run_until_complete(_end(tasks, connections))
        close(loop)

    return closing


async def _end(tasks: set[asyncio.Task[Any]], connections: list[Any]) -> None:
    for connection in connections:
        connection.abort()
    for task in tasks:
        task.cancel()
    await asyncio.wait({*tasks, asyncio.create_task(asyncio.sleep(0))}, timeout=_END_S)
