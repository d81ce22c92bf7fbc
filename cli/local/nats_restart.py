"""Restarts NATS after its disk was full.

After a write to a file has failed, NATS writes to this file again only after a restart.
"""

import signal
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from cli.local.folder_lock import ROOM_BYTES
from cli.local.supervisor import Child
from cli.terminal.progress import Watch

log = structlog.get_logger(__name__)

ENOUGH_BYTES: Final = 2 * ROOM_BYTES
"""NATS is restarted only if its disk has at least this many free bytes."""

APART_S: Final = 30.0
"""The least number of seconds between two restarts. The supervisor gives up after too many restarts in a short time."""


class NatsStorage(Protocol):
    """The only method of a NATS server that NatsRestart uses. `shared.adapters.nats.EmbeddedServer` has this method.

    `storage_failure` returns the error if a write to the disk has failed since the server started, else None.
    """

    def storage_failure(self) -> str | None: ...


class NatsRestart:
    """Restarts NATS if it failed to write to its disk, and the disk has free space again.

    It kills `broker`, the child process of NATS. The supervisor (`cli.local.supervisor`) then starts NATS again.
    No message is lost: acknowledged messages are in the files of NATS, and publishers repeat all others.
    """

    def __init__(
        self, server: NatsStorage, broker: Child, watch: Watch, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._broker = broker
        self._watch = watch
        self._now = now
        self._again_at = 0.0

    def look(self, free_bytes: int) -> None:
        """Kill NATS if it needs a restart now. Call this regularly. `free_bytes` is the free space on its disk.

        Do nothing for APART_S seconds after a restart.
        """
        if free_bytes < ENOUGH_BYTES or self._now() < self._again_at or self._broker.pid is None:
            return
        if (failure := self._server.storage_failure()) is None:
            return
        self._again_at = self._now() + APART_S
        log.warning("broker.restarted", failure=failure, free_bytes=free_bytes)
        self._watch.note("NATS stores nothing since its disk was full; there is space again, so it is restarted")
        self._broker.signal(signal.SIGKILL)
