"""A world whose time and whose every input and output are moved by hand: real coroutines, no threads, no waiting.

Each process of the world runs as ordinary asyncio tasks on one `SimLoop`. Whatever it asks of an engine goes through
`World.io`, which halts at two *gates*, before the effect and between the effect and its answer; the driver of the
world chooses which gate opens next. So a process can be stopped, killed or overtaken between any two steps, and an
answer can be lost although its effect took place. Nothing here is random: the same choices give the same history.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from shared.domain.errors import Transient

T = TypeVar("T")

EPOCH_MS: Final = 1_700_000_000_000
_SPINS: Final = 20_000
_NEAR_S: Final = 1e-6


class Fault(Enum):
    """What happens to a process's next input or output. LATE: its effect takes place some time after it failed. FULL
    waits for a transaction that writes."""

    LOST = "nothing happens, and the caller learns that it may have"
    UNANSWERED = "it takes place, and the caller learns that it may not have"
    LATE = "the caller learns that it may not have happened; it happens later"
    FULL = "the next thing that it writes to the database is refused for want of room"
    CRASH_BEFORE = "the process dies before it"
    CRASH_AFTER = "the process dies after it"


class _Instant(selectors.SelectSelector):
    """Never waits: no file is ever ready here."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Instant())

    def time(self) -> float:
        return self.now

    def pump(self) -> None:
        """Run everything that is ready or due, until nothing is."""
        loop: Any = self
        asyncio._set_running_loop(self)
        try:
            for _ in range(_SPINS):
                while loop._scheduled and loop._scheduled[0]._cancelled:
                    loop._run_once()
                if loop._scheduled and loop._scheduled[0]._when <= self.now + _NEAR_S:
                    # asyncio fires timers up to its clock's resolution early; here time is what it was asked to be.
                    self.now = max(self.now, loop._scheduled[0]._when)
                elif not loop._ready:
                    return
                loop._run_once()
        finally:
            asyncio._set_running_loop(None)
        raise AssertionError("livelock: the processes never come to rest")

    def next_timer(self) -> float | None:
        """When the next timer fires, after `pump`."""
        loop: Any = self
        return float(loop._scheduled[0]._when) if loop._scheduled else None


