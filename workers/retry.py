"""Repeats an operation of a worker, such as publishing a message, until it succeeds.

Only transient failures are repeated. Any other error is raised at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from shared.domain.errors import Transient

log = structlog.get_logger(__name__)
T = TypeVar("T")

_MAX_WAIT_S: Final = 5.0


async def persisted(
    what: str, attempt: Callable[[], Awaitable[T]], waits: Callable[[], None] | None = None, **fields: object
) -> T:
    """Call `attempt` again whenever it raises Transient, and return its result. Waits between calls grow up to 5 s.

    `what` (the operation's name) and `fields` are logged with failures 1, 10, 100, 200, ... `waits`, if given, is
    called before each wait.
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
                log.warning("report_step.retried", step=what, error=str(error), tries=tries, **fields)
            await asyncio.sleep(min(max(error.retry_in, wait_s), _MAX_WAIT_S))
            wait_s = min(wait_s * 2, _MAX_WAIT_S)
        else:
            if tries >= 10:
                log.info("report_step.completed", step=what, tries=tries, **fields)
            return result
