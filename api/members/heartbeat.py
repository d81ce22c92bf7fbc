"""Publish a master's status about every second, and at once after a change."""

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
    """Publishes the status of a master, which `status` returns, about every second and after each `notify`."""

    def __init__(self, broker: Broker, status: Callable[[], MasterStatus]) -> None:
        self._broker = broker
        self._status = status
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have the status published soon, because it has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Publish the status until cancelled. If the broker is unavailable, drop the status."""
        while True:
            self._changed.clear()
            try:
                await self._broker.tell(MASTER_STATUS, encode(self._status()))
            except Transient as error:
                log.debug("status.dropped", error=str(error))
            await asyncio.sleep(_COALESCE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._changed.wait()
