"""What a worker must get done is tried until it succeeds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from shared.domain.errors import Transient

log = structlog.get_logger(__name__)
T = TypeVar("T")

_LONGEST_WAIT_S: Final = 5.0


async def persisted(
    what: str, attempt: Callable[[], Awaitable[T]], waits: Callable[[], None] | None = None, **fields: object
) -> T:
    """Try until it is not Transient any more, with growing waits of at most 5 s; the log says that it takes long.

    `waits` is called at each failure, before the wait.
    """
    wait_s, tries = 0.1, 0
    while True:
        try:
            result = await attempt()
        except Transient as error:
            tries += 1
            if waits is not None:
                waits()
            if tries in (1, 10) or tries % 100 == 0:
                log.warning(f"{what}.retried", reason=str(error), tries=tries, **fields)
            await asyncio.sleep(min(max(error.retry_in, wait_s), _LONGEST_WAIT_S))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        else:
            if tries >= 10:
                log.info(f"{what}.went_through", tries=tries, **fields)
            return result
