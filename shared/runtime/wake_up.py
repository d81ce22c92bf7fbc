"""Wakes tasks that wait for a notification. Notifications are counted, so a task that was busy detects one later."""

import asyncio


class WakeUp:
    """A revision number that each `notify` increments. Tasks can wait for the next increment.

    To miss no notification, a task reads `revision`, then does its work, then waits until the revision has grown.
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
        """Wait until the revision differs from `after`, at most `wait_s` seconds (None: without limit).

        Return True if the revision differs, False if the time limit has passed.
        """
        try:
            async with asyncio.timeout(wait_s):
                while self.revision == after:
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True
