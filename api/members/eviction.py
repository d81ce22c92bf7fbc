"""End a stopped master that keeps the write lock of SQLite.

Such a master is stopped inside a transaction, so no other master can take over. The leader ends the
stopped master with SIGKILL if all of this is true:

- A write of the leader has waited for the lock for at least `WAITED_S` seconds.
- The lock's holder is a process on the leader's machine. A note file beside the database says that the holder is a
  master, and when the holder started.
- The holder is stopped (SIGSTOP or a debugger).
- The holder is no longer registered in etcd.

SQLite rolls back the holder's transaction. For any other holder, the log states what an operator must do.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from shared.adapters.sql.engine.lock_holder import LockHolder, end, lock_holder

log = structlog.get_logger("orb.control")

WAITED_S: Final = 3.0
_LOOK_S: Final = 1.0
_LOG_INTERVAL_S: Final = 30.0


class Eviction:
    """Ends a stopped process that blocks the writes of this master, if this master leads and the writes wait too long.

    - `waited_s` returns how long a write has waited, in seconds.
    - `leads` returns True if this master leads.
    - `lives` returns True if a master with this id and start time is registered.
    - `ask` finds the process that holds the lock of the database file.
    """

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
        self._logged_at = float("-inf")

    async def run(self) -> None:
        """Check every second, until cancelled. Call `once` if a write waits too long and this master leads."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._waited_s() >= WAITED_S and self._leads():
                await self.once()

    async def once(self) -> bool:
        """Find the process that holds the write lock, and end it if it may be ended. Return True if it was ended.

        If it may not be ended, log what an operator must do.
        """
        holder = await asyncio.to_thread(self._ask, self._path)
        if holder is None or holder.pid == os.getpid() or self._waited_s() < WAITED_S or not self._leads():
            return False
        note = holder.note
        if note is not None and holder.stopped and not self._lives(note.member, note.started_at_ms):
            killed = end(note)
            log.error("database_holder.evicted", master=note.member, pid=note.pid, killed=killed)
            return killed
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = now
            log.error(
                "database.locked",
                database=str(self._path),
                pid=holder.pid,
                master=None if note is None else note.member,
                stopped=holder.stopped,
                advice="another process holds the database's write lock: let it go on (kill -CONT), or end it",
            )
        return False
