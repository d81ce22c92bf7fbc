"""Starts child processes, restarts them when they die, and gives up after too many deaths."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Generic, Protocol, TypeVar

from msgspec import Struct, field

from cli.local.fork_server import ForkServer
from cli.local.logs import tail
from cli.terminal.exits import Exit
from shared.domain.errors import Transient, Unusable
from shared.runtime.supervise import Process, dying_with, process_end

MEMBER_S: Final = 25.0
"""The seconds that a master or worker gets to end after SIGTERM. After that it is killed. They include the time in
which it completes its work (`grace_s`, 10 by default), and a margin."""

ENGINE_S: Final = 5.0
"""The seconds that an engine gets to end after SIGTERM. After that it is killed."""
# The time is short: engines end last, so no process uses them any more. What they acknowledged is in their files.

_FAILED: Final = ("master.failed", "worker.failed")
"""The log events of a master or worker that fails and exits. The field `error` of such an event has the cause."""

E_co = TypeVar("E_co", covariant=True)
E = TypeVar("E")


class RestartBudget(Struct):
    """Limits how often a child process is restarted, and delays each restart.

    After more than `max_count` deaths within `within_s` seconds, the child is not restarted. The delay doubles with
    each of these deaths, from `first_wait_s` up to `longest_wait_s`.
    """

    max_count: int = 5
    within_s: float = 60.0
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0
    _at: deque[float] = field(default_factory=deque)

    def died(self, now: float) -> float | None:
        """Record a death of the child at `now` (monotonic seconds). Return the seconds to wait before the restart.

        Return None if the child has died too often.
        """
        self._at.append(now)
        while self._at and self._at[0] <= now - self.within_s:
            self._at.popleft()
        if len(self._at) > self.max_count:
            return None
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (len(self._at) - 1))


class Child(Protocol):
    """A child process that a Supervisor can start again: a master, a worker or an engine (etcd, NATS)."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def patience_s(self) -> float:
        """How many seconds the process may take to end after SIGTERM. After that it is killed."""

    async def start(self) -> None: ...

    async def exited(self) -> int:
        """Wait until the process has ended. Return its exit status, negative for a signal."""

    def signal(self, number: int) -> None:
        """Send the signal `number` to the process. Do nothing if it is not alive."""

    def last_words(self) -> str:
        """Return the last lines of the process's log."""


