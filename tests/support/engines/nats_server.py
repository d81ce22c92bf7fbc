"""A real broker for a test: the bundled server in the test's own folder, and clients that are closed with the test."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shared.adapters.nats import EmbeddedServer, NatsBroker, NatsLogin, NatsUser, ServerSettings, StreamSettings
from shared.domain.errors import Transient
from shared.domain.ids import Partition
from shared.ports.broker import Delivered, ReportKind, ReportReader
from tests.support.engines.ports import free_ports

T = TypeVar("T")

POOL = "default"


class BrokerServer:
    """A server of its own, and brokers connected to it. Killing and restarting it keeps port, token and store."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """`settings` are ServerSettings fields."""
        ours = {"port": free_ports(1)[0], "max_payload": 1 << 20, "start_s": 30, "workers": [NatsUser("worker", POOL)]}
        self.embedded = EmbeddedServer(folder, ServerSettings(**{**ours, **settings}))
        self.endpoint = asyncio.run(self.embedded.start())

    def login(self, role: str) -> NatsLogin:
        """The login of masters, or of all workers: `role` is `master` or `worker`."""
        return self.endpoint.logins[role]

    @asynccontextmanager
    async def broker(self, *, declare: bool = True, **settings: Any) -> AsyncIterator[NatsBroker]:
        """A connected broker; its settings are StreamSettings fields, impatient unless told otherwise."""
        patience = {"reconnect_s": 0.05, "answer_s": 10.0}
        chosen = StreamSettings(**{**patience, **settings})
        broker = await NatsBroker.connect([self.endpoint.url], login=self.endpoint.master, name="test", settings=chosen)
        try:
            if declare:
                await persist(lambda: broker.declare([POOL]))
            yield broker
        finally:
            await broker.close()

    def kill(self) -> None:
        """SIGKILL."""
        self.embedded.kill()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end: it holds its connections and says nothing."""
        pid = self.embedded.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            # The signal returns before the last thread has stopped.
            while any(_state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
                time.sleep(0.001)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def restart(self) -> None:
        """The same server again, on the same port and store."""
        await self.embedded.restart()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    """A broker for this test alone."""
    running = BrokerServer(tmp_path / "broker")
    yield running
    asyncio.run(running.embedded.stop())


def keep_store(server: BrokerServer) -> Path:
    """A copy of the store as it is now, as a kill would leave it."""
    store = server.embedded.folder / "store"
    copy = store.with_name("before")
    with server.stopped():
        shutil.copytree(store, copy)
    return copy


async def put_back(server: BrokerServer, copy: Path) -> None:
    """Kill the server, and start it with the store of before."""
    server.kill()
    shutil.rmtree(server.embedded.folder / "store")
    copy.rename(server.embedded.folder / "store")
    await server.restart()


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


async def stored(broker: NatsBroker, partition: Partition, kind: ReportKind) -> list[bytes]:
    """Every report of the kind that is stored by now; a broker that pauses on the way has not come to its end."""
    last = await persist(lambda: broker.last_report(partition, kind))
    found: list[bytes] = []
    reader = await broker.read_reports(partition, kind, 0)
    try:
        async with asyncio.timeout(30):
            read = 0
            while read < last:
                for report in await reader.read(1_000, 10.0):
                    found.append(report.data)
                    read = report.sequence
    finally:
        await reader.close()
    return found


async def read_all(reader: ReportReader, count: int, max_count: int = 1_000) -> list[Delivered]:
    """Exactly so many, patiently: a read returns a part where the rest takes a moment."""
    seen: list[Delivered] = []
    async with asyncio.timeout(60):
        while len(seen) < count:
            seen += await persist(partial(reader.read, min(max_count, count - len(seen)), 1.0))
    return seen


async def persist(attempt: Callable[[], Awaitable[T]], patience_s: float = 30.0) -> T:
    """Do it until it is not Transient any more, as every caller of the port must."""
    async with asyncio.timeout(patience_s):
        while True:
            try:
                return await attempt()
            except Transient as error:
                await asyncio.sleep(min(error.retry_in, 0.05))
