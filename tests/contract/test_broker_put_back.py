"""A stream of reports that comes back shorter, and grows beyond what was read before a reader looks."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.adapters.nats import NatsBroker
from shared.domain.errors import StreamReplaced, Transient
from shared.domain.ids import Partition
from shared.ports.broker import ReportReader
from tests.support.engines.nats_server import BrokerServer, keep_store, persist, put_back, read_all
from tests.support.engines.nats_server import server as server

P, Q = Partition(3), Partition(4)


async def publish(broker: NatsBroker, name: str, count: int, partition: Partition = P) -> None:
    for number in range(count):
        await persist(
            lambda number=number: broker.publish_report(  # type: ignore[misc]  # a default
                partition, "discovery", b"%s%d" % (name.encode(), number), f"{name}.{partition}.{number}"
            )
        )


async def refused(reader: ReportReader) -> None:
    """Read until the reader says that the stream is another one; nothing of it may be read before."""
    async with asyncio.timeout(30):
        while True:
            try:
                assert await reader.read(100, 0.2) == []
            except StreamReplaced:
                return
            except Transient:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def two(server: BrokerServer) -> AsyncIterator[tuple[NatsBroker, NatsBroker]]:
    """A producer, and an owner's broker that is slower to come back."""
    async with server.broker() as producer, server.broker(reconnect_s=0.5) as owner:
        yield producer, owner


@pytest.mark.parametrize("purged", [False, True])
def test_reader_refuses_stream_restored_shorter_and_regrown(server: BrokerServer, purged: bool) -> None:
    """Of 155 messages 40 were lost with the store, and 60 new ones stood at old places and at new ones."""

    async def run() -> None:
        async with two(server) as (producer, owner):
            await publish(producer, "old", 115)
            copy = keep_store(server)
            await publish(producer, "lost", 40)
            reader = await owner.read_reports(P, "discovery", 0, 0)
            read = await read_all(reader, 155)
            position, at_ns = read[-1].sequence, read[-1].at_ns
            assert await owner.continues(position, at_ns)
            if purged:
                assert await reader.purge(position)
                assert await owner.continues(position, at_ns)
            await put_back(server, copy)
            await publish(producer, "new", 60)
            await refused(reader)
            assert not await reader.purge(position)
            with pytest.raises(StreamReplaced):
                await owner.read_reports(P, "discovery", position, at_ns)
            assert not await persist(lambda: owner.continues(position, at_ns))
            fresh = await owner.read_reports(P, "discovery", 0, 0)
            names = {report.data for report in await read_all(fresh, 175)}
            assert {b"new%d" % number for number in range(60)} <= names

    asyncio.run(run())


def test_purge_never_reaches_a_replacing_stream(server: BrokerServer) -> None:
    """It would drop what was never read: the server comes back with another store while the request is on its way."""

    async def run() -> None:
        async with two(server) as (producer, owner):
            await publish(producer, "old", 5)
            copy = keep_store(server)
            await publish(producer, "lost", 10)
            reader = await owner.read_reports(P, "discovery", 0, 0)
            position = (await read_all(reader, 15))[-1].sequence
            assert server.embedded.pid is not None
            os.kill(server.embedded.pid, signal.SIGSTOP)
            # The request is on its way while the server that was compared is killed.
            purging = asyncio.ensure_future(reader.purge(position))
            await asyncio.sleep(0)
            server.kill()
            store = server.embedded.folder / "store"
            shutil.rmtree(store)
            copy.rename(store)
            await server.restart()
            await publish(producer, "new", 20)
            await asyncio.gather(purging, return_exceptions=True)
            await refused(reader)
            assert not await reader.purge(position)
            assert await producer.pending_reports() == 25

    asyncio.run(run())


def test_stream_never_restored_continues_after_any_purge(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for turn in range(4):
                await publish(broker, f"mine{turn}", 3)
                await publish(broker, f"theirs{turn}", 3, Q)
            reader = await broker.read_reports(P, "discovery", 0, 0)
            read = await read_all(reader, 12)
            for report in read:
                assert await broker.continues(report.sequence, report.at_ns)
            await broker.purge_reports(P, "discovery", read[5].sequence)
            await broker.purge_reports(Q, "discovery", read[8].sequence)
            for report in read:
                assert await broker.continues(report.sequence, report.at_ns)
            await broker.purge_reports(P, "discovery", read[-1].sequence)
            await broker.purge_reports(Q, "discovery", 1_000)
            assert await broker.continues(read[-1].sequence, read[-1].at_ns), "an empty stream"
            server.kill()
            await server.restart()
            assert await persist(lambda: broker.continues(read[-1].sequence, read[-1].at_ns))
            await publish(broker, "more", 2)
            assert [report.data for report in await read_all(reader, 2)] == [b"more0", b"more1"]

    asyncio.run(run())
