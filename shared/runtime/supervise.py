"""Named background tasks, child processes and failpoints.

Tasks end with their `with` block, and their failures cannot go unnoticed. Child processes, such as the bundled NATS and
etcd servers, do not outlive this process. Failpoints are for crash tests.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import structlog

from shared.domain.errors import Transient, Unusable

log = structlog.get_logger(__name__)

T = TypeVar("T")

Failpoint = Callable[[str], None]
"""A function with which tests crash a process. It is called with the name of the step that has just finished."""

FAILPOINT: Final = "ORB_FAILPOINT"

_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 64 * 1024
_LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""A program that asks the kernel to kill it when its parent dies (1 is PR_SET_PDEATHSIG), then runs the command."""
# Code between fork and exec could do the same, but is not safe in a process with threads.


class Tasks:
    """Background tasks that end with their block: `async with Tasks() as tasks: tasks.start("name", coroutine)`.

    At the end of the block, the tasks that still run are cancelled and awaited. The first task that fails cancels the
    block and the other tasks, and the block raises the task's exception. Several failures are raised as one exception
    group. If the task that runs the block was cancelled, the block raises CancelledError instead of any failure.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[Any]] = set()
        self._pending_at_entry = 0

    async def __aenter__(self) -> Self:
        self._pending_at_entry = _pending_cancellations()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        try:
            # Before 3.13 a group undoes the cancellation of its own task only if it requested it before its exit began.
            await self.ended()
        except asyncio.CancelledError as cancelled:
            if error is None:
                kind, error, trace = type(cancelled), cancelled, cancelled.__traceback__
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # Before 3.13 a group with a failure drops the cancellation. Later versions raise it again by themselves.
            if sys.version_info < (3, 13) and _pending_cancellations() > self._pending_at_entry:
                raise asyncio.CancelledError from group
            if len(group.exceptions) > 1:
                raise
            failed = group.exceptions[0]
        else:
            return
        if failed is not error:
            raise failed

    def start(self, name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start `work` as a task with this name, and return the task.

        It is cancelled if it still runs at the end of the block. Raise RuntimeError if the block has ended.
        """
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError:  # the block is over
            work.close()
            raise
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel every running task, and return at once. The end of the `with` block waits for them."""
        for task in self._running:
            task.cancel()

    async def ended(self) -> None:
        """Wait until no task runs, including tasks that are started meanwhile."""
        while self._running:
            await asyncio.wait(set(self._running))

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<Tasks {', '.join(sorted(task.get_name() for task in self._running)) or 'none'}>"


def _pending_cancellations() -> int:
    """Return how often the current task was cancelled, without withdrawn cancellations (`Task.cancelling`).

    Outside of a task, return 0.
    """
    # A greater number at the end of a `Tasks` block than at its start: code outside of the block cancelled the task. A
    # TaskGroup also cancels its own task when one of its tasks fails, but withdraws that request before it ends.
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event, up: asyncio.Event) -> None:
    """Run `work`, and return when it has ended. `work` must set `up` when it has started.

    If `stop` is set before `up`, cancel `work`. If `stop` is set later, `work` must end by itself.
    """
    async with Tasks() as tasks:
        working, stopping = tasks.start("work", work), tasks.start("stop", stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not up.is_set():
            working.cancel()
        await asyncio.wait({working})


def dying_with(parent: int) -> list[str]:
    """Return words to put before a command, so that the kernel kills the command when its parent process dies.

    `parent`: the id of the process that starts the command. On systems other than Linux the result is empty.

    The caller must start the command in a thread that runs until the parent process ends, such as the main thread.
    Otherwise the command dies too early: the kernel kills it as soon as the thread that started it ends.
    """
    if not sys.platform.startswith("linux"):
        return []
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(parent)]


def close_on_exec() -> None:
    """Mark inherited file descriptors (such as a lock's) so that child processes get them only if passed explicitly.

    Standard input, output and error stay inheritable. Python itself marks the descriptors that it opens later.
    """
    with suppress(FileNotFoundError):  # a system without /dev/fd
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):  # the listing's own descriptor is closed by now
                if int(name) > 2:
                    os.set_inheritable(int(name), False)


class Process(Protocol):
    """A child process of this process, with the methods of `subprocess.Popen` that are used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the child's exit status (negative for a signal) and reap it if it has ended, else return None."""

    def wait(self) -> int:
        """Wait until the child has ended. Return its exit status."""

    def send_signal(self, number: int, /) -> None:
        """Send the child a signal, if it has not ended."""


async def process_end(process: Process) -> int:
    """Wait until a child process has ended. Return its exit status, negative for a signal."""
    if process.poll() is None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            while process.poll() is None:  # noqa: ASYNC110  no descriptor to wait on here
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
    """A bundled server (NATS or etcd) that runs as a child process with its own folder. It dies with this process.

    A subclass adds the method that starts the server. Call that method in the main thread, because the kernel kills the
    server when the *thread* that started it ends. The object is not bound to an event loop. The server has its own
    session, so Ctrl-C at the terminal does not reach it.
    """

    def __init__(self, name: str, folder: Path, *, stop_s: float, inherit: tuple[int, ...]) -> None:
        """Prepare the server, without starting it.

        - `name`: the server's name, for messages and the name of its output file.
        - `stop_s`: the seconds that `stop` waits before it kills the server.
        - `inherit`: file descriptors that the server inherits and keeps open while it runs, such as a lock's.
        """
        self.name: Final = name
        self._folder = folder.absolute()
        self._stop_s = stop_s
        self._inherit = inherit
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._folder} pid={self.pid}>"

    @property
    def folder(self) -> Path:
        """The folder with all files of the server. Its mode is 0700."""
        return self._folder

    @property
    def output(self) -> Path:
        """The file with the server's standard output and error. The server's own log is another file.

        A caller may truncate the file while the server runs. The server always writes at the end of the file.
        """
        return self._folder / f"{self.name}.out"

    @property
    def pid(self) -> int | None:
        """The process id of the running server, None if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def stop(self) -> None:
        """Send SIGTERM to the server, and kill it if it has not ended after `stop_s` seconds.

        Return when it has ended.
        """
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
        """Kill the server with SIGKILL if it runs, and reap it."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                process.kill()
            process.wait()

    async def exited(self) -> int:
        """Wait until the server has ended. Return its exit status, negative for a signal.

        Raise Unusable if it was not started.
        """
        if self._process is None:
            raise Unusable(f"{self.name} was not started")
        return await process_end(self._process)

    @contextmanager
    def _starting(self, executable: Path) -> Iterator[None]:
        """Create the folder, then run the `with` block, in which the caller starts the server.

        If the block raises an error, kill the server. Raise Unusable for an OSError, or if the server runs already.
        `executable`: the server's program, for the message.
        """
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
        """Return True if the process has exited by itself, False if it runs or was not started.

        Raise Transient if a signal ended it.
        """
        status = None if self._process is None else self._process.poll()
        if status is not None and status < 0:
            raise Transient(f"{self.name} was killed by {signal.Signals(-status).name} while it started")
        return status is not None


def last_lines(path: Path, lines: int, within: int = _TAIL_BYTES) -> list[str]:
    """Return the last `lines` lines of a log file. Read only its last `within` bytes.

    Return no lines if the file does not exist.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - within))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def no_failpoint(name: str) -> None:
    """Do nothing. This is the failpoint of every process that is not in a crash test.

    `name` is the step just finished.
    """


def failpoint_of(environment: Mapping[str, str]) -> Failpoint:
    """Return the failpoint that the variable `ORB_FAILPOINT="step:count"` sets, or `no_failpoint` without it.

    The failpoint kills this process with SIGKILL when it is called for the count-th time with the name `step`. Without
    a count, this is the first time. Raise ValueError if the variable has another form.
    """
    setting = environment.get(FAILPOINT)
    if not setting:
        return no_failpoint
    step, _, count = setting.partition(":")
    left = int(count or 1)
    if not step or left < 1:
        raise ValueError(f"{FAILPOINT} is name:count, not {setting!r}")

    def pass_by(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_by