class RoleProcess:
    """A master or worker as a child process: `orb` with `arguments`. The child dies with this process.

    The child has its own session, so Ctrl-C in the terminal does not reach it.

    - `log`: the file to which the output of the child is appended.
    - `settings`: environment variables to set. Other variables are inherited, except those in `without`.
    - `at_first`: further environment variables, for the first start only.
    - `inherit`: file descriptors that the child inherits.
    - `forks`: the fork server that starts the child. If `forks` is None or fails, exec starts the child.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        settings: Mapping[str, str],
        *,
        at_first: Mapping[str, str] | None = None,
        without: Collection[str] = (),
        inherit: tuple[int, ...] = (),
        forks: ForkServer | None = None,
    ) -> None:
        self.name: Final = name
        self._forks = forks
        self._arguments = arguments
        self._log = log
        self._settings = settings
        self._without = without
        self._at_first = at_first or {}
        self._inherit = inherit
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<RoleProcess {self.name} pid={self.pid}>"

    @property
    def patience_s(self) -> float:
        return MEMBER_S

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    async def start(self) -> None:
        settings = {**self._settings, **self._at_first}
        self._at_first = {}
        variables = environment(settings, self._without)
        with open(self._log, "ab") as out:  # noqa: ASYNC230  opened for the child; this process writes nothing
            forked = None
            if self._forks is not None:
                forked = await self._forks.fork(self._arguments, variables, out.fileno(), self._inherit)
            self._process = forked or self._executed(variables, out)

    def _executed(self, variables: Mapping[str, str], out: BinaryIO) -> Process:
        return subprocess.Popen(
            [*dying_with(os.getpid()), sys.executable, "-m", "orb", *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=variables,
            pass_fds=self._inherit,
            start_new_session=True,
        )

    async def exited(self) -> int:
        assert self._process is not None, "exited() before start()"
        return await process_end(self._process)

    def signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_words(self) -> str:
        return "\n".join(tail(self._log))


class Bundled(Protocol[E_co]):
    """An engine (etcd or NATS) that comes with this program (shared.runtime.supervise.BundledServer).

    `start` starts it and returns its address.
    """

    @property
    def pid(self) -> int | None: ...

    async def start(self) -> E_co: ...

    async def exited(self) -> int: ...

    def log_tail(self) -> str: ...


class Engine(Generic[E]):
    """An engine (etcd or NATS) as a child process.

    `endpoint` is the address that its latest start returned. It is None before the first start.
    """

    def __init__(self, name: str, server: Bundled[E]) -> None:
        self.name: Final = name
        self.endpoint: E | None = None
        self._server = server

    def __repr__(self) -> str:
        return repr(self._server)

    @property
    def patience_s(self) -> float:
        return ENGINE_S

    @property
    def pid(self) -> int | None:
        return self._server.pid

    async def start(self) -> None:
        self.endpoint = await self._server.start()

    async def exited(self) -> int:
        return await self._server.exited()

    def signal(self, number: int) -> None:
        if (pid := self._server.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def last_words(self) -> str:
        return self._server.log_tail()


def environment(settings: Mapping[str, str], without: Collection[str] = ()) -> dict[str, str]:
    """Return the environment variables for a child: `settings`, and those of this process except names in `without`.

    `PYTHONPATH` and `PYTHONSAFEPATH` are set so that `python -m orb` in the child runs the same code as this process.
    """
    root = Path(__file__).resolve().parents[2]
    kept = {name: value for name, value in os.environ.items() if name not in without}
    result = {**kept, "PYTHONSAFEPATH": "1", **settings}
    if root != Path(sysconfig.get_path("purelib")).resolve():
        before = os.environ.get("PYTHONPATH", "")
        result["PYTHONPATH"] = str(root) if before in ("", str(root)) else f"{root}{os.pathsep}{before}"
    return result


def logged_error_of(child: Child) -> str | None:
    """Return why a child failed, from the end of its log. Return None if the log does not say it.

    This is the text of an `orb: ...` line, or the error of one of the log events in _FAILED.
    """
    for line in reversed(child.last_words().splitlines()):
        if line.startswith("orb: "):
            return line.removeprefix("orb: ")
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") in _FAILED:
                return str(event.get("error", ""))
    return None


def ended_by(status: int) -> str:
    """Return words on how a process ended, such as `was killed by SIGKILL` or `ended with status 1`.

    `status` is its exit status, negative for a signal.
    """
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class RestartLimitReached(Exception):
    """Raised if a child process cannot be started or died too often. The message states the cause for the user."""


class Supervisor:
    """Keeps one child process alive until `stop` or `kill`.

    - `notify` is called with a line of text for each death.
    - `deaths`: the limit on restarts. None: the default.
    - `lasting`: True to restart the child also if it ends with status 0.
    """

    def __init__(
        self, child: Child, notify: Callable[[str], None], deaths: RestartBudget | None = None, *, lasting: bool = False
    ) -> None:
        self.child: Final = child
        self.restarts = 0
        self._notify = notify
        self._lasting = lasting
        self._deaths = deaths or RestartBudget()
        self._ready = False
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Supervisor {self.child!r} restarts={self.restarts}>"

    async def start(self) -> bool:
        """Start the child, with retries if it does not come up. Return True when it has started.

        Return False if `stop` or `kill` was called during a wait between retries. Raise RestartLimitReached if the
        system cannot start the child, or if the child failed too often.
        """
        while True:
            try:
                await self.child.start()
            except Transient as error:
                if not await self._may_restart(f"did not come up ({error})"):
                    return False
            except (Unusable, OSError) as error:
                raise RestartLimitReached(f"cannot start {self.child.name}: {error}") from error
            else:
                if self._stopped.is_set():
                    self.child.signal(signal.SIGTERM)
                return True

    async def keep(self) -> None:
        """Restart the child each time it dies. Return after it has ended because of `stop` or `kill`.

        If `lasting` is False, also return after the child has ended with status 0.

        Raise RestartLimitReached in two cases:

        - The child died too often.
        - Before `ready` was called, the child ended with exit code 4 (its environment is unusable), and its log gives
          the reason.
        """
        while True:
            status = await self.child.exited()
            if self._stopped.is_set() or (status == Exit.OK and not self._lasting):
                return
            if status == Exit.ENVIRONMENT and (why := logged_error_of(self.child)):
                if not self._ready:
                    raise RestartLimitReached(why)
                self._notify(f"{self.child.name} cannot go on: {why}; it is started again")
                if not await self._rested(self._deaths.longest_wait_s) or not await self.start():
                    return
                self.restarts += 1
                continue
            if not await self._may_restart(ended_by(status)) or not await self.start():
                return

    async def _may_restart(self, how: str) -> bool:
        """Count a death of the child, and wait for the delay before its restart. Return True if it may be restarted.

        Return False if `stop` or `kill` was called during the wait. Raise RestartLimitReached after too many deaths.
        `how` says how the child died, for messages.
        """
        wait_s = self._deaths.died(time.monotonic())
        name = self.child.name
        if wait_s is None:
            raise RestartLimitReached(f"{name} {how}, again and again; its last lines:\n{self.child.last_words()}")
        self.restarts += 1
        self._notify(f"{name} {how}; it is started again")
        return await self._rested(wait_s)

    async def _rested(self, wait_s: float) -> bool:
        """Wait for `wait_s` seconds, and return True. If `stop` or `kill` is called, stop waiting and return False."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stopped.wait()
        return not self._stopped.is_set()

    def ready(self) -> None:
        """Record that the start is over and the child works.

        Before this call, a child that ends with exit code 4 (its environment is unusable) is not restarted. After this
        call, `keep` restarts such a child.
        """
        self._ready = True

    def stop(self) -> None:
        """Send SIGTERM to the child, so that it completes its work and ends. It is not restarted."""
        self._stopped.set()
        self.child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the child. It is not restarted."""
        self._stopped.set()
        self.child.signal(signal.SIGKILL)
