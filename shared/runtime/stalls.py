"""Watches the event loop from another thread, which checks whether the loop still runs callbacks.

The thread needs the interpreter's lock. A C call that holds the lock and never returns stops the thread as well. So
kernel timers watch the thread itself (`Watchdog`).
"""

import asyncio
import ctypes
import faulthandler
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
"""The seconds after which a member with a blocked event loop kills itself (SIGKILL).

They count from the moment at which the member logs the stall, STALLED_S seconds after the stall began.
"""

_LAST: Final = 16
"""The duration of the watchdog's second timer, in seconds. It must be the number of the signal that starts this timer.

When the first timer expires, the kernel sends the signal 16 (SIGSTKFLT). The handler of this signal is the C function
alarm(seconds). A handler is called with the number of its signal. So the call is alarm(16), and alarm(16) starts a
timer of 16 seconds.
"""

_EVERY_S: Final = 1.0
_FRAMES: Final = 8
_LOOKS: Final = 60
_SAYING_S: Final = 5.0


def _kill() -> None:
    _aside(lambda: log.critical("process.aborted", advice="the process manager must start this process again"))
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # the first process of a container does not die of a signal it sends itself


def _aside(say: Callable[[], None]) -> None:
    """Call `say`, which writes to the log, in a new thread. Wait at most `_SAYING_S` seconds for the end of the call.

    The call blocks if the reader of the log has stopped reading.
    """
    saying = threading.Thread(target=say, name="stall-log", daemon=True)
    with suppress(RuntimeError):  # no thread can be started: continuing the watch matters more than the log line
        saying.start()
        saying.join(_SAYING_S)


class _Event(ctypes.Structure):
    """The structure `struct sigevent` of Linux, for a timer that sends a signal to one thread."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_char * 44),
    )


class _Times(ctypes.Structure):
    """The structure `struct itimerspec` of Linux: the first expiry of a timer, and its interval."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns"))


_MONOTONIC: Final = 1
_THREAD_ID: Final = 4


