"""Asking again until an engine that is away is back, or has room."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.domain.errors import NoRoom, Transient

T = TypeVar("T")


async def until_answered(call: Callable[[], Awaitable[T]], waits: Callable[[Transient], None] | None = None) -> T:
    """The call's result, trying again after every Transient for as long as it takes (cancel to stop). `waits` hears of
    the first one."""
    while True:
        try:
            return await call()
        except Transient as error:
            if waits is not None:
                waits(error)
                waits = None
            await asyncio.sleep(error.retry_in)


async def until_there_is_room(call: Callable[[], Awaitable[T]]) -> T:
    """The call's result, trying again after every NoRoom for as long as it takes (cancel to stop). The store's adapter
    tells the log."""
    while True:
        try:
            return await call()
        except NoRoom as error:
            await asyncio.sleep(error.retry_in)
