"""A master's status: told about every second, and at once when there is news."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from shared.domain.errors import Transient
from shared.ports.broker import Broker
from shared.wire.messages import MasterStatus, encode
from shared.wire.subjects import MASTER_STATUS

log = structlog.get_logger("orb.control")

_HEARTBEAT_S: Final = 1.0
_COALESCE_S: Final = 0.05


class Heartbeat:
    """Tells what `status` gives; `news` when something changed that others wait to hear."""

    def __init__(self, broker: Broker, status: Callable[[], MasterStatus]) -> None:
        self._broker = broker
        self._status = status
        self._news = asyncio.Event()

    def news(self) -> None:
        """Tell soon."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled. A broker that is away does not hear it."""
        while True:
            self._news.clear()
            try:
                await self._broker.tell(MASTER_STATUS, encode(self._status()))
            except Transient as error:
                log.debug("status.not_told", reason=str(error))
            await asyncio.sleep(_COALESCE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._news.wait()
