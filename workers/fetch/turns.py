"""Spreads the work that follows answers over the turns of the event loop."""

import asyncio
from collections import deque


class Turns:
    """Lets one task continue in each turn of the event loop. Construct it in the loop whose tasks use it.

    Many answers may arrive at the same moment. Reading a page takes milliseconds. If the tasks of all these answers
    continued at once, the loop's other events would wait until every page was read. So they wait for one page at most.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def take(self) -> None:
        """Return at once if no other task has taken this turn of the loop. Otherwise wait, in order of the calls."""
        if not self._taken:
            self._taken = True
            self._loop.call_soon(self._next)
            return
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def _next(self) -> None:
        """Let the next waiting task continue in the next turn. If none waits, the next turn is free."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # A cancelled task does not use its turn.
                future.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._taken = False
