"""Wakes waiting tasks by a revision number that grows with each notification."""

import asyncio


class WakeUp:
    """A revision number that grows with each `notify`, and a wait for its growth.

    A task first reads `revision`, then examines what it works on, and then waits until the revision has grown. So it
    misses no notification.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._grown = asyncio.Event()

    def notify(self) -> None:
        """Increment the revision, and wake all tasks that wait in `changed`."""
        self.revision += 1
        self._grown.set()
        self._grown.clear()

    async def changed(self, after: int, wait_s: float | None = None) -> bool:
        """Wait until the revision differs from `after`. Return True then, and False if `wait_s` seconds pass before.

        None for `wait_s` means no limit.
        """
        try:
            async with asyncio.timeout(wait_s):
                while self.revision == after:
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True