class Watchdog:
    """Ends this process if the thread that armed it stops re-arming it, even if the interpreter's lock is held.

    If the watchdog is not re-armed for `first_s` seconds, a kernel timer starts a second timer of `_LAST` seconds. When
    the second timer expires, faulthandler writes the stack of each thread to stderr, and the process exits with status
    14. No Python code is needed for this.

    The first timer may expire while the whole process is stopped (SIGSTOP, a frozen container). When the process
    continues, the thread has `_LAST` seconds to re-arm the watchdog.
    """

    def __init__(self, first_s: float) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        self._first = _Times(0, 0, int(first_s), int(first_s % 1 * 1e9))

    @contextmanager
    def armed(self) -> Iterator[Callable[[], None]]:
        """Arm the watchdog for the `with` block. Yield the function that re-arms it, to be called regularly.

        The watchdog watches the thread that enters the block. If no timer can be created, log that and watch nothing.
        """
        libc = self._libc
        event = _Event(None, _LAST, _THREAD_ID, threading.get_native_id())
        if libc.timer_create(_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            error = ctypes.get_errno()
            log.warning("watchdog.disabled", error=os.strerror(error))
            yield lambda: None
            return
        libc.signal.restype = ctypes.c_void_p
        before = {
            number: libc.signal(number, ctypes.cast(handler, ctypes.c_void_p))
            for number, handler in ((_LAST, libc.alarm), (signal.SIGALRM, libc._exit))
        }
        try:
            with _dumping_at(signal.SIGALRM):
                self._rearm()
                yield self._rearm
        finally:
            libc.timer_delete(self._timer)
            libc.alarm(0)
            for number, handler in before.items():
                libc.signal(number, ctypes.c_void_p(handler))

    def _rearm(self) -> None:
        # Set the first timer first. Otherwise it might start the second one after that was stopped.
        self._libc.timer_settime(self._timer, 0, ctypes.byref(self._first), None)
        self._libc.alarm(0)


@contextmanager
def _dumping_at(number: int) -> Iterator[None]:
    """Within the `with` block, write the stacks of all threads to stderr when the signal `number` arrives.

    The signal's own handler runs afterwards. Stderr is opened a second time in non-blocking mode, so that a full pipe
    does not delay the handler. If stderr cannot be opened, as for a socket, nothing is written.
    """
    try:
        file = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        faulthandler.register(number, file=file, all_threads=True, chain=True)
        yield
    finally:
        faulthandler.unregister(number)
        os.close(file)


class StallWatch:
    """Watches an event loop from a thread, and reports each stall of at least `least_s` seconds.

    During the stall it logs where the loop is blocked. After the stall it calls `on_stall` on the loop with the stall's
    seconds. If the whole process was stopped, that counts as a stall as well.
    """

    def __init__(
        self,
        clock: Clock,
        on_stall: Callable[[float], None],
        *,
        least_s: float,
        every_s: float = _EVERY_S,
        stuck: Callable[[str], None] | None = None,
        dead_s: float | None = None,
        dead: Callable[[], None] = _kill,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Prepare the watch. `watching` starts it.

        - `every_s`: the seconds between two checks.
        - `stuck`: called in the watching thread during a stall, with the loop's stack. By default it logs.
        - `dead_s`: if the stall lasts this many seconds after `stuck` was called, `dead` is called. Time in which the
          whole process was stopped does not count. None: never.
        - `dead`: by default kills the process.
        - `watchdog`: watches the watching thread, None for no watchdog.
        """
        self._clock = clock
        self._on_stall = on_stall
        self._least_s = least_s
        self._every_s = every_s
        self._stuck = stuck or _say
        self._dead_s = dead_s
        self._dead = dead
        self._watchdog = watchdog
        self._over = threading.Event()
        self._sign = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running event loop during the `with` block. The end of the block waits for the watching thread."""
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
        if self._watchdog is None:
            return self._watch_loop(loop, owner, lambda: None)
        with self._watchdog.armed() as rearm:
            self._watch_loop(loop, owner, rearm)

    def _watch_loop(self, loop: asyncio.AbstractEventLoop, owner: int, rearm: Callable[[], None]) -> None:
        alive_at = self._clock.elapsed()
        while not self._over.wait(self._every_s):
            rearm()
            sign = self._sign = threading.Event()
            if self._over.is_set():  # `watching` sets the sign that is current after `_over` is set
                return
            loop.call_soon_threadsafe(sign.set)
            if not sign.wait(self._least_s):
                _aside(partial(self._stuck, _where(owner)))
                self._await(sign, rearm)
            now = self._clock.elapsed()
            stood_s = now - alive_at - self._every_s
            alive_at = now
            if stood_s >= self._least_s:
                loop.call_soon_threadsafe(self._on_stall, stood_s)

    def _await(self, sign: threading.Event, rearm: Callable[[], None]) -> None:
        """Wait until the loop has set `sign`, which ends the stall. Meanwhile call `rearm`, which re-arms the watchdog.

        Call `dead` if the wait takes `dead_s` seconds. Time in which the whole process was stopped does not count.
        """
        if self._dead_s is not None:
            for _ in range(_LOOKS):
                rearm()
                if sign.wait(self._dead_s / _LOOKS):
                    return
            self._dead()
        while not sign.wait(self._least_s):
            rearm()


@contextmanager
def ending_where_it_stands(clock: Clock) -> Iterator[None]:
    """Kill this process if its event loop stalls for STALLED_S + DEAD_S seconds within the `with` block.

    This works even if a C call holds the interpreter's lock during the whole stall.
    """
    watchdog = Watchdog(max(STALLED_S + DEAD_S - _LAST, 2 * STALLED_S))
    with StallWatch(clock, _stood, least_s=STALLED_S, dead_s=DEAD_S, watchdog=watchdog).watching():
        yield


def _stood(seconds: float) -> None:
    log.warning("event_loop.stalled", duration_s=round(seconds, 1))


def unsaid(_: str) -> None:
    """Do nothing. Pass this as `stuck` to a StallWatch that must not log, because another watch of the loop logs."""


def _where(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "" if frame is None else "".join(traceback.format_stack(frame)[-_FRAMES:])


def _say(where: str) -> None:
    log.error("event_loop.blocked", where=where)
