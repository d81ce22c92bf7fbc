"""The processes that a run keeps alive: how one is started, watched, started again, and when that is given up."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from cli.exits import Exit
from cli.logs import tail
from shared.domain.errors import Transient, Unusable
from shared.supervise import dying_with

MEMBER_S: Final = 25.0
"""How long a master or worker may take to end in good order: its own grace and some."""

ENGINE_S: Final = 5.0
"""The same of an engine, which ends last: nobody asks it any more, and what it has acknowledged is in its files. One
that stands still is not waited for longer."""

E_co = TypeVar("E_co", covariant=True)
E = TypeVar("E")


@dataclass(slots=True)
class Deaths:
    """When a process died. More than `most` deaths within `within_s` are too many; each waits longer than the last."""

    most: int = 5
    within_s: float = 60.0
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0
    _at: deque[float] = field(default_factory=deque)

    def died(self, now: float) -> float | None:
        """Seconds to wait before it is started again; None when it died too often."""
        self._at.append(now)
        while self._at and self._at[0] <= now - self.within_s:
            self._at.popleft()
        if len(self._at) > self.most:
            return None
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** (len(self._at) - 1))


class Child(Protocol):
    """A process that can be started again."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def patience_s(self) -> float:
        """How long it may take to end in good order."""
        ...

    async def start(self) -> None: ...

    async def exited(self) -> int:
        """Wait for its end: the exit status, negative for a signal."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal, if it lives."""
        ...

    def last_words(self) -> str:
        """The end of its log."""
        ...


class RoleProcess:
    """A master or worker: `orb` with `arguments`, in a session of its own, so that a terminal's Ctrl-C reaches the
    command alone; it dies with the command. What it writes goes to `log`, bounded by `bound_log`. Its environment is
    this process's, without the variables `without`, and with `settings`; `at_first` holds for the first start only.
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
    ) -> None:
        self.name: Final = name
        self._arguments = arguments
        self._log = log
        self._settings = settings
        self._without = without
        self._at_first = at_first or {}
        self._inherit = inherit
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<RoleProcess {self.name} pid={self.pid}>"

    @property
    def patience_s(self) -> float:
        return MEMBER_S

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        settings = {**self._settings, **self._at_first}
        self._at_first = {}
        with open(self._log, "ab") as out:  # noqa: ASYNC230  opens for the child, nothing is written here
            self._process = await asyncio.create_subprocess_exec(
                *dying_with(os.getpid()),
                *(sys.executable, "-m", "orb", *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(settings, self._without),
                pass_fds=self._inherit,
                start_new_session=True,
            )

    async def exited(self) -> int:
        assert self._process is not None, "exited() before start()"
        return await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_words(self) -> str:
        return "\n".join(tail(self._log))


class Bundled(Protocol[E_co]):
    """A bundled engine: `shared.supervise.BundledServer` with the start of its adapter."""

    @property
    def pid(self) -> int | None: ...

    async def start(self) -> E_co: ...

    async def exited(self) -> int: ...

    def log_tail(self) -> str: ...


class Engine(Generic[E]):
    """A bundled engine as a child; `endpoint` is where it was found at its latest start."""

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
    """This process's environment with `settings` and what makes `python -m orb` find this very code, and no other."""
    root = Path(__file__).resolve().parents[1]
    kept = {name: value for name, value in os.environ.items() if name not in without}
    result = {**kept, "PYTHONSAFEPATH": "1", **settings}
    if root != Path(sysconfig.get_path("purelib")).resolve():
        before = os.environ.get("PYTHONPATH", "")
        result["PYTHONPATH"] = str(root) if before in ("", str(root)) else f"{root}{os.pathsep}{before}"
    return result


def said_by(child: Child) -> str | None:
    """The sentence with which a child ended that could not go on: an `orb: ...` line, or an `*.unusable` event."""
    for line in reversed(child.last_words().splitlines()):
        if line.startswith("orb: "):
            return line.removeprefix("orb: ")
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and str(event.get("event", "")).endswith(".unusable"):
                return str(event.get("error", ""))
    return None


def ended_by(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class GivenUp(Exception):
    """A child cannot be kept alive; the message says why, for the person who started the run."""


class Keeper:
    """Keeps one child alive until it is told to stop. `told` hears of each death in one line.

    `lasting`: it has no end of its own, so that it is started again also where it ended well without being told to.
    """

    def __init__(
        self, child: Child, told: Callable[[str], None], deaths: Deaths | None = None, *, lasting: bool = False
    ) -> None:
        self.child: Final = child
        self.restarts = 0
        self._told = told
        self._lasting = lasting
        self._deaths = deaths or Deaths()
        self._ready = False
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Keeper {self.child!r} restarts={self.restarts}>"

    async def start(self) -> bool:
        """Start the child, again where it is killed before it is up; False when told to stop instead.

        GivenUp when the system refuses, or when it died too often.
        """
        while True:
            try:
                await self.child.start()
            except Transient as error:
                if not await self._may_restart(f"did not come up ({error})"):
                    return False
            except (Unusable, OSError) as error:
                raise GivenUp(f"cannot start {self.child.name}: {error}") from error
            else:
                if self._stopped.is_set():
                    self.child.signal(signal.SIGTERM)
                return True

    async def keep(self) -> None:
        """Start a started child again whenever it dies; returns when it ended after `stop`, or by itself with status 0
        unless it is `lasting`.

        Raise GivenUp if it died too often, or ended with exit code 4 before `ready`: no restart can help then. After
        that the others are at work, and what it lacks (a port that another process took) may come back.
        """
        while True:
            status = await self.child.exited()
            if self._stopped.is_set() or (status == Exit.OK and not self._lasting):
                return
            if status == Exit.ENVIRONMENT and (why := said_by(self.child)):
                if not self._ready:
                    raise GivenUp(why)
                self._told(f"{self.child.name} cannot go on: {why}; it is started again")
                if not await self._rested(self._deaths.longest_wait_s) or not await self.start():
                    return
                self.restarts += 1
                continue
            if not await self._may_restart(ended_by(status)) or not await self.start():
                return

    async def _may_restart(self, how: str) -> bool:
        """Count a death and rest after it; False when told to stop meanwhile. GivenUp after too many."""
        wait_s = self._deaths.died(time.monotonic())
        name = self.child.name
        if wait_s is None:
            raise GivenUp(f"{name} {how}, again and again; its last lines:\n{self.child.last_words()}")
        self.restarts += 1
        self._told(f"{name} {how}; it is started again")
        return await self._rested(wait_s)

    async def _rested(self, wait_s: float) -> bool:
        """Wait; return False if told to stop meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stopped.wait()
        return not self._stopped.is_set()

    def ready(self) -> None:
        """From now on exit code 4 is no reason to give it up."""
        self._ready = True

    def stop(self) -> None:
        """Ask it to end in good order; it is not started again."""
        self._stopped.set()
        self.child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; it is not started again."""
        self._stopped.set()
        self.child.signal(signal.SIGKILL)
