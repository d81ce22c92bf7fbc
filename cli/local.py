"""One run of a crawl on this machine: the broker, one master and some workers, kept alive, watched and ended in order.

Ended means: the workers stop pulling and report what they hold, then the master applies what was reported, then the
broker stops. Whatever is cut short is resumable; a run never has to end well for the next one to go on.
"""

import asyncio
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

import structlog

from cli.children import Broker, GivenUp, Keeper, RoleProcess
from cli.folder import ROOM_BYTES, CrawlFolder
from cli.logs import begin_log, bound_log
from cli.watch import Watch
from shared.adapters.nats import EmbeddedServer, Endpoint, NatsBroker, StreamSettings
from shared.domain.crawl import CrawlSpec
from shared.domain.errors import Transient, Unusable
from shared.domain.frontier import CrawlState
from shared.wire.messages import Malformed, decode_progress
from shared.wire.subjects import PROGRESS

log = structlog.get_logger(__name__)

_TICK_S: Final = 0.5
_LOOK_S: Final = 1.0
_LOOKS: Final = 5
"""Every so many looks at the disk, also at what changes more slowly."""

_PATIENCE_S: Final = 25.0
"""How long workers and master may take to end in good order: their own grace and some."""

_CURT_S: Final = 5.0
"""The same where the run has failed: they may have nobody left to talk to."""


