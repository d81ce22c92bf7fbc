"""The child processes of a command: starts them, keeps them alive, and ends them one group after the other.

At the first SIGINT, SIGTERM or SIGHUP, each child gets time to complete its work, and the run ends. A second SIGINT or
SIGTERM kills all children at once.
"""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import structlog
from msgspec import Struct

from cli.local.supervisor import Child, RestartLimitReached, Supervisor
from cli.terminal.progress import Watch

log = structlog.get_logger(__name__)

CURT_S: Final = 5.0
"""How many seconds a child gets to complete its work after the run has failed. The limit is short, because another
process that the child needs may have ended."""


class RunEnd(StrEnum):
    """How a run ended: the crawl finished, a signal stopped the run, or the run failed."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class RunOutcome(Struct, frozen=True):
    """How a run ended.

    - `message`: the reason, as a sentence for users, if `end` is FAILED. Otherwise "".
    - `at_once`: True if the processes were killed instead of drained.
    """

    end: RunEnd
    message: str = ""
    at_once: bool = False


class ProcessGroup:
    """The child processes of a command during one run. One object runs once. After `run`, all children have ended.

    The event `over` is set when the run must end. `watch` shows the user which children died and what Ctrl-C does.
    """

    def __init__(self, watch: Watch) -> None:
        self.over: Final = asyncio.Event()
        self._watch = watch
        self._ending: RunOutcome | None = None
        self._asked = 0
        self._group: asyncio.TaskGroup | None = None
        self._work: asyncio.Task[None] | None = None
        self._keepers: list[Supervisor] = []
        self._kept: dict[Supervisor, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<ProcessGroup {', '.join(repr(keeper.child) for keeper in self._keepers)}>"

    async def run(self, work: Callable[[], Awaitable[None]]) -> RunOutcome:
        """Await `work`, then kill the children that are left, and return how the run ended.

        `work` starts children, waits for `over`, and drains the children. SIGINT, SIGTERM and SIGHUP end the run. But
        SIGINT and SIGHUP stay ignored if this process was started so.
        """
        with self._signals():
            async with asyncio.TaskGroup() as group:
                self._work = group.create_task(self._run(work), name="run")
            for keeper in self._keepers:
                keeper.kill()
                if keeper.child.pid is not None:
                    await keeper.child.exited()
        return self._ending or RunOutcome(RunEnd.INTERRUPTED)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as self._group:
            try:
                await work()
            finally:
                for keeper in self._keepers:
                    keeper.kill()

    async def start(self, child: Child, *, ended: Callable[[Child], Awaitable[RunOutcome]] | None = None) -> bool:
        """Start a child and keep it alive. Return True if it has started.

        Return False if the run is over, or if the child cannot be started, which ends the run.

        `ended` says what happens if the child exits by itself with status 0:

        - If `ended` is a function: it is called with the child. The run ends, and its outcome is the result of the
          function.
        - If `ended` is None: the child is restarted.
        """
        assert self._group is not None, "start() outside of run()"
        if self.over.is_set():
            return False
        keeper = Supervisor(child, self._notify, lasting=ended is None)
        self._keepers.append(keeper)
        try:
            if not await keeper.start():
                return False
        except RestartLimitReached as error:
            self.end(RunOutcome(RunEnd.FAILED, str(error)))
            return False
        self._kept[keeper] = self._group.create_task(self._keep(keeper, ended), name=f"keep {child.name}")
        return True

    async def _keep(self, keeper: Supervisor, ended: Callable[[Child], Awaitable[RunOutcome]] | None) -> None:
        try:
            await keeper.keep()
        except RestartLimitReached as error:
            self.end(RunOutcome(RunEnd.FAILED, str(error)))
            return
        if not self.over.is_set() and ended is not None:
            self.end(await ended(keeper.child))

    def ready(self) -> None:
        """Record that the start is over and all children work.

        Before this call, a child that ends with exit code 4 (its environment is unusable) ends the run. After this
        call, such a child is restarted.
        """
        for keeper in self._keepers:
            keeper.ready()

    def end(self, ending: RunOutcome) -> None:
        """Request the end of the run with the outcome `ending`. Only the first request has an effect."""
        if self._ending is None:
            log.info("run.ended", end=ending.end, message=ending.message)
            self._ending = ending
            self.over.set()

    async def drain(self, *groups: Sequence[str]) -> None:
        """End the children with these names, one group after the other. The children of a group end at the same time.

        A child must be in an earlier group than the children that it needs. A child that does not end within its time
        limit is killed.
        """
        assert self._ending is not None, "drain() before the end"
        max_s = CURT_S if self._ending.end is RunEnd.FAILED else math.inf
        for names in groups:
            keepers = [keeper for keeper in self._keepers if keeper.child.name in names]
            patience_s = max((keeper.child.patience_s for keeper in keepers), default=0.0)
            await self._end_all(keepers, min(patience_s, max_s))

    async def _end_all(self, keepers: Sequence[Supervisor], patience_s: float) -> None:
        for keeper in keepers:
            keeper.stop()
        tasks = [self._kept[keeper] for keeper in keepers if keeper in self._kept]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience_s)
            for keeper in keepers:
                if self._kept.get(keeper) in late:
                    self._notify(f"{keeper.child.name} did not end within {patience_s:g} s and is killed")
                    keeper.kill()
            await asyncio.wait(tasks)

    def _notify(self, line: str) -> None:
        log.warning("child.exited", message=line)
        self._watch.note(line)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        # nohup ignores SIGHUP, and shells ignore SIGINT for background commands of scripts: these stay ignored.
        at_will = (number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN)
        numbers = (signal.SIGTERM, *at_will)
        for number in numbers:
            loop.add_signal_handler(number, self._interrupted, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _interrupted(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._watch.hang_up()
            if self._asked:  # a closing terminal sends several SIGHUP, and none asks to hurry
                return
        self._asked += 1
        log.info("run.interrupted", signal=signal.Signals(number).name, times=self._asked)
        if self._asked == 1:
            self._watch.note("stopping: work in progress is reported first; press Ctrl-C again to stop at once")
            self._watch.phase("stopping")
            self.end(RunOutcome(RunEnd.INTERRUPTED))
        elif self._work is not None:
            self._watch.note("stopping at once")
            self._ending = RunOutcome(RunEnd.INTERRUPTED, at_once=True)
            self._work.cancel()
