"""A watch on the event loop from outside of it: a thread that asks the loop for a sign of life."""

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import structlog

from shared.ports.clock import Clock

log = structlog.get_logger(__name__)

STALLED_S: Final = 5.0
DEAD_S: Final = 60.0
"""A member whose loop stands still for so long says where; and for so much longer, ends as if by kill -9. What it had
is others' by then, and it would neither work again nor hear that it is told to stop."""

_EVERY_S: Final = 0.25
_FRAMES: Final = 8
_LOOKS: Final = 60
_SAYING_S: Final = 5.0


def _kill() -> None:
    _aside(lambda: log.critical("loop.given_up", advice="whoever keeps this process starts it again"))
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # the first process of a container does not die of a signal of its own


def _aside(say: Callable[[], None]) -> None:
    """Say it, and wait no longer than `_SAYING_S` for it: a log that nobody takes may be what the loop stands at."""
    saying = threading.Thread(target=say, name="stall-said", daemon=True)
    with suppress(RuntimeError):  # the machine has no thread to give: what is watched for matters more than the word
        saying.start()
        saying.join(_SAYING_S)


class StallWatch:
    """Says in the log what a loop that stands still is doing, while it does; and to `told`, on the loop, for how long
    it stood. Less than `least_s` is no stall. A process that was stopped as a whole stood still, too."""

    def __init__(
        self,
        clock: Clock,
        told: Callable[[float], None],
        *,
        least_s: float,
        every_s: float = _EVERY_S,
        stuck: Callable[[str], None] | None = None,
        dead_s: float | None = None,
        dead: Callable[[], None] = _kill,
    ) -> None:
        """`stuck` hears, on the thread and during the stall, where the loop is; by default the log does.

        After `dead_s` more seconds in which the process ran and its loop did not, `dead` is called on the thread; by
        default it kills the process: nobody in it will ever do anything again. None: never.
        """
        self._clock = clock
        self._told = told
        self._least_s = least_s
        self._every_s = every_s
        self._stuck = stuck or _say
        self._dead_s = dead_s
        self._dead = dead
        self._over = threading.Event()
        self._sign = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the loop that runs this, for the block."""
        loop, owner = asyncio.get_running_loop(), threading.get_ident()
        thread = threading.Thread(target=self._watch, args=(loop, owner), name="stall-watch", daemon=True)
        self._over.clear()
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._sign.set()
            thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, owner: int) -> None:
        alive_at = self._clock.elapsed()
        while not self._over.wait(self._every_s):
            sign = self._sign = threading.Event()
            if self._over.is_set():  # whoever ends the watch sets the sign it finds after this
                return
            loop.call_soon_threadsafe(sign.set)
            if not sign.wait(self._least_s):
                _aside(partial(self._stuck, _where(owner)))
                self._await(sign)
            now = self._clock.elapsed()
            stood_s = now - alive_at - self._every_s
            alive_at = now
            if stood_s >= self._least_s:
                loop.call_soon_threadsafe(self._told, stood_s)

    def _await(self, sign: threading.Event) -> None:
        """Wait for the sign. Looks are counted, not seconds: a process that is stopped is not dead."""
        if self._dead_s is not None:
            for _ in range(_LOOKS):
                if sign.wait(self._dead_s / _LOOKS):
                    return
            self._dead()
        sign.wait()


@contextmanager
def ending_where_it_stands(clock: Clock) -> Iterator[None]:
    """For the block, the process of this loop ends where the loop does nothing any more (`STALLED_S`, `DEAD_S`)."""
    with StallWatch(clock, _stood, least_s=STALLED_S, dead_s=DEAD_S).watching():
        yield


def _stood(seconds: float) -> None:
    log.warning("loop.stood_still", seconds=round(seconds, 1))


def unsaid(_: str) -> None:
    """Where a loop stands is said by another watch of it."""


def _where(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_stack(frame)[-_FRAMES:])


def _say(where: str) -> None:
    log.error("loop.stands_still", where=where)
