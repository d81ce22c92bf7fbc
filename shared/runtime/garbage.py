"""Runs full garbage collections at moments when the event loop is idle.

By default, Python starts full collections by itself in the middle of the work, up to once a second. Each examines all
container objects and takes up to 150 ms in a busy worker. With this module, Python collects only the youngest
generation by itself. A full collection runs when the event loop is idle. It waits for an idle loop for at most a
minute.
"""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

IDLE: Final = 0.25
"""The loop is idle if its thread used less than this share of a core since the last check."""

YOUNG: Final = 250
"""The number of new container objects after which Python collects the youngest generation.

Python's default is 700. A smaller number makes each such collection shorter.
"""

AGED: Final = 280
"""The minimum number of collections of the youngest generation between two full collections.

So a full collection runs at most once in 70,000 new objects (AGED * YOUNG), as with Python's defaults.
"""

RESTED_S: Final = 15.0
"""The minimum time in seconds between two full collections."""

FORCED_S: Final = 60.0
"""If the last full collection was this many seconds ago, the next one runs even if the loop is busy."""

_EVERY_S: Final = 1.0
_NEVER: Final = 1 << 30


def is_due(aged: int, since_s: float, share: float) -> bool:
    """Return True if a full garbage collection should run now.

    - `aged`: the number of collections of the youngest generation since the last full one.
    - `since_s`: the seconds since the last full one.
    - `share`: the share of a CPU core that the thread used since the last check, from 0 to 1.
    """
    return aged >= AGED and since_s >= (RESTED_S if share < IDLE else FORCED_S)


@contextmanager
def collecting_when_idle(every_s: float = _EVERY_S) -> Iterator[None]:
    """Within the `with` block, run full garbage collections only when `is_due` allows it.

    The check runs every `every_s` seconds. Enter the block in the thread of the running event loop.

    A full collection within the block is shorter than usual: it examines only objects that were created within the
    block. The older objects are left out until the block ends (`gc.freeze`).
    """
    loop = asyncio.get_running_loop()
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, _NEVER, _NEVER)
    checks = _Checks(loop, every_s)
    checks.next()
    try:
        yield
    finally:
        checks.cancel()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _Checks:
    """A timer that measures the CPU share of the thread, and runs a full collection if `is_due` returns True."""

    def __init__(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        self._loop = loop
        self._every_s = every_s
        self._handle: asyncio.TimerHandle | None = None
        self._used_s = time.thread_time()
        self._at_s = self._collected_s = time.monotonic()

    def next(self) -> None:
        self._handle = self._loop.call_later(self._every_s, self._check)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _check(self) -> None:
        used_s, at_s = time.thread_time(), time.monotonic()
        share = (used_s - self._used_s) / max(at_s - self._at_s, 1e-9)
        if is_due(gc.get_count()[1], at_s - self._collected_s, share):
            gc.collect()
            used_s = time.thread_time()
            at_s = self._collected_s = time.monotonic()
        self._used_s, self._at_s = used_s, at_s
        self.next()
