"""The newest snapshot of something watched, and those who wait for a newer one."""

import asyncio
import contextlib

from shared.ports.coordinator import Snapshot


class Latest:
    """What an adapter's view is made of: `publish` on one side, `snapshot` and `changed` on the other."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._moved = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Show this one from now on, and wake everybody who waits."""
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
