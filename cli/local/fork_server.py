"""The fork server: a child process of a command such as `orb crawl` that forks the masters and workers.

The fork server has imported the modules of masters and workers. So a forked process needs no start of Python and no
imports.

The fork server and every process that it forks die with the command. A forked process becomes a child of the command:

1. The fork server forks an intermediate process, which forks the new process and ends at once.
2. The command adopts the new process.
3. The new process sends its process id to the command. It continues only after the command has read the id.

If the fork server fails, the caller starts the process by exec (`cli.local.supervisor`).
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import msgspec
import structlog

from cli.local.prctl import adopt_descendants, can_fork
from shared.runtime.supervise import Process, process_end

log = structlog.get_logger(__name__)

READY: Final = b"\0"
"""The first byte of the answer to a request whose fork succeeded. The id of the new process follows.

After a failed fork, the answer is a text that gives the reason."""

GO: Final = b"g"
_ANSWER_S: Final = 60.0
"""Time limit for a fork. The first fork also waits for the imports."""

_ANSWER_BYTES: Final = 4096


class ForkRequest(msgspec.Struct, frozen=True):
    """A request to the fork server: start `orb` with `arguments`, as a master or worker.

    `environment` has all environment variables of the new process. The message with the request also transfers the file
    descriptors for the new process.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


class ForkedProcess:
    """A master or worker that the fork server has forked, as a child of this process.

    Its attributes and methods are like those of `subprocess.Popen`.
    """

    def __init__(self, pid: int) -> None:
        self.pid: Final = pid
        self.returncode: int | None = None

    def __repr__(self) -> str:
        return f"<ForkedProcess pid={self.pid} returncode={self.returncode}>"

    def poll(self) -> int | None:
        """Return the exit status of the master or worker, negative for a signal. Return None while it runs."""
        return self._reaped(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the master or worker has ended, and return its exit status, negative for a signal."""
        status = self._reaped(0)
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send the signal `number` to the master or worker if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkServer:
    """The command's handle of the fork server: sends it requests, waits for its end, and kills it."""

    def __init__(self, process: Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._forking = 0
        self._serves = True

    def __repr__(self) -> str:
        return f"<ForkServer {self._process!r} serves={self._serves}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: int, inherit: Collection[int]
    ) -> ForkedProcess | None:
        """Fork a master or worker that runs `orb` with `arguments`. Return None if the fork server fails or has failed.

        - `environment`: all its environment variables.
        - `output`: the file descriptor of its standard output and standard error.
        - `inherit`: further file descriptors that it inherits.
        """
        if not self._serves:
            return None
        ours, theirs = socket.socketpair()
        with ours:
            self._adopt(1)
            try:
                with theirs:
                    self._request(ForkRequest(tuple(arguments), environment), [theirs.fileno(), output, *inherit])
                async with asyncio.timeout(_ANSWER_S):
                    return await self._started(ours)
            except (OSError, TimeoutError) as error:
                self._give_up(repr(error))
                return None
            finally:
                self._adopt(-1)

    def _request(self, request: ForkRequest, descriptors: Sequence[int]) -> None:
        socket.send_fds(self._channel, [msgspec.json.encode(request)], list(descriptors))

    async def _started(self, channel: socket.socket) -> ForkedProcess | None:
        channel.setblocking(False)
        loop = asyncio.get_running_loop()
        answer = await loop.sock_recv(channel, _ANSWER_BYTES)
        if not answer.startswith(READY):
            self._give_up(answer.decode(errors="replace") or "it has ended")
            return None
        process = ForkedProcess(int(answer.removeprefix(READY)))
        # One byte always fits in the empty buffer. No await here: a role that continues must be known to the caller.
        channel.send(GO)
        return process

    def _adopt(self, change: int) -> None:
        self._forking += change
        adopt_descendants(self._forking > 0)

    def _give_up(self, reason: str) -> None:
        log.warning("fork_server.failed", pid=self.pid, reason=reason)
        self._serves = False

    async def ended(self) -> int:
        """Wait until the fork server has ended, and return its exit status, negative for a signal."""
        return await process_end(self._process)

    def close(self) -> None:
        """Kill the fork server. The masters and workers that it has forked continue."""
        self._serves = False
        self._channel.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def preload(modules: Sequence[str]) -> None:
    """Import the modules. Then exclude all present objects of this process from garbage collection."""
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def forking(modules: Sequence[str] = ()) -> Iterator[ForkServer | None]:
    """Start a fork server that imports `modules`, and kill it when the `with` block ends.

    Yield None if this process cannot fork safely: it is not on Linux, or has several threads. Call this before this
    process has another thread, an event loop or a connection.
    """
    if not can_fork():
        yield None
        return
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        from cli.local.forked_role import serve

        ours.close()
        serve(theirs, parent, modules)
    theirs.close()
    server = ForkServer(ForkedProcess(pid), ours)
    try:
        yield server
    finally:
        server.close()
