"""A cluster on this machine: starts etcd, NATS, masters and workers, keeps them alive, and ends them kind by kind.

Masters and workers are `orb master` and `orb worker`, with the same flags as in any other cluster. At the end the
workers report their finished pages, the masters apply the reports and hand over, and then NATS and etcd stop. If the
end is cut short, the next start still works.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from api.members.membership import leader_in, members_in
from cli.local.addresses import Address
from cli.local.cluster_folder import ClusterFolder
from cli.local.folder_lock import ROOM_BYTES
from cli.local.fork_server import ForkServer
from cli.local.logs import begin_log, bound_log
from cli.local.nats_restart import NatsRestart
from cli.local.process_group import ProcessGroup, RunEnd, RunOutcome
from cli.local.supervisor import Engine, RoleProcess
from cli.terminal.progress import Watch
from shared.adapters.etcd import EmbeddedEtcd, EtcdCoordinator, EtcdSettings
from shared.adapters.local.clock import SystemClock
from shared.adapters.nats import EmbeddedServer, Endpoint, NatsUser, ServerSettings
from shared.domain.errors import Transient
from shared.ports.coordinator import Coordinator
from shared.runtime.retry import until_answered
from shared.runtime.supervise import Tasks
from shared.wire.keys import Keys

CLUSTER: Final = "orb"
POOL: Final = "default"
ETCD: Final = "etcd"
BROKER: Final = "NATS"
ELSEWHERE: Final = frozenset(
    f"ORB_{name}"
    for name in (
        "ETCD_USER",
        "ETCD_PASSWORD",
        "ETCD_CA",
        "ETCD_CERT",
        "ETCD_KEY",
        "NATS_TOKEN",
        "NATS_CA",
        "NATS_CERT",
        "NATS_KEY",
        "NATS_REPLICAS",
        "TLS_CERT",
        "TLS_KEY",
        "TLS_CLIENT_CA",
        "TLS_CA",
        "DATABASE",
        "CONFIG",
        "POOL",
        "POOLS",
    )
)
"""Environment variables that are not passed to masters and workers, because they describe another cluster."""

_PROBE_S: Final = 0.1
_ANSWER_S: Final = 5.0
_WAITING_S: Final = 10.0
_LOOK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The members and addresses of a cluster that LocalCluster starts.

    - `masters`: the addresses of the masters' APIs, by name.
    - `workers`: the addresses of the workers' metrics, by name.
    - `database`: the path or URL of the database.
    - `nats_port`: the port of NATS, -1 for any free port.
    - `allow_net`: private networks to which workers may send requests. The spec of a crawl must also allow them.
    """

    masters: Mapping[str, Address]
    workers: Mapping[str, Address]
    database: str
    nats_port: int
    allow_net: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Engines:
    """The addresses of etcd and NATS in a running cluster."""

    etcd: str
    nats: Endpoint


