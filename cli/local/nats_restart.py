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
"""Free space on the disk of NATS from which a restart is worthwhile."""

APART_S: Final = 30.0
"""Least time between restarts, so that a disk that fills repeatedly does not exhaust the restart budget."""


class NatsStorage(Protocol):
    """A NATS server (shared.adapters.nats.EmbeddedServer).

    `storage_failure` returns the error if a write has failed since the server started, else None.
    """

    def storage_failure(self) -> str | None: ...


class NatsRestart:
    """Kills NATS if a write has failed and its disk has free space again.

    `broker` is NATS as a child process, which its supervisor (`cli.local.supervisor`) then starts again.
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
        """Kill NATS if it needs a restart now. `free_bytes` is the free space on its disk.

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
