"""The one form of a wake-up: a revision that grows, and the wait for a newer one."""

import asyncio


class WakeUp:
    """A revision that grows with each `notify`.

    A loop reads `revision`, examines what it works on, and waits for a newer revision. So it misses no notification.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._grown = asyncio.Event()

    def notify(self) -> None:
        """Raise the revision, and wake all that wait for it."""
        self.revision += 1
        self._grown.set()
        self._grown.clear()

    async def changed(self, after: int, wait_s: float | None = None) -> bool:
        """Wait until the revision is newer than `after`. Return False after `wait_s` seconds without that."""
        try:
            async with asyncio.timeout(wait_s):
                while self.revision == after:
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True