class LocalCluster:
    """Runs the cluster of `plan` in `folder` until a stop or a failure. One object runs once.

    - `lock`: the descriptor of the folder's lock, which the caller holds and all processes inherit.
    - `watch` shows messages to the user.
    - `ready` is called once, when all masters are ready, all workers are registered and a leader is elected.
    - `forks`: the fork server that starts masters and workers. None: exec starts them.
    """

    def __init__(
        self,
        folder: ClusterFolder,
        plan: ClusterPlan,
        *,
        lock: int,
        watch: Watch,
        ready: Callable[[Engines], None],
        forks: ForkServer | None = None,
    ) -> None:
        self._forks = forks
        self._folder = folder
        self._plan = plan
        self._lock = lock
        self._watch = watch
        self._ready = ready
        self._family = ProcessGroup(watch)
        self._etcd = EmbeddedEtcd(folder.etcd, inherit=(lock,))
        self._broker = EmbeddedServer(
            folder.nats,
            ServerSettings(port=plan.nats_port, workers=[NatsUser(name, POOL, name) for name in plan.workers]),
            inherit=(lock,),
        )
        self._broker_child = Engine(BROKER, self._broker)

    async def run(self) -> RunOutcome:
        """Run the cluster and return how it ended. When this returns, all processes that it started have ended."""
        return await self._family.run(self._run)

    async def _run(self) -> None:
        if (engines := await self._start_engines()) is not None:
            await self._bury_the_dead()
            async with Tasks() as beside:
                beside.start("look after logs and disk", self._look_after())
                if await self._start_members(engines):
                    beside.start("await readiness", self._await_readiness(engines))
                    await self._family.over.wait()
        # Each group may need the next one until it has ended.
        await self._family.drain(list(self._plan.workers), list(self._plan.masters), [BROKER], [ETCD])

    # --- starting -----------------------------------------------------------------------------------------------------

    async def _start_engines(self) -> Engines | None:
        etcd, broker = Engine(ETCD, self._etcd), self._broker_child
        started = await asyncio.gather(self._family.start(etcd), self._family.start(broker))
        if not all(started):
            return None
        assert etcd.endpoint is not None
        assert broker.endpoint is not None
        return Engines(etcd.endpoint, broker.endpoint)

    async def _bury_the_dead(self) -> None:
        """End the etcd sessions of the members of earlier starts.

        These members are dead, because this command holds the folder's lock. If etcd does not answer, wait for it until
        the run is over.
        """
        async with Tasks() as tasks:
            burying = tasks.start("end sessions", until_answered(self._etcd.end_sessions))
            over = tasks.start("over", self._family.over.wait())
            await asyncio.wait({burying, over}, return_when=asyncio.FIRST_COMPLETED)

    async def _start_members(self, engines: Engines) -> bool:
        shared = ["--cluster", CLUSTER, "--etcd", engines.etcd, "--nats", engines.nats.url]
        settings = {**engines.nats.master.environment, "ORB_DATABASE": self._plan.database}
        for name, place in self._plan.masters.items():
            flags = ["--id", name, *shared, "--archive", os.fspath(self._folder.archive)]
            flags += ["--nats-store", os.fspath(self._folder.nats)]
            flags += ["--http", str(place), "--address", str(place.reached_at)]
            if not await self._start(name, ["master", *flags], settings):
                return False
        for name, place in self._plan.workers.items():
            flags = ["--id", name, *shared, "--dir", os.fspath(self._folder.path), "--metrics", str(place)]
            flags += [part for network in self._plan.allow_net for part in ("--allow-net", network)]
            if not await self._start(name, ["worker", *flags], engines.nats.logins[name].environment):
                return False
        return True

    async def _start(self, name: str, arguments: Sequence[str], secrets: Mapping[str, str]) -> bool:
        path = self._log_of(name)
        begin_log(path)
        return await self._family.start(
            RoleProcess(name, arguments, path, secrets, without=ELSEWHERE, inherit=(self._lock,), forks=self._forks)
        )

    async def _await_readiness(self, engines: Engines) -> None:
        coordinator = EtcdCoordinator(EtcdSettings((engines.etcd,)), SystemClock())
        try:
            async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False) as client:
                noted_at = time.monotonic()
                while missing := await _missing(coordinator, client, self._plan.masters, self._plan.workers):
                    if time.monotonic() - noted_at > _WAITING_S:
                        noted_at = time.monotonic()
                        self._watch.note(f"still waiting for {', '.join(missing)}")
                    await asyncio.sleep(_PROBE_S)
        finally:
            await coordinator.close()
        if not self._family.over.is_set():
            self._family.ready()
            self._ready(engines)

    # --- running ------------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        logs = [self._log_of(name) for name in (*self._plan.masters, *self._plan.workers)]
        mending = NatsRestart(self._broker, self._broker_child, self._watch)
        while True:
            await asyncio.sleep(_LOOK_S)
            for path in (*logs, self._etcd.output, self._broker.output):
                bound_log(path)
            free = self._folder.free_bytes()
            mending.look(free)
            if free < ROOM_BYTES:
                full = f"the disk of {self._folder.path} is full; make room there, and the same command goes on."
                self._family.end(RunOutcome(RunEnd.FAILED, full))

    def _log_of(self, name: str) -> Path:
        return self._folder.logs / f"{name}.log"


async def _missing(
    coordinator: Coordinator, client: httpx.AsyncClient, masters: Mapping[str, Address], workers: Collection[str]
) -> list[str]:
    """Return in words what the cluster still lacks: etcd, members, a leader, or masters that are not ready.

    An empty list means that the cluster is ready.
    """
    keys = Keys(CLUSTER)
    try:
        snapshot = await coordinator.list(keys.root)
    except Transient:
        return ["etcd"]
    members = members_in(snapshot, keys)
    missing = [name for name in masters if name not in members.masters]
    missing += [name for name in workers if name not in members.workers]
    if leader_in(snapshot, keys) is None:
        missing.append("a leader")
    for name, place in masters.items():
        if name in members.masters and (reason := await _why_not_ready(client, place)) is not None:
            missing.append(f"{name} ({reason})")
    return missing


async def _why_not_ready(client: httpx.AsyncClient, place: Address) -> str | None:
    """Return why the master at `place` is not ready, from its /readyz. Return None if it is ready."""
    try:
        answer = await client.get(f"http://{place}/readyz")
    except httpx.TransportError as error:
        return f"its API does not answer: {type(error).__name__}"
    if answer.status_code == httpx.codes.OK:
        return None
    return f"it is not ready: {answer.text[:200]}"
