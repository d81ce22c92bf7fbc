"""Named background tasks that end with their block and cannot fail unseen; child processes that do not outlive us; and
failpoints for the tests of crashes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

Failpoint = Callable[[str], None]
"""Called with the name of the step that was just finished."""

FAILPOINT: Final = "ORB_FAILPOINT"

_POLL_S: Final = 0.02
_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Asks the kernel to kill this process when its parent dies (1 is PR_SET_PDEATHSIG), then becomes the program. Code run
between fork and exec could do the same, but is not safe in a process with threads."""


class Tasks:
    """`async with Tasks() as tasks: tasks.start("name", coroutine)`.

    When the block ends, what still runs is cancelled and awaited. The first task that fails cancels the block and the
    other tasks, and its exception is raised from the block; several failures are raised as one group.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            failed = group.exceptions[0]
        else:
            return
        if failed is not error:
            raise failed

    def start(self, name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run `work` until it ends or the block does."""
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError:  # the block is over
            work.close()
            raise
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel everything that runs; the block's end waits for it."""
        for task in self._running:
            task.cancel()

    async def ended(self) -> None:
        """Wait until no task runs."""
        while self._running:
            await asyncio.wait(set(self._running))

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<Tasks {', '.join(sorted(task.get_name() for task in self._running)) or 'none'}>"


def dying_with(parent: int) -> list[str]:
    """What to put before a command, so that it does not outlive its parent (Linux; elsewhere nothing).

    The kernel's rule is about the *thread* that starts it: start it from one that lives as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(parent)]


async def process_end(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a child's end: its exit status, negative for a signal."""
    if process.poll() is None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            while process.poll() is None:  # noqa: ASYNC110  this system has no descriptor to wait on
                await asyncio.sleep(_POLL_S)
        else:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
    return process.wait()


def no_failpoint(name: str) -> None:
    """What every process but one in a crash test is given."""


def failpoint_of(environment: Mapping[str, str]) -> Failpoint:
    """The failpoint that `ORB_FAILPOINT="name:count"` sets: SIGKILL to ourselves at the count-th pass of that name.

    ValueError when it is set to anything else.
    """
    setting = environment.get(FAILPOINT)
    if not setting:
        return no_failpoint
    wanted, _, count = setting.partition(":")
    left = int(count or 1)
    if not wanted or left < 1:
        raise ValueError(f"{FAILPOINT} is name:count, not {setting!r}")

    def pass_by(name: str) -> None:
        nonlocal left
        if name == wanted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_by
