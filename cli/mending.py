"""A broker that stores nothing since its disk was full: nats-server keeps a file's failure until it is restarted."""

import signal
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from cli.children import Child
from cli.holding import ROOM_BYTES
from cli.watch import Watch

log = structlog.get_logger(__name__)

ENOUGH_BYTES: Final = 2 * ROOM_BYTES
"""With so much free on its disk it is worth a restart."""

APART_S: Final = 30.0
"""So far apart are restarts at least: a disk that fills again and again ends no run by them."""


class Stored(Protocol):
    """A server that says what it could not store since it started: `shared.adapters.nats.EmbeddedServer`."""

    def storage_failure(self) -> str | None: ...


class Mending:
    """Kills `broker`, whom its keeper starts again, when a write of `server` failed and its disk has room again. What
    it has acknowledged is in its files; the rest is published again."""

    def __init__(
        self, server: Stored, broker: Child, watch: Watch, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self._broker = broker
        self._watch = watch
        self._now = now
        self._again_at = 0.0

    def look(self, free_bytes: int) -> None:
        """Once; `free_bytes` are free on the disk of the broker."""
        if free_bytes < ENOUGH_BYTES or self._now() < self._again_at or self._broker.pid is None:
            return
        if (failure := self._server.storage_failure()) is None:
            return
        self._again_at = self._now() + APART_S
        log.warning("broker.mended", failure=failure, free_bytes=free_bytes)
        self._watch.note("NATS stores nothing since its disk was full, which has room again: it is restarted")
        self._broker.signal(signal.SIGKILL)
