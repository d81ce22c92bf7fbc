"""A clock for bounds on what a cluster promises: seconds in which this machine ran, not those in which it stood still.

A machine may stop for a second as a whole, with every process on it. What a cluster does within a time it does while it
runs; a bound that counted the standing still, too, would judge the machine.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TICK_S: Final = 0.02
LONGEST_S: Final = 0.1
"""What counts of one tick at most: more is a stall, of the machine or of this process."""


@contextmanager
def living() -> Iterator[Callable[[], float]]:
    """A function that tells the seconds lived since the block began; after the block it tells those of the block."""
    over = threading.Event()
    lived = 0.0

    def count() -> None:
        nonlocal lived
        before = time.monotonic()
        while not over.wait(TICK_S):
            now = time.monotonic()
            lived += min(now - before, LONGEST_S)
            before = now

    thread = threading.Thread(target=count, name="lived", daemon=True)
    thread.start()
    try:
        yield lambda: lived
    finally:
        over.set()
        thread.join()
