"""Repeats a call until the server that it needs (such as the database) answers or has space."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.domain.errors import ResourceFull, Transient

T = TypeVar("T")


async def until_answered(call: Callable[[], Awaitable[T]], waits: Callable[[Transient], None] | None = None) -> T:
    """Return the result of `call`. Repeat it after every Transient, without limit, until the task is cancelled.

    `waits` is called once, with the first Transient.
    """
    while True:
        try:
            return await call()
        except Transient as error:
            if waits is not None:
                waits(error)
                waits = None
            await asyncio.sleep(error.retry_in)


async def until_resource_available(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`. Repeat it after every ResourceFull, without limit, until the task is cancelled.

    This function logs nothing, because the store's adapter logs a full resource.
    """
    while True:
        try:
            return await call()
        except ResourceFull as error:
            await asyncio.sleep(error.retry_in)