@dataclass(eq=False)
class Process:
    """One process: killed, it does nothing more; stopped, it does nothing until it is continued."""

    name: str
    tasks: dict["asyncio.Task[Any]", None] = field(default_factory=dict)
    dead: bool = False
    stopped: bool = False
    fault: Fault | None = None
    at_death: list[Callable[[], None]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<{self.name}{' dead' * self.dead}{' stopped' * self.stopped}>"


@dataclass(eq=False)
class Gate:
    """A process waits here to go on."""

    process: Process
    what: str
    opened: "asyncio.Future[None]"


class World:
    """Time, processes, and the gates they wait at. `smooth`: gates of running processes open by themselves."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.smooth = False
        self.gates: list[Gate] = []
        self.processes: list[Process] = []
        self.late: list[Callable[[], object]] = []
        self.violations: list[str] = []
        self.trace: list[str] = []

    @property
    def now(self) -> float:
        return self.loop.now

    def clock(self) -> "SimClock":
        return SimClock(self)

    def blame(self, text: str) -> None:
        """A promise was broken."""
        self.violations.append(f"t={self.now:.3f}: {text}")

    # --- processes ----------------------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Run as a part of a process. What it raises is a violation, unless the process was killed."""
        task = self.loop.create_task(work, name=f"{process.name}.{name}")
        process.tasks[task] = None

        def ended(task: "asyncio.Task[T]") -> None:
            process.tasks.pop(task, None)
            if not task.cancelled() and (error := task.exception()) is not None and not process.dead:
                self.blame(f"{task.get_name()} died of {error!r}")

        task.add_done_callback(ended)
        return task

    def kill(self, process: Process) -> None:
        """SIGKILL: what it had not sent by now is never sent."""
        process.dead = True
        for action in process.at_death:
            action()
        self.gates = [gate for gate in self.gates if gate.process is not process]
        for task in list(process.tasks):
            task.cancel()

    async def io(self, process: Process, what: str, effect: Callable[[], T], *, may_be_late: bool = False) -> T:
        """Ask an engine for something: gate, effect, gate; and the faults a test arms."""
        await self.gate(process, what)
        fault = process.fault
        if fault is not Fault.FULL:
            process.fault = None
        match fault:
            case Fault.LOST:
                raise Transient(f"{what}: lost", retry_in=0.2)
            case Fault.LATE if may_be_late:
                self.late.append(effect)
                raise Transient(f"{what}: no answer", retry_in=0.2)
            case Fault.CRASH_BEFORE:
                self.kill(process)
                raise asyncio.CancelledError
        result = effect()
        match fault:
            case Fault.UNANSWERED | Fault.LATE:
                raise Transient(f"{what}: no answer", retry_in=0.2)
            case Fault.CRASH_AFTER:
                self.kill(process)
                raise asyncio.CancelledError
        await self.gate(process, f"{what}.answer")
        return result

    async def gate(self, process: Process, what: str) -> None:
        """Wait to be let on."""
        if process.dead:
            raise asyncio.CancelledError
        if self.smooth and not process.stopped:
            return
        gate = Gate(process, what, self.loop.create_future())
        self.gates.append(gate)
        try:
            await gate.opened
        finally:
            with suppress(ValueError):
                self.gates.remove(gate)
        if process.dead:
            raise asyncio.CancelledError

    # --- driving ------------------------------------------------------------------------------------------------------

    def open_gate(self, choice: int) -> bool:
        """Let one process on by one step; False when all are waiting for time to pass."""
        self.loop.pump()
        waiting = [gate for gate in self.gates if not gate.process.stopped]
        if not waiting:
            return False
        gate = waiting[choice % len(waiting)]
        self.gates.remove(gate)
        self.trace.append(f"{self.now:.3f} {gate.process.name} {gate.what}")
        gate.opened.set_result(None)
        self.loop.pump()
        return True

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer. Unless the world is smooth, nothing gets past its gate meanwhile."""
        until = self.now + seconds
        while True:
            self.loop.pump()
            while self.smooth and self.open_gate(0):
                pass
            timer = self.loop.next_timer()
            if timer is None or timer > until:
                break
            self.loop.now = max(self.now, timer)
        self.loop.now = max(self.now, until)
        self.loop.pump()

    def run_for(self, seconds: float) -> None:
        """Everything that is not stopped works, and engines answer at once."""
        self.smooth = True
        try:
            self.advance(seconds)
            while self.open_gate(0):
                pass
        finally:
            self.smooth = False

    def do(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        """Carry a coroutine of a process out at once, as if the others stood still."""
        task = self.spawn(process, work, "do")
        for _ in range(_SPINS):
            self.loop.pump()
            if task.done():
                return task.result()
            mine = next((gate for gate in self.gates if gate.process is process), None)
            if mine is None:
                raise AssertionError(f"{process.name} waits for something else")
            self.gates.remove(mine)
            mine.opened.set_result(None)
        raise AssertionError(f"{process.name} never ends")

    def close(self) -> None:
        """End every process and the loop."""
        for process in self.processes:
            self.kill(process)
        for _ in range(100):
            self.loop.pump()
            if not any(process.tasks for process in self.processes):
                break
            for process in self.processes:
                for task in list(process.tasks):
                    task.cancel()
        self.loop.close()


class SimClock:
    """`shared.ports.clock.Clock` on the world's time. `off_s`: by how much its wall clock is wrong."""

    def __init__(self, world: World) -> None:
        self.off_s = 0.0
        self._world = world

    def elapsed(self) -> float:
        return self._world.now

    def unix_ms(self) -> int:
        return EPOCH_MS + round((self._world.now + self.off_s) * 1000)
