"""Hold the newest snapshot of a watched prefix of coordinator keys, and wait for a newer one."""

import asyncio
import contextlib

from shared.ports.coordinator import Snapshot


class Latest:
    """Holds the newest snapshot of a watched prefix: an adapter calls `publish`, readers wait with `changed`."""

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
        """Wait until a snapshot is newer than `after`, at most `wait_s` seconds. Return the newest (`View.changed`)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._snapshot.changed_since(after):
                    await self._moved.wait()
        return self._snapshot
