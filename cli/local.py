"""One run of a crawl on this machine: the broker, one master and some workers, kept alive, watched and ended in order.

Ended means: the workers stop pulling and report what they hold, then the master applies what was reported, then the
broker stops. Whatever is cut short is resumable; a run never has to end well for the next one to go on.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from cli.children import Child, Engine, RoleProcess
from cli.family import End, Ending, Family
from cli.folder import CrawlFolder
from cli.holding import ROOM_BYTES
from cli.logs import begin_log, bound_log
from cli.mending import Mending
from cli.watch import Watch
from shared.adapters.nats import EmbeddedServer, Endpoint, NatsBroker, StreamSettings
from shared.domain.crawl import CrawlSpec
from shared.domain.errors import Transient, Unusable
from shared.domain.frontier import CrawlState
from shared.supervise import Tasks
from shared.wire.messages import Malformed, decode_progress
from shared.wire.subjects import PROGRESS

log = structlog.get_logger(__name__)

_TICK_S: Final = 0.5
_LOOK_S: Final = 1.0
_LOOKS: Final = 5
_SILENT_LOOKS: Final = 30
"""Every so many looks at the disk, also at what changes more slowly."""


class LocalRun:
    """Runs the crawl in `folder`, whose lock the caller holds, until it is finished, told to stop, or cannot go on.

    `finished` asks the database whether the crawl is. `retry_id`, `unblock`: see MasterSettings. May be run once.
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
        retry_id: str = "",
        unblock: bool = False,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._lock = lock
        self._watch = watch
        self._finished = finished
        self._retry_id = retry_id
        self._family = Family(watch)
        self._server = EmbeddedServer(folder.nats, inherit=(lock,))
        self._broker = Engine("NATS", self._server)
        self._workers = [f"worker-{number}" for number in range(1, workers + 1)]
        self._names = ["master", *self._workers]
        self._heard = False
        self._at_first = {"ORB_ALONE": "true"} | ({"ORB_UNBLOCK": "true"} if unblock else {})

    async def run(self) -> Ending:
        """The whole run; every process it started has ended when it returns."""
        return await self._family.run(self._run)

    async def _run(self) -> None:
        if not await self._family.start(self._broker, ended=self._ended):
            return
        endpoint = self._broker.endpoint
        assert endpoint is not None
        async with Tasks() as beside:
            beside.start("follow progress", self._follow(endpoint))
            beside.start("look after logs and disk", self._look_after())
            beside.start("tick", self._tick())
            await self._start_roles(endpoint)
            await self._family.over.wait()
            # Workers first, then the master, then the broker: each may still need the next.
            await self._family.drain(self._workers, ["master"], [self._broker.name])

    # --- starting -----------------------------------------------------------------------------------------------------

    async def _start_roles(self, endpoint: Endpoint) -> None:
        shared = {
            "ORB_DIR": os.fspath(self._folder.path.resolve()),
            "ORB_NATS_URL": endpoint.url,
            "ORB_NATS_TOKEN": endpoint.token,
            "ORB_POOL": self._spec.pool,
        }
        if self._folder.authorities.is_file():
            shared["SSL_CERT_FILE"] = os.fspath(self._folder.authorities.resolve())
        for name in self._names:
            path = self._folder.logs / f"{name}.log"
            begin_log(path)
            if name == "master":
                settings = {**shared, "ORB_RETRY_ID": self._retry_id}
                child = RoleProcess(name, ["_master"], path, settings, at_first=self._at_first, inherit=(self._lock,))
            else:
                child = RoleProcess(name, ["_worker"], path, {**shared, "ORB_ID": name}, inherit=(self._lock,))
            if not await self._family.start(child, ended=self._ended):
                return

    async def _ended(self, child: Child) -> Ending:
        if await asyncio.to_thread(self._finished):
            return Ending(End.FINISHED)
        return Ending(End.FAILED, f"{child.name} ended although the crawl is not finished.")

    # --- running ------------------------------------------------------------------------------------------------------

    async def _follow(self, endpoint: Endpoint) -> None:
        """Show what the master tells. It is told to whoever listens, so the end is also looked for in the database."""
        connect = partial(
            NatsBroker.connect, [endpoint.url], token=endpoint.token, name="orb", settings=StreamSettings()
        )
        try:
            broker = await _patiently(connect)
        except Unusable as error:
            self._family.end(Ending(End.FAILED, str(error)))
            return
        try:
            async with broker.listen(PROGRESS) as told:
                async for data in told:
                    try:
                        progress = decode_progress(data)
                    except Malformed as error:
                        log.warning("progress.malformed", reason=str(error))
                        continue
                    first, self._heard = not self._heard, True
                    self._watch.progress(progress)
                    # The first look loads the database's libraries, while the crawl goes on by itself.
                    if first or progress.state == CrawlState.FINISHED:
                        await self._look_for_end()
        finally:
            await broker.close()

    async def _look_after(self) -> None:
        mending = Mending(self._server, self._broker, self._watch)
        for look in itertools.count(1):
            await asyncio.sleep(_LOOK_S)
            free = self._folder.free_bytes()
            mending.look(free)
            if free < ROOM_BYTES and not self._family.over.is_set():
                self._watch.note("the disk is full: stopping")
                self._family.end(
                    Ending(
                        End.FAILED,
                        f"the disk of {self._folder.path} is full; make room there, and the crawl goes on.",
                    )
                )
            if look == _SILENT_LOOKS and not self._heard:
                self._watch.note(f"the crawl waits to begin; {self._folder.logs / 'master.log'} says for what")
            if look % _LOOKS == 0:
                for path in (*(self._folder.logs / f"{name}.log" for name in self._names), self._server.output):
                    bound_log(path)
                await self._look_for_end()

    async def _look_for_end(self) -> None:
        if not self._family.over.is_set() and await asyncio.to_thread(self._finished):
            self._family.end(Ending(End.FINISHED))

    async def _tick(self) -> None:
        while True:
            self._watch.tick()
            await asyncio.sleep(_TICK_S)


async def _patiently(connect: Callable[[], Awaitable[NatsBroker]]) -> NatsBroker:
    while True:
        try:
            return await connect()
        except Transient as error:
            log.info("broker.away", reason=str(error))
            await asyncio.sleep(error.retry_in)
