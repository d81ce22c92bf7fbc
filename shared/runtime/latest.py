"""The newest snapshot of a watched prefix, and the wait for a newer one."""

import asyncio
import contextlib

from shared.ports.coordinator import Snapshot


class Latest:
    """The core of an adapter's view: the adapter calls `publish`, readers use `snapshot` and `changed`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._moved = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot and wake every waiter."""
        self._snapshot = snapshot
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def changed(self, after: Snapshot, wait_s: float | None) -> Snapshot:
        """See `View.changed`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._snapshot.changed_since(after):
                    await self._moved.wait()
        return self._snapshot
