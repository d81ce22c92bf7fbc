"""A clock for bounds on what a cluster promises: seconds in which this machine ran, not those in which it stood still.

A machine may stop for a second, as a whole with every process on it, or one of its processors with those that had their
turn there. What a cluster does within a time it does while it runs; a bound that counted the standing still, too, would
judge the machine. So each processor has a thread that notices when it did not come to run.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TICK_S: Final = 0.02
LONGEST_S: Final = 0.1
"""What counts of one tick at most: more is a stall, of the machine or of this process."""


class _Processor(threading.Thread):
    """Stalls of one processor, as (from, to) of time.monotonic."""

    def __init__(self, number: int, over: threading.Event) -> None:
        super().__init__(name=f"lived-{number}", daemon=True)
        self._number = number
        self._over = over
        self._ticked = time.monotonic()
        self._stalls: list[tuple[float, float]] = []

    def run(self) -> None:
        os.sched_setaffinity(0, {self._number})  # of this thread alone
        while not self._over.wait(TICK_S):
            now = time.monotonic()
            if now - self._ticked > LONGEST_S:
                self._stalls.append((self._ticked + LONGEST_S, now))
            self._ticked = now

    def stalls(self, now: float) -> list[tuple[float, float]]:
        """Those that are over, and the one that may be noticed next."""
        return [*self._stalls, (self._ticked + LONGEST_S, now)]


@contextmanager
def living() -> Iterator[Callable[[], float]]:
    """A function that tells the seconds lived since the block began; after the block it tells those of the block."""
    over, begun, ended = threading.Event(), time.monotonic(), 0.0
    processors = [_Processor(number, over) for number in os.sched_getaffinity(0)]

    def lived() -> float:
        now = until = ended or time.monotonic()
        lived_s = 0.0
        # From the last stall to the first: what lies between one and the next was lived, wherever they were.
        for start, end in sorted((s for each in processors for s in each.stalls(now)), key=lambda s: -s[1]):
            if start < end:
                lived_s += max(0.0, until - end)
                until = min(until, start)
        return lived_s + until - begun

    for processor in processors:
        processor.start()
    try:
        yield lived
    finally:
        ended = time.monotonic()
        over.set()
        for processor in processors:
            processor.join()
