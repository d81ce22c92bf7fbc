"""A stopped master inside a SQLite transaction keeps the file's write lock, so no other can take over.

The leader ends it with SIGKILL, and only where all of this holds: a write of this master waits for the lock; the holder
is a process of this machine that noted itself beside the file as a master, with the kernel's start time; it is stopped
(SIGSTOP or a debugger); and the coordinator does not list that master any more. SQLite rolls back what it had begun.
Of any other holder the log says what an operator must do.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from shared.adapters.sql.holder import LockHolder, end, lock_holder

log = structlog.get_logger("orb.control")

WAITED_S: Final = 3.0
_LOOK_S: Final = 1.0
_TELL_S: Final = 30.0


class Eviction:
    """Watches for writes that wait for another process. `lives`: whether a master, by id and start, is registered."""

    def __init__(
        self,
        path: Path,
        *,
        waited_s: Callable[[], float],
        leads: Callable[[], bool],
        lives: Callable[[str, int], bool],
        ask: Callable[[Path], LockHolder | None] = lock_holder,
    ) -> None:
        self._path = path
        self._waited_s = waited_s
        self._leads = leads
        self._lives = lives
        self._ask = ask
        self._told_at = float("-inf")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._waited_s() >= WAITED_S and self._leads():
                await self.once()

    async def once(self) -> bool:
        """Look once. Return True if a process was ended."""
        holder = await asyncio.to_thread(self._ask, self._path)
        if holder is None or holder.pid == os.getpid() or self._waited_s() < WAITED_S or not self._leads():
            return False
        note = holder.note
        if note is not None and holder.stopped and not self._lives(note.member, note.started_at_ms):
            killed = end(note)
            log.error("database.holder_killed", master=note.member, pid=note.pid, killed=killed)
            return killed
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= _TELL_S:
            self._told_at = now
            log.error(
                "database.locked",
                database=str(self._path),
                pid=holder.pid,
                master=None if note is None else note.member,
                stopped=holder.stopped,
                advice="another process holds the database's write lock: let it go on (kill -CONT), or end it",
            )
        return False
