"""Wake waiting tasks: a revision number that grows, and the wait for a greater one."""

import asyncio


class WakeUp:
    """A revision number that grows with each `notify`, and the wait for that.

    A task reads `revision`, examines what it works on, and waits for a greater one. So it misses no notification.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._grown = asyncio.Event()

    def notify(self) -> None:
        """Raise the revision, and wake all tasks that wait for that."""
        self.revision += 1
        self._grown.set()
        self._grown.clear()

    async def changed(self, after: int, wait_s: float | None = None) -> bool:
        """Wait until the revision differs from `after`. Return False if it does not within `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                while self.revision == after:
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True
