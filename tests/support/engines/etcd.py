"""A real etcd for a test: the bundled server in the test's own folder, alone or three of them, and clients of it."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import etcd3.etcdrpc as rpc
import grpc

from shared.adapters.etcd import EmbeddedEtcd, EtcdCoordinator, EtcdServerSettings, EtcdSettings
from shared.adapters.etcd.connection import EtcdConnection
from shared.adapters.etcd.server import SOCKET
from shared.adapters.local.clock import SystemClock
from shared.domain.errors import Transient
from shared.ports.coordinator import Coordinator, Leadership, Session, Snapshot, View
from shared.runtime.retry import until_answered

CLOCK = SystemClock()
ELECTION_MS = 100
"""Of a server alone: so short that leases of one second are granted."""

PATIENCE_S = 60.0
_LOOK_S: Final = 0.02

QUOTA_BYTES: Final = EtcdServerSettings().quota_bytes
QUICK = EtcdServerSettings(heartbeat_ms=10, election_ms=ELECTION_MS, start_s=30)


@asynccontextmanager
async def coordinator(*endpoints: str, patient: bool = True, **settings: Any) -> AsyncIterator[EtcdCoordinator]:
    """A client that is closed with the block; its settings are EtcdSettings fields. One that has no other member to ask
    waits for long unless told otherwise: a write is sent once, and a session asked for once."""
    patience = {"attempt_s": 10.0, "answer_s": 30.0} if patient and len(endpoints) == 1 else {}
    opened = EtcdCoordinator(EtcdSettings(endpoints, **{**patience, **settings}), CLOCK)
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def patient_session(coordinator: Coordinator, ttl_s: float) -> AsyncIterator[Session]:
    """A session for the block, asked for again until it is granted: three members may just be electing."""
    async with AsyncExitStack() as opened:
        yield await until_answered(lambda: opened.enter_async_context(coordinator.session(ttl_s)))


class EtcdServer:
    """One server. Killing and restarting it keeps socket and data."""

    def __init__(self, folder: Path, settings: EtcdServerSettings = QUICK) -> None:
        self.embedded = EmbeddedEtcd(folder, settings)
        self.endpoint = f"unix:{folder / SOCKET}"

    def kill(self) -> None:
        """SIGKILL."""
        self.embedded.kill()

    async def start(self) -> None:
        self.endpoint = await self.embedded.start()

    async def restart(self) -> None:
        await self.embedded.restart()

    async def replace(self) -> None:
        """Another etcd in the same place, which knows nothing."""
        await self.embedded.stop()
        shutil.rmtree(self.embedded.folder / "data")
        await self.embedded.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end: it holds its connections and says nothing."""
        assert self.embedded.pid is not None
        with stopped(self.embedded.pid):
            yield


@asynccontextmanager
async def etcd(folder: Path, settings: EtcdServerSettings = QUICK) -> AsyncIterator[EtcdServer]:
    """A server for the block."""
    server = EtcdServer(folder, settings)
    try:
        await server.start()
        yield server
    finally:
        await server.embedded.stop()


def peers(folder: Path, *, election_ms: int, quota_bytes: int = QUOTA_BYTES) -> list[EtcdServer]:
    """Three members, not started. They speak over Unix sockets too: each finds the others' by links in its folder."""
    names = [f"m{number}" for number in range(3)]
    everyone = ",".join(f"{name}=unix://{name}.sock:1" for name in names)
    members = []
    for name in names:
        home = folder / name
        home.mkdir(parents=True)
        for other in names:
            if other != name:
                (home / f"{other}.sock:1").symlink_to(folder / other / f"{other}.sock:1")
        arguments = (
            f"--name={name}",
            f"--listen-peer-urls=unix://{name}.sock:1",
            f"--initial-advertise-peer-urls=unix://{name}.sock:1",
            f"--initial-cluster={everyone}",
        )
        settings = EtcdServerSettings(
            heartbeat_ms=election_ms // 10,
            election_ms=election_ms,
            quota_bytes=quota_bytes,
            start_s=60,
            arguments=arguments,
        )
        members.append(EtcdServer(home, settings))
    return members


async def start_all(servers: Iterable[EtcdServer]) -> None:
    """Start them at once: one of several answers only when most of them are there."""
    async with asyncio.TaskGroup() as starting:
        for server in servers:
            starting.create_task(server.start())


@asynccontextmanager
async def cluster(folder: Path, *, election_ms: int) -> AsyncIterator[list[EtcdServer]]:
    """Three members, for the block."""
    members = peers(folder, election_ms=election_ms)
    try:
        await start_all(members)
        yield members
    finally:
        for member in members:
            member.kill()


async def leader_of(members: Sequence[EtcdServer]) -> EtcdServer:
    """The member that leads the others, as soon as one says so."""
    while True:
        for member in members:
            if member.embedded.pid is not None and await _leads(member):
                return member
        await asyncio.sleep(_LOOK_S)


async def _leads(member: EtcdServer) -> bool:
    async with connected(member.endpoint) as connection:
        try:
            status = await rpc.MaintenanceStub(connection.member().channel).Status(rpc.StatusRequest(), timeout=1)
        except grpc.aio.AioRpcError:
            return False
    return bool(status.leader == status.header.member_id)


@asynccontextmanager
async def connected(endpoint: str, **settings: Any) -> AsyncIterator[EtcdConnection]:
    """The adapter's own connection, to ask what the port does not."""
    connection = EtcdConnection(EtcdSettings((endpoint,), **settings))
    try:
        yield connection
    finally:
        await connection.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run it on a loop of its own, for at most PATIENCE_S."""

    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(whole())


async def settled(view: View, complete: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that is complete."""
    snapshot = view.snapshot
    while not complete(snapshot):
        snapshot = await view.changed(snapshot, None)
    return snapshot


class Writer:
    """Writes a new key at a time, until told to stop; whose answers got lost it does not count."""

    def __init__(self, leader: Leadership) -> None:
        self.leader = leader
        self.acknowledged: dict[str, int] = {}
        self.unknown: list[str] = []
        self.stop = False

    async def write(self) -> None:
        number = 0
        while not self.stop:
            number += 1
            key = f"/t/k/{number:06}"
            try:
                self.acknowledged[key] = await self.leader.write({key: b""}, expect={key: 0})
            except Transient:
                self.unknown.append(key)
                await asyncio.sleep(0.01)

    async def reach(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        goal = len(self.acknowledged) + count
        while len(self.acknowledged) < goal:  # noqa: ASYNC110  a plain counter
            await asyncio.sleep(0.005)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP a process, and SIGCONT at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # The signal returns before the last thread has stopped.
        while any(_state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
