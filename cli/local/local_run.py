"""One run of a crawl on this machine: starts NATS, a master and workers, keeps them alive, and ends them kind by kind.

At the end the workers take no more URL shards and report their finished pages, the master applies the reports, and then
NATS stops. If the end is cut short, the next run still resumes the crawl.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from cli.local.crawl_folder import CrawlFolder
from cli.local.folder_lock import ROOM_BYTES
from cli.local.fork_server import ForkServer
from cli.local.logs import begin_log, bound_log
from cli.local.nats_restart import NatsRestart
from cli.local.process_group import ProcessGroup, RunEnd, RunOutcome
from cli.local.supervisor import Child, Engine, RoleProcess
from cli.terminal.progress import Watch
from shared.adapters.nats import EmbeddedServer, Endpoint, NatsBroker, NatsUser, ServerSettings, StreamSettings
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.errors import Transient, Unusable
from shared.domain.frontier.states import CrawlState
from shared.runtime.supervise import Tasks
from shared.wire.messages import Malformed, decode_progress
from shared.wire.subjects import PROGRESS

log = structlog.get_logger(__name__)

_TICK_S: Final = 0.5
_LOOK_S: Final = 1.0
_LOOKS: Final = 5
_SILENT_LOOKS: Final = 30
"""The user gets a note if the master has sent no progress message during this many checks from the start of the run.

There is one check every `_LOOK_S` seconds."""


class LocalRun:
    """Runs the crawl in `folder` until it is finished, is stopped, or fails. One object runs once.

    - `lock`: the descriptor of the folder's lock, which the caller holds and all processes inherit.
    - `watch` shows progress and messages to the user.
    - `finished` returns True if the crawl is finished according to the database. It is called in a thread.
    - `retry_id`: the id of a request to retry all failed URLs. A restarted master does not repeat it. "": no retry.
    - `unblock`: True to end the back-off of all hosts at the start.
    - `renewed`: True if the previous contents of the folder have just been deleted.
    - `refresh_ms`: end when no page is left that was due at this time (Unix ms). 0: no refresh.
    - `forks`: the fork server that starts master and workers. None: exec starts them.
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
        renewed: bool = False,
        refresh_ms: int = 0,
        forks: ForkServer | None = None,
    ) -> None:
        self._forks = forks
        self._folder = folder
        self._spec = spec
        self._lock = lock
        self._watch = watch
        self._finished = finished
        self._retry_id = retry_id
        self._renewed = renewed
        self._refresh_ms = refresh_ms
        self._family = ProcessGroup(watch)
        self._workers = [f"worker-{number}" for number in range(1, workers + 1)]
        users = [NatsUser(name, spec.pool, name) for name in self._workers]
        self._server = EmbeddedServer(folder.nats, ServerSettings(workers=users), inherit=(lock,))
        self._broker = Engine("NATS", self._server)
        self._names = ["master", *self._workers]
        self._answered = False
        self._at_first = {"ORB_ALONE": "true"} | ({"ORB_UNBLOCK": "true"} if unblock else {})

    async def run(self) -> RunOutcome:
        """Run the crawl and return how the run ended. When this returns, all processes that it started have ended."""
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
            "ORB_POOL": self._spec.pool,
        }
        if self._folder.authorities.is_file():
            shared["SSL_CERT_FILE"] = os.fspath(self._folder.authorities.resolve())
        for name in self._names:
            path = self._folder.logs / f"{name}.log"
            begin_log(path)
            role = partial(RoleProcess, without={"ORB_NATS_TOKEN"}, inherit=(self._lock,), forks=self._forks)
            if name == "master":
                settings = {
                    **shared,
                    **endpoint.master.environment,
                    "ORB_RETRY_ID": self._retry_id,
                    "ORB_RENEWED": str(self._renewed).lower(),
                    "ORB_REFRESH_MS": str(self._refresh_ms),
                }
                child = role(name, ["_master"], path, settings, at_first=self._at_first)
            else:
                settings = {**shared, **endpoint.logins[name].environment, "ORB_ID": name}
                child = role(name, ["_worker"], path, settings)
            if not await self._family.start(child, ended=self._ended):
                return

    async def _ended(self, child: Child) -> RunOutcome:
        if await asyncio.to_thread(self._finished):
            return RunOutcome(RunEnd.FINISHED)
        return RunOutcome(RunEnd.FAILED, f"{child.name} ended although the crawl is not finished.")

    # --- running ------------------------------------------------------------------------------------------------------

    async def _follow(self, endpoint: Endpoint) -> None:
        """Show the progress that the master publishes, and end the run when the crawl is finished."""
        connect = partial(
            NatsBroker.connect, [endpoint.url], login=endpoint.master, name="orb", settings=StreamSettings()
        )
        try:
            broker = await _patiently(connect)
        except Unusable as error:
            self._family.end(RunOutcome(RunEnd.FAILED, str(error)))
            return
        try:
            async with broker.listen(PROGRESS) as updates:
                async for data in updates:
                    try:
                        progress = decode_progress(data)
                    except Malformed as error:
                        log.warning("progress_update.rejected", error=str(error))
                        continue
                    first, self._answered = not self._answered, True
                    self._watch.progress(progress)
                    # The first check loads the database's libraries, while the crawl runs.
                    if first or progress.state == CrawlState.FINISHED:
                        await self._look_for_end()
        finally:
            await broker.close()

    async def _look_after(self) -> None:
        mending = NatsRestart(self._server, self._broker, self._watch)
        for look in itertools.count(1):
            await asyncio.sleep(_LOOK_S)
            free = self._folder.free_bytes()
            mending.look(free)
            if free < ROOM_BYTES and not self._family.over.is_set():
                self._watch.note("the disk is full: stopping")
                self._family.end(
                    RunOutcome(
                        RunEnd.FAILED,
                        f"the disk of {self._folder.path} is full; make room there, and the crawl goes on.",
                    )
                )
            if look == _SILENT_LOOKS and not self._answered:
                self._watch.note(f"the crawl has not begun yet; {self._folder.logs / 'master.log'} has the reason")
            if look % _LOOKS == 0:
                for path in (*(self._folder.logs / f"{name}.log" for name in self._names), self._server.output):
                    bound_log(path)
                # The master's last progress message may be lost.
                await self._look_for_end()

    async def _look_for_end(self) -> None:
        if not self._family.over.is_set() and await asyncio.to_thread(self._finished):
            self._family.end(RunOutcome(RunEnd.FINISHED))

    async def _tick(self) -> None:
        while True:
            self._watch.tick()
            await asyncio.sleep(_TICK_S)


async def _patiently(connect: Callable[[], Awaitable[NatsBroker]]) -> NatsBroker:
    while True:
        try:
            return await connect()
        except Transient as error:
            log.info("broker_connection.delayed", error=str(error))
            await asyncio.sleep(error.retry_in)
