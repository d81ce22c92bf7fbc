"""Named background tasks that end with their block and cannot fail unseen; child processes that do not outlive us, the
bundled engines among them; and failpoints for the tests of crashes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import structlog

from shared.domain.errors import Transient, Unusable

log = structlog.get_logger(__name__)

T = TypeVar("T")

Failpoint = Callable[[str], None]
"""Called with the name of the step that was just finished."""

FAILPOINT: Final = "ORB_FAILPOINT"

_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 64 * 1024
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
    other tasks, and its exception is raised from the block; several failures are raised as one group. A cancellation of
    the task that runs the block prevails over any failure: whoever tries again after a failure would never end.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[Any]] = set()
        self._cancels = 0

    async def __aenter__(self) -> Self:
        self._cancels = _cancels()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        try:
            # Before 3.13 a group takes back what it asked of its own task only if it asked before its exit began.
            await self.ended()
        except asyncio.CancelledError as cancelled:
            if error is None:
                kind, error, trace = type(cancelled), cancelled, cancelled.__traceback__
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # Before 3.13 a group that has a failure to tell drops the cancellation; since then it repeats it by itself.
            if sys.version_info < (3, 13) and _cancels() > self._cancels:
                raise asyncio.CancelledError from group
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


def _cancels() -> int:
    """How often others have asked the current task to end; TaskGroup and timeout take back what they asked."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event, up: asyncio.Event) -> None:
    """Carry out `work`, which heeds `stop` by itself once it has set `up`. Told before, it waits perhaps for an engine
    that never comes, and is cancelled."""
    async with Tasks() as tasks:
        working, told = tasks.start("work", work), tasks.start("stop", stop.wait())
        await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
        if not up.is_set():
            working.cancel()
        await asyncio.wait({working})


def dying_with(parent: int) -> list[str]:
    """What to put before a command, so that it does not outlive its parent (Linux; elsewhere nothing).

    The kernel's rule is about the *thread* that starts it: start it from one that lives as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(parent)]


def close_on_exec() -> None:
    """Mark what this process was given (a lock, say) so that the processes it starts do not get it unless asked to.

    Standard input, output and error stay. Descriptors made later are marked by Python as they are made.
    """
    with suppress(FileNotFoundError):  # a system without /dev/fd
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # the listing's own, which is closed by now
                if int(name) > 2:
                    os.set_inheritable(int(name), False)


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


class BundledServer:
    """The process of an engine that comes with us; it lives in a folder of its own and dies with this process.

    It dies with the *thread* that started it (a rule of the kernel's parent-death signal): start it from the main
    thread. It is not bound to an event loop. Its own session keeps a Ctrl-C at the terminal from it.
    """

    def __init__(self, name: str, folder: Path, *, stop_s: float, inherit: tuple[int, ...]) -> None:
        """`inherit`: descriptors that the server holds open while it lives, such as a lock's."""
        self.name: Final = name
        self._folder = folder.absolute()
        self._stop_s = stop_s
        self._inherit = inherit
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._folder} pid={self.pid}>"

    @property
    def folder(self) -> Path:
        """Everything it writes. Mode 0700."""
        return self._folder

    @property
    def output(self) -> Path:
        """What it says beside its own log, which it bounds itself. It appends, so this may be cut while it runs."""
        return self._folder / f"{self.name}.out"

    @property
    def pid(self) -> int | None:
        """The running server's process id."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def stop(self) -> None:
        """End it in good order, and by force after `stop_s`."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._stop_s):
                    await self.exited()
            except TimeoutError:
                log.warning("server.killed", server=self.name, pid=process.pid, waited_s=self._stop_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.kill()
            process.wait()

    async def exited(self) -> int:
        """Wait for its end: the exit status, negative for a signal."""
        if self._process is None:
            raise Unusable(f"{self.name} was not started")
        return await process_end(self._process)

    @contextmanager
    def _starting(self, executable: Path) -> Iterator[None]:
        """Leaves nothing running where the start fails; what the system refuses is Unusable."""
        if self.pid is not None:
            raise Unusable(f"the {self.name} in {self._folder} is already running as process {self.pid}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)
            yield
        except BaseException as error:
            self.kill()
            if isinstance(error, OSError):
                raise Unusable(f"cannot start {executable} in {self._folder}: {error}") from error
            raise

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.output.unlink(missing_ok=True)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*dying_with(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
                pass_fds=self._inherit,
            )

    def _ended(self) -> bool:
        """Whether what was spawned has ended by itself. Transient when a signal ended it."""
        status = None if self._process is None else self._process.poll()
        if status is not None and status < 0:
            raise Transient(f"{self.name} was killed by {signal.Signals(-status).name} while it started")
        return status is not None


def last_lines(path: Path, lines: int, within: int = _TAIL_BYTES) -> list[str]:
    """The last lines of a log, of its last bytes at most; none where there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - within))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


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
