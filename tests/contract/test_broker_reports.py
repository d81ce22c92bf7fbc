"""The Broker port's promises about reports: stored once, read in order, without gap or repeat, whatever dies."""

import asyncio
import random
import shutil
import time
from collections.abc import Sequence
from functools import partial

import pytest

from shared.adapters.nats import NatsBroker
from shared.adapters.nats import reader as reader_module
from shared.domain.errors import Refused, Transient
from shared.domain.ids import Partition
from shared.ports.broker import Delivered
from tests.support.engines.nats_server import BrokerServer, persist, read_all
from tests.support.engines.nats_server import server as server

P = Partition(3)


def numbers(reports: list[Delivered]) -> list[int]:
    return [int(report.data) for report in reports]


async def publish(broker: NatsBroker, first: int, last: int) -> None:
    for number in range(first, last):
        await broker.publish_report(P, "outcome", b"%d" % number, f"n{number}")


def test_a_repeat_with_the_same_id_is_stored_once(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            first = await broker.publish_report(P, "outcome", b"1", "same")
            assert await broker.publish_report(P, "outcome", b"1", "same") == first
            server.kill()
            await server.restart()
            assert await persist(lambda: broker.publish_report(P, "outcome", b"1", "same")) == first
            assert await broker.pending_reports() == 1

    asyncio.run(run())


def test_a_full_subject_refuses_the_producer_and_only_that_subject(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(reports_per_subject=3) as broker:
            await publish(broker, 0, 3)
            with pytest.raises(Refused):
                await broker.publish_report(P, "outcome", b"3", "n3")
            await broker.publish_report(P, "discovery", b"", "d")
            await broker.publish_report(Partition(4), "outcome", b"", "o")
            await broker.purge_reports(P, "outcome", 1)
            await broker.publish_report(P, "outcome", b"3", "n3")
            reader = await broker.read_reports(P, "outcome", 1)
            assert numbers(await read_all(reader, 3)) == [1, 2, 3]
            await reader.close()

    asyncio.run(run())


def test_a_full_stream_refuses_the_producer(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(reports_bytes=10_000) as broker:
            with pytest.raises(Refused):
                await asyncio.gather(*(broker.publish_report(P, "outcome", b"x" * 1_000, f"{n}") for n in range(20)))

    asyncio.run(run())


def test_a_read_returns_what_is_there_at_once_and_waits_for_the_first_only(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            assert await reader.read(100, 0.0) == []
            await publish(broker, 0, 3)
            assert numbers(await read_all(reader, 3)) == [0, 1, 2]
            reading = asyncio.create_task(reader.read(100, 3600.0))
            await asyncio.sleep(0)
            await publish(broker, 3, 4)
            assert numbers(list(await reading)) == [3]
            assert await reader.read(100, 0.05) == []
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_backlog_comes_in_whole_batches(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the broker pauses within what it said it has, short of its answering no more."""
    monkeypatch.setattr(reader_module, "_REST_S", 30.0)

    async def run() -> None:
        async with server.broker() as broker:
            await publish(broker, 0, 1_000)
            reader = await broker.read_reports(P, "outcome", 0)
            sizes = [len(await reader.read(400, 20.0)) for _ in range(3)]
            assert sizes == [400, 400, 200]
            await reader.close()

    asyncio.run(run())


def test_a_batch_is_bounded_in_bytes_and_nothing_is_skipped_at_the_bound(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(read_bytes=1) as broker:
            for number in range(12):
                await broker.publish_report(P, "outcome", b"%d".ljust(300_000) % number, f"{number}")
            reader = await broker.read_reports(P, "outcome", 0)
            batches: list[Sequence[Delivered]] = []
            while sum(len(batch) for batch in batches) < 12:
                batches.append(await reader.read(100, 20.0))
            assert all(len(batch) <= 4 for batch in batches)
            assert [int(report.data) for batch in batches for report in batch] == list(range(12))
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_commands_are_read_and_purged_with_outcomes_in_order(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for number in range(0, 6, 2):
                await broker.publish_report(P, "outcome", b"%d" % number, f"o{number}")
                assert await broker.last_report(P, "outcome") == number + 1
                assert await broker.last_command(P) == number
                await broker.publish_command(P, b"%d" % (number + 1), f"c{number}")
                assert await broker.last_report(P, "outcome") == number + 2
                assert await broker.last_command(P) == number + 2
            await broker.publish_command(Partition(30), b"-1", "elsewhere")
            assert await broker.last_report(P, "discovery") == 0
            reader = await broker.read_reports(P, "outcome", 1)
            reports = await read_all(reader, 5)
            assert numbers(reports) == [1, 2, 3, 4, 5]
            assert [report.subject == "reports.3.command" for report in reports] == [True, False, True, False, True]
            assert await reader.purge(4)
            assert await broker.pending_reports() == 3
            await reader.close()
            await broker.purge_reports(P, "outcome", 6)
            assert await broker.pending_reports() == 1

    asyncio.run(run())


def test_a_reader_sees_its_subject_alone_and_starts_behind_its_position(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for number in range(10):
                await broker.publish_report(P, "outcome", b"%d" % number, f"o{number}")
                await broker.publish_report(P, "discovery", b"-1", f"d{number}")
                await broker.publish_report(Partition(30), "outcome", b"-1", f"p{number}")
            reader = await broker.read_reports(P, "outcome", 13)
            reports = await read_all(reader, 5)
            assert numbers(reports) == [5, 6, 7, 8, 9]
            assert [report.sequence for report in reports] == [16, 19, 22, 25, 28]
            assert [report.at_ns for report in reports] == [await broker.report_at(r.sequence) for r in reports]
            await reader.close()

    asyncio.run(run())


def test_purging_behind_a_reader_takes_nothing_from_it(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            seen: list[Delivered] = []
            for start in range(0, 300, 30):
                await publish(broker, start, start + 30)
                await broker.publish_report(P, "discovery", b"", f"d{start}")
                seen += await read_all(reader, 20, max_count=20)
                await broker.purge_reports(P, "outcome", seen[-1].sequence)
            seen += await read_all(reader, 100)
            assert numbers(seen) == list(range(300))
            assert await broker.pending_reports() == 10 + 100
            await reader.close()

    asyncio.run(run())


def test_states_and_positions_are_exact(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            start = time.time_ns()
            assert await broker.last_report(P, "outcome") == 0
            assert (await broker.reports_state()).last_sequence == 0
            await publish(broker, 0, 3)
            await broker.publish_report(P, "discovery", b"", "d")
            state = await broker.reports_state()
            assert state.last_sequence == 4
            assert state.created_ns % 1_000 != 0 or (await broker.report_at(1) or 0) % 1_000 != 0
            assert abs(state.created_ns - start) < 60 * 10**9
            assert await broker.last_report(P, "outcome") == 3
            await broker.purge_reports(P, "outcome", 2)
            assert await broker.last_report(P, "outcome") == 3
            assert await broker.report_at(2) is None
            assert await broker.report_at(5) is None
            assert await broker.report_at(0) is None
            await broker.purge_reports(P, "outcome", 3)
            assert await broker.last_report(P, "outcome") == 0
            assert await broker.reports_state() == state

    asyncio.run(run())


@pytest.mark.long
def test_reading_over_kills_of_the_broker_has_no_gap_and_no_repeat(server: BrokerServer) -> None:
    """Also: every report that was acknowledged is there, and those published again with their id are there once.

    Only acknowledged reports are purged: NATS forgets the id of a purged one when it is killed.
    """
    total = 3_000
    chance = random.Random(20)
    acknowledged = 0

    async def run() -> None:
        async with server.broker() as producer, server.broker() as consumer:
            reader = await consumer.read_reports(P, "outcome", 0)
            done = asyncio.Event()

            async def produce() -> None:
                nonlocal acknowledged
                for number in range(total):
                    await persist(partial(producer.publish_report, P, "outcome", b"%d" % number, f"n{number}"))
                    acknowledged = number + 1
                done.set()

            async def kill() -> None:
                kills = 0
                while kills < 3 or (kills < 12 and not done.is_set()):
                    await asyncio.sleep(chance.uniform(0.05, 0.4))
                    server.kill()
                    await server.restart()
                    kills += 1

            async def consume() -> list[Delivered]:
                seen: list[Delivered] = []
                while len(seen) < total or not done.is_set():
                    seen += await persist(lambda: reader.read(chance.choice([1, 7, 500]), 0.5))
                    known = min(len(seen), acknowledged)
                    if known and chance.random() < 0.2:
                        await persist(partial(consumer.purge_reports, P, "outcome", seen[known - 1].sequence))
                return seen

            async with asyncio.TaskGroup() as group:
                group.create_task(produce())
                group.create_task(kill())
                consuming = group.create_task(consume())
            assert numbers(consuming.result()) == list(range(total))
            await persist(lambda: reader.read(1, 0.05))
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 110))


def test_reader_idle_beyond_cursor_lifetime_resumes(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(reader_idle_s=0.2) as broker, server.broker() as other:
            await publish(other, 0, 5)
            reader = await broker.read_reports(P, "outcome", 0)
            assert numbers(await read_all(reader, 2)) == [0, 1]
            await asyncio.sleep(1.5)
            await publish(other, 5, 10)
            assert numbers(await read_all(reader, 8)) == [2, 3, 4, 5, 6, 7, 8, 9]
            await reader.close()

    asyncio.run(run())


@pytest.mark.long
def test_reader_keeps_its_cursor_while_the_broker_sends_heartbeats(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat does not end the wait for a message, so every reader created its cursor again after the silence."""
    monkeypatch.setattr("shared.adapters.nats.reader._HEARTBEAT_S", 1)
    monkeypatch.setattr("shared.adapters.nats.reader._SILENCE_S", 3.0)

    async def run() -> None:
        async with server.broker(reader_idle_s=1.0) as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            before = repr(reader)
            assert await reader.read(1, 5.0) == []
            assert repr(reader) == before
            await publish(broker, 0, 1)
            assert numbers(await read_all(reader, 1)) == [0]
            await reader.close()

    asyncio.run(run())


def test_a_read_that_was_cancelled_loses_nothing(server: BrokerServer) -> None:
    chance = random.Random(4)

    async def run() -> None:
        async with server.broker() as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            seen: list[Delivered] = []
            cancelled = 0
            for number in range(200):
                reading = asyncio.create_task(reader.read(10, 20.0))
                publishing = asyncio.create_task(publish(broker, number, number + 1))
                for _ in range(chance.randrange(20)):
                    await asyncio.sleep(0)
                reading.cancel()
                await publishing
                try:
                    seen += await reading
                except asyncio.CancelledError:
                    cancelled += 1
            assert cancelled
            seen += await read_all(reader, 200 - len(seen))
            assert numbers(seen) == list(range(200))
            await reader.close()

    asyncio.run(run())


def test_while_the_broker_is_away_a_read_is_transient_and_does_not_hang(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            reading = asyncio.create_task(reader.read(10, 3600.0))
            await asyncio.sleep(0.05)
            server.kill()
            with pytest.raises(Transient):
                await reading
            with pytest.raises(Transient):
                await reader.read(10, 3600.0)
            await server.restart()
            await persist(lambda: publish(broker, 0, 1))
            assert numbers(await read_all(reader, 1)) == [0]
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("length", [0, 3, 20])
def test_replaced_broker_is_noticed_whatever_its_stream_holds(server: BrokerServer, length: int) -> None:
    """A reader must not wait at its old position in a shorter stream, nor skip the start of a longer one."""

    async def run() -> None:
        async with server.broker() as broker:
            await publish(broker, 0, 10)
            reader = await broker.read_reports(P, "outcome", 0)
            await read_all(reader, 10)
            before = await broker.reports_state()
            server.kill()
            shutil.rmtree(server.embedded.folder / "store")
            await server.restart()
            await persist(lambda: broker.declare([]))
            await publish(broker, 0, length)
            for _ in range(3):
                with pytest.raises(Transient, match="not the one"):
                    await reader.read(10, 0.5)
            after = await broker.reports_state()
            assert after.created_ns > before.created_ns
            if length < 10:
                with pytest.raises(Transient, match="not the one"):
                    await broker.read_reports(P, "outcome", 10)
            await reader.close()
            fresh = await broker.read_reports(P, "outcome", 0)
            assert numbers(await read_all(fresh, length)) == list(range(length))
            await fresh.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_stopped_broker_is_transient_in_time_and_repeats_nothing(
    server: BrokerServer,
) -> None:
    async def run() -> None:
        async with server.broker(answer_s=2.0) as broker:
            await persist(lambda: publish(broker, 0, 1))
            with server.stopped(), pytest.raises(Transient, match="no answer"):
                await broker.publish_report(P, "outcome", b"1", "n1")
            await persist(lambda: broker.publish_report(P, "outcome", b"1", "n1"))
            reader = await persist(lambda: broker.read_reports(P, "outcome", 0))
            assert numbers(await read_all(reader, 2)) == [0, 1]
            assert await persist(broker.pending_reports) == 2
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_how_full_the_storage_is_is_that_of_the_fullest_stream_with_a_bound(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            assert await broker.storage() is None, "nothing of it has a bound"
        async with server.broker(reports_bytes=1 << 20, visits_bytes=1 << 24) as broker:
            empty = await broker.storage()
            assert empty is not None
            await broker.publish_report(P, "outcome", bytes(1 << 19), "n")
            level = await broker.storage()
            assert level is not None
            assert (level.capacity, empty.used) == (1 << 20, 0)
            assert 1 << 19 < level.used < 1 << 20
            with pytest.raises(Refused):
                await broker.publish_report(P, "outcome", bytes(1 << 19), "m")
            await broker.purge_reports(P, "outcome", await broker.last_report(P, "outcome"))
            assert (await broker.storage() or level).used == 0

    asyncio.run(run())