class End(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run; `message` is the sentence for people where it FAILED."""

    end: End
    message: str = ""


class LocalRun:
    """Runs the crawl in `folder`, whose lock the caller holds, until it is finished, told to stop, or cannot go on.

    `finished` asks the database whether the crawl is. May be run once.
    """

    def __init__(
        self,
        folder: CrawlFolder,
        spec: CrawlSpec,
        *,
        workers: int,
        lock: int,
        watch: Watch,
        finished: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._lock = lock
        self._watch = watch
        self._finished = finished
        self._ending: Ending | None = None
        self._asked = 0
        self._over = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        server = EmbeddedServer(folder.nats, inherit=(lock,))
        self._broker = Broker(server)
        self._names = ["master", *(f"worker-{number}" for number in range(1, workers + 1))]
        self._keepers: list[Keeper] = []
        self._kept: dict[Keeper, asyncio.Task[None]] = {}

    async def run(self) -> Ending:
        """The whole run; every process it started has ended when it returns."""
        with self._signals():
            async with asyncio.TaskGroup() as group:
                self._work = group.create_task(self._run(), name="run")
            for keeper in self._keepers:
                keeper.kill()
                if keeper.child.pid is not None:
                    await keeper.child.exited()
        return self._ending or Ending(End.INTERRUPTED)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            try:
                endpoint = await self._start_broker(group)
                if endpoint is not None:
                    beside = [
                        group.create_task(self._follow(endpoint), name="follow progress"),
                        group.create_task(self._look_after(), name="look after logs and disk"),
                        group.create_task(self._tick(), name="tick"),
                    ]
                    await self._start_roles(group, endpoint)
                    await self._over.wait()
                    await self._drain()
                    for task in beside:
                        task.cancel()
            except BaseException:
                for keeper in self._keepers:
                    keeper.kill()
                raise

    # --- starting -----------------------------------------------------------------------------------------------------

    async def _start_broker(self, group: asyncio.TaskGroup) -> Endpoint | None:
        keeper = self._keeper(self._broker)
        try:
            await keeper.start()
        except GivenUp as error:
            self._end(Ending(End.FAILED, str(error)))
            return None
        self._kept[keeper] = group.create_task(self._keep(keeper), name="keep broker")
        return self._broker.endpoint

    async def _start_roles(self, group: asyncio.TaskGroup, endpoint: Endpoint) -> None:
        shared = {
            "ORB_DIR": os.fspath(self._folder.path.resolve()),
            "ORB_NATS_URL": endpoint.url,
            "ORB_NATS_TOKEN": endpoint.token,
            "ORB_POOL": self._spec.pool,
        }
        for name in self._names:
            path = self._folder.logs / f"{name}.log"
            begin_log(path)
            if name == "master":
                child = RoleProcess(
                    name, "_master", path, shared, at_first={"ORB_ALONE": "true"}, inherit=(self._lock,)
                )
            else:
                child = RoleProcess(name, "_worker", path, {**shared, "ORB_ID": name}, inherit=(self._lock,))
            keeper = self._keeper(child)
            try:
                await keeper.start()
            except GivenUp as error:
                self._end(Ending(End.FAILED, str(error)))
                return
            self._kept[keeper] = group.create_task(self._keep(keeper), name=f"keep {name}")

    def _keeper(self, child: Broker | RoleProcess) -> Keeper:
        keeper = Keeper(child, self._told)
        self._keepers.append(keeper)
        return keeper

    async def _keep(self, keeper: Keeper) -> None:
        try:
            await keeper.keep()
        except GivenUp as error:
            self._end(Ending(End.FAILED, str(error)))
            return
        if self._over.is_set():
            return
        if await asyncio.to_thread(self._finished):
            self._end(Ending(End.FINISHED))
        else:
            self._end(Ending(End.FAILED, f"{keeper.child.name} ended although the crawl is not finished."))

    def _told(self, line: str) -> None:
        log.warning("child.died", line=line)
        self._watch.note(line)

    # --- running ------------------------------------------------------------------------------------------------------

    async def _follow(self, endpoint: Endpoint) -> None:
        """Show what the master tells. It is told to whoever listens, so the end is also looked for in the database."""
        connect = partial(
            NatsBroker.connect, [endpoint.url], token=endpoint.token, name="orb", settings=StreamSettings()
        )
        try:
            broker = await _patiently(connect)
        except Unusable as error:
            self._end(Ending(End.FAILED, str(error)))
            return
        try:
            async with broker.listen(PROGRESS) as told:
                async for data in told:
                    try:
                        progress = decode_progress(data)
                    except Malformed as error:
                        log.warning("progress.malformed", reason=str(error))
                        continue
                    self._watch.progress(progress)
                    if progress.state == CrawlState.FINISHED:
                        await self._look_for_end()
        finally:
            await broker.close()

    async def _look_after(self) -> None:
        for look in itertools.count(1):
            await asyncio.sleep(_LOOK_S)
            if self._folder.free_bytes() < ROOM_BYTES:
                self._end(
                    Ending(
                        End.FAILED,
                        f"the disk of {self._folder.path} is full; make room there, and the crawl goes on.",
                    )
                )
            if look % _LOOKS == 0:
                for name in self._names:
                    bound_log(self._folder.logs / f"{name}.log")
                await self._look_for_end()

    async def _look_for_end(self) -> None:
        if not self._over.is_set() and await asyncio.to_thread(self._finished):
            self._end(Ending(End.FINISHED))

    async def _tick(self) -> None:
        while True:
            self._watch.tick()
            await asyncio.sleep(_TICK_S)

    # --- ending -------------------------------------------------------------------------------------------------------

    def _end(self, ending: Ending) -> None:
        """The first reason to end is the one that counts."""
        if self._ending is None:
            log.info("run.ends", end=ending.end, message=ending.message)
            self._ending = ending
            self._over.set()

    async def _drain(self) -> None:
        """Workers first, then the master, then the broker: each may still need the next."""
        assert self._ending is not None
        patience_s = _CURT_S if self._ending.end is End.FAILED else _PATIENCE_S
        broker, *roles = self._keepers
        masters, workers = roles[:1], roles[1:]
        for keepers in (workers, masters, [broker]):
            await self._end_all(keepers, patience_s)

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
        self._asked += 1
        if number == signal.SIGHUP:
            self._watch.hang_up()
        log.info("run.interrupted", signal=signal.Signals(number).name, times=self._asked)
        if self._asked == 1:
            self._watch.note("stopping: what is under way is reported first; Ctrl-C again stops at once")
            self._watch.phase("stopping")
            self._end(Ending(End.INTERRUPTED))
        elif self._work is not None:
            self._watch.note("stopping at once")
            self._ending = Ending(End.INTERRUPTED)
            self._work.cancel()


async def _patiently(connect: Callable[[], Awaitable[NatsBroker]]) -> NatsBroker:
    while True:
        try:
            return await connect()
        except Transient as error:
            log.info("broker.away", reason=str(error))
            await asyncio.sleep(error.retry_in)
