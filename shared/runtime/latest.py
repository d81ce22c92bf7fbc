"""Stores the newest snapshot of a watched prefix of coordinator keys, and waits for a newer one."""

import asyncio
import contextlib

from shared.ports.coordinator import Snapshot


class Latest:
    """Stores the newest snapshot of a watched prefix. An adapter calls `publish`, and readers wait in `changed`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._moved = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot and wake all tasks that wait in `changed`."""
        self._snapshot = snapshot
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        """Wait until a snapshot is newer than `after`, at most `wait_s` seconds (None: without limit).

        Return the newest snapshot. It is not newer than `after` if the time limit has passed.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._snapshot.changed_since(after):
                    await self._moved.wait()
        return self._snapshot
