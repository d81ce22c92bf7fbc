"""The processes of one command: started, kept alive, ended in the order that the command says, and how all of it ended.

The first SIGINT, SIGTERM or SIGHUP asks for the end; a second SIGINT or SIGTERM cuts everything short.
"""

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from cli.children import Child, GivenUp, Keeper
from cli.watch import Watch

log = structlog.get_logger(__name__)

CURT_S: Final = 5.0
"""How long anybody may take to end where the run has failed: they may have nobody left to talk to."""


class End(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run; `message` is the sentence for people where it FAILED. `at_once`: nothing was drained."""

    end: End
    message: str = ""
    at_once: bool = False


class Family:
    """Children of this process. May be run once; when `run` returns, every one of them has ended.

    `over` is set when the end was decided; `watch` hears of deaths and of what Ctrl-C does.
    """

    def __init__(self, watch: Watch) -> None:
        self.over: Final = asyncio.Event()
        self._watch = watch
        self._ending: Ending | None = None
        self._asked = 0
        self._group: asyncio.TaskGroup | None = None
        self._work: asyncio.Task[None] | None = None
        self._keepers: list[Keeper] = []
        self._kept: dict[Keeper, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Family {', '.join(repr(keeper.child) for keeper in self._keepers)}>"

    async def run(self, work: Callable[[], Awaitable[None]]) -> Ending:
        """Do `work`, which starts children, awaits `over` and drains them; whom it does not drain is killed."""
        with self._signals():
            async with asyncio.TaskGroup() as group:
                self._work = group.create_task(self._run(work), name="run")
            for keeper in self._keepers:
                keeper.kill()
                if keeper.child.pid is not None:
                    await keeper.child.exited()
        return self._ending or Ending(End.INTERRUPTED)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as self._group:
            try:
                await work()
            finally:
                for keeper in self._keepers:
                    keeper.kill()

    async def start(self, child: Child, *, ended: Callable[[Child], Awaitable[Ending]] | None = None) -> bool:
        """Start it and keep it alive; False, and the end of all, where that cannot be; False, too, once the end was
        decided: then nobody is started any more.

        `ended` says what it means that it ended well by itself; without it such a child is started again.
        """
        assert self._group is not None, "start() outside of run()"
        if self.over.is_set():
            return False
        keeper = Keeper(child, self._told, lasting=ended is None)
        self._keepers.append(keeper)
        try:
            if not await keeper.start():
                return False
        except GivenUp as error:
            self.end(Ending(End.FAILED, str(error)))
            return False
        self._kept[keeper] = self._group.create_task(self._keep(keeper, ended), name=f"keep {child.name}")
        return True

    async def _keep(self, keeper: Keeper, ended: Callable[[Child], Awaitable[Ending]] | None) -> None:
        try:
            await keeper.keep()
        except GivenUp as error:
            self.end(Ending(End.FAILED, str(error)))
            return
        if not self.over.is_set() and ended is not None:
            self.end(await ended(keeper.child))

    def ready(self) -> None:
        """All children are at work: from now on none that lacks something ends the others."""
        for keeper in self._keepers:
            keeper.ready()

    def end(self, ending: Ending) -> None:
        """The first reason to end is the one that counts."""
        if self._ending is None:
            log.info("run.ends", end=ending.end, message=ending.message)
            self._ending = ending
            self.over.set()

    async def drain(self, *groups: Sequence[str]) -> None:
        """End the children by name, group after group: each group may need the next until it has ended."""
        assert self._ending is not None, "drain() before the end"
        most_s = CURT_S if self._ending.end is End.FAILED else math.inf
        for names in groups:
            keepers = [keeper for keeper in self._keepers if keeper.child.name in names]
            patience_s = max((keeper.child.patience_s for keeper in keepers), default=0.0)
            await self._end_all(keepers, min(patience_s, most_s))

    async def _end_all(self, keepers: Sequence[Keeper], patience_s: float) -> None:
        for keeper in keepers:
            keeper.stop()
        tasks = [self._kept[keeper] for keeper in keepers if keeper in self._kept]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience_s)
            for keeper in keepers:
                if self._kept.get(keeper) in late:
                    self._told(f"{keeper.child.name} did not end within {patience_s:g} s and is killed")
                    keeper.kill()
            await asyncio.wait(tasks)

    def _told(self, line: str) -> None:
        log.warning("child.died", line=line)
        self._watch.note(line)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
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
            if self._asked:  # a terminal that goes says so more than once, and nobody asks for haste by it
                return
        self._asked += 1
        log.info("run.interrupted", signal=signal.Signals(number).name, times=self._asked)
        if self._asked == 1:
            self._watch.note("stopping: what is under way is reported first; Ctrl-C again stops at once")
            self._watch.phase("stopping")
            self.end(Ending(End.INTERRUPTED))
        elif self._work is not None:
            self._watch.note("stopping at once")
            self._ending = Ending(End.INTERRUPTED, at_once=True)
            self._work.cancel()
