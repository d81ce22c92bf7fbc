"""The Broker port's promises that concern the connection, declarations, robots and what is not stored."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.adapters.nats import NatsBroker, NatsLogin, StreamSettings
from shared.adapters.nats import requests as talk
from shared.domain.errors import OwnershipLost, Permanent, Refused, TooLarge, Transient, Unusable
from shared.domain.ids import Partition
from shared.wire import subjects
from tests.support.engines.nats_server import POOL, BrokerServer, persist
from tests.support.engines.nats_server import server as server

P = Partition(7)


# --- connecting -------------------------------------------------------------------------------------------------------


def test_connecting_to_nobody_is_transient_within_its_bound(unused_port: int) -> None:
    settings = StreamSettings(connect_s=0.3, reconnect_s=0.05)

    async def run() -> None:
        with pytest.raises(Transient, match=f"no broker at .*{unused_port}"):
            await NatsBroker.connect([f"nats://127.0.0.1:{unused_port}"], name="t", settings=settings)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_wrong_token_is_unusable_and_not_retried_until_the_bound(server: BrokerServer) -> None:
    async def run() -> None:
        with pytest.raises(Unusable, match="check nats_user and nats_password, or nats_token"):
            await NatsBroker.connect(
                [server.endpoint.url], login=NatsLogin(token="wrong"), name="t", settings=StreamSettings(connect_s=3600)
            )

    asyncio.run(asyncio.wait_for(run(), 30))


def test_call_while_broker_is_away_fails_at_once_and_stores_nothing(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(answer_s=3600.0) as broker:
            first = await broker.publish_report(P, "outcome", b"1", "a")
            server.kill()
            for number in range(50):
                with pytest.raises(Transient):
                    await broker.publish_report(P, "outcome", b"x", f"while-away-{number}")
                await asyncio.sleep(0)
            await server.restart()
            assert await persist(lambda: broker.publish_report(P, "outcome", b"2", "b")) == first + 1

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_question_under_way_when_the_broker_dies_fails_instead_of_hanging(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker, server.broker() as owner:
            asked = asyncio.Event()

            async def never(_question: bytes) -> bytes | None:
                asked.set()
                await asyncio.Event().wait()
                return None

            async with owner.answer(P, never):
                asking = asyncio.create_task(broker.ask(P, b"?", 3600.0))
                await asked.wait()
                server.kill()
                with pytest.raises(Transient):
                    await asking
            await server.restart()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_cancelling_a_call_leaves_the_connection_usable(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for _ in range(20):
                publishing = asyncio.create_task(broker.publish_report(P, "outcome", b"x" * 100_000, "same"))
                await asyncio.sleep(0)
                publishing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await publishing
            assert await broker.publish_report(P, "outcome", b"x", "other") == 2

    asyncio.run(asyncio.wait_for(run(), 60))


def test_every_call_after_close_is_transient(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            await broker.close()
            with pytest.raises(Transient):
                await broker.publish_report(P, "outcome", b"x", "a")
            with pytest.raises(Transient):
                await broker.pull_visits(POOL, 1, 0.1)
            with pytest.raises(Transient):
                await broker.reports_state()

    asyncio.run(run())


def test_closing_while_the_broker_is_away_does_not_hang(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            await broker.pull_visits(POOL, 1, 0.0)
            server.kill()
            with pytest.raises(Transient):
                await broker.publish_report(P, "outcome", b"x", "a")
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_connection_closed_for_good_is_unusable_and_says_why(server: BrokerServer) -> None:
    """No message of ours can do that, so the test sends one behind the adapter's back."""

    async def run() -> None:
        async with server.broker() as broker:
            reader = await broker.read_reports(P, "outcome", 0)
            reading = asyncio.create_task(reader.read(1, 3600.0))
            client = broker._connection._client
            client._max_payload = 1 << 30
            await client.publish("x", b"x" * (3 << 20))
            with pytest.raises((Unusable, Transient)):
                await reading
            with pytest.raises(Unusable, match="maximum payload"):
                await reader.read(1, 3600.0)
            with pytest.raises(Unusable, match="maximum payload"):
                await broker.publish_report(P, "outcome", b"x", "a")

    asyncio.run(asyncio.wait_for(run(), 60))


# --- declarations -----------------------------------------------------------------------------------------------------


def test_declaring_again_and_with_other_bounds_keeps_every_message(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for number in range(5):
                await broker.publish_report(P, "outcome", b"r", f"{number}")
            await broker.publish_shard(POOL, P, 1, 0, b"s")
            before = await broker.reports_state()
            await broker.declare([POOL, "other"])
        async with server.broker(reports_per_subject=7, ack_wait_s=5.0, max_ack_pending=99) as broker:
            assert await broker.reports_state() == before
            assert await broker.pending_reports() == 5
            assert len(await broker.pull_visits(POOL, 1, 20.0)) == 1
            for number in (5, 6):
                await broker.publish_report(P, "outcome", b"r", f"{number}")
            with pytest.raises(Refused):
                await broker.publish_report(P, "outcome", b"r", "8")

    asyncio.run(run())


def test_declaring_again_on_server_with_little_space_succeeds(tmp_path: Path) -> None:
    """The 256 MiB of the bucket and the 512 of items fit once: what a second master declares is there, and needs no
    room of its own."""
    server = BrokerServer(tmp_path / "broker", max_store=900 << 20)

    async def run() -> None:
        async with server.broker() as broker:
            await broker.publish_report(P, "outcome", b"r", "0")
        async with server.broker(declare=False, reports_per_subject=7) as broker:
            await broker.declare([POOL])
            assert await broker.pending_reports() == 1

    try:
        asyncio.run(run())
    finally:
        asyncio.run(server.embedded.stop())


def test_bound_below_stored_amount_is_refused(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for number in range(5):
                await broker.publish_report(P, "outcome", b"r" * 1000, f"{number}")
        async with server.broker(declare=False, reports_per_subject=4) as broker:
            with pytest.raises(Permanent, match=r"reports\.7\.outcome holds 5 messages"):
                await broker.declare([POOL])
            assert await broker.pending_reports() == 5
        async with server.broker(declare=False, reports_bytes=3000) as broker:
            with pytest.raises(Permanent, match="bytes"):
                await broker.declare([POOL])
            assert await broker.pending_reports() == 5

    asyncio.run(run())


def test_stream_that_cannot_be_redeclared_is_permanent_and_named(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(declare=False, replicas=3) as broker:
            with pytest.raises(Permanent, match="REPORTS"):
                await broker.declare([POOL])

    asyncio.run(run())


def test_nothing_declared_yet_is_transient(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(declare=False) as broker:
            with pytest.raises(Transient):
                await broker.publish_report(P, "outcome", b"x", "a")
            with pytest.raises(Transient):
                await broker.publish_shard(POOL, P, 1, 0, b"x")
            with pytest.raises(Transient):
                await broker.pull_visits(POOL, 1, 5.0)
            with pytest.raises(Transient):
                await broker.read_reports(P, "outcome", 0)

    asyncio.run(run())


# --- questions to owners ----------------------------------------------------------------------------------------------


def test_a_question_nobody_can_answer_fails_at_once(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            with pytest.raises(Transient, match="no subscriber"):
                await broker.ask(P, b"?", 3600.0)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_questions_are_answered_side_by_side_and_only_to_their_partition(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as asker, server.broker() as owner:
            gate = asyncio.Event()

            async def reply(question: bytes) -> bytes | None:
                if question == b"slow":
                    await gate.wait()
                return b"answer to " + question

            async with owner.answer(P, reply):
                slow = asyncio.create_task(asker.ask(P, b"slow", 20.0))
                assert await asker.ask(P, b"fast", 20.0) == b"answer to fast"
                gate.set()
                assert await slow == b"answer to slow"
                with pytest.raises(Transient):
                    await asker.ask(Partition(8), b"?", 20.0)
            with pytest.raises(Transient):
                await asker.ask(P, b"?", 0.1)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_unanswered_question_times_out_and_next_is_answered(
    server: BrokerServer,
) -> None:
    async def run() -> None:
        async with server.broker() as broker:

            async def reply(question: bytes) -> bytes | None:
                if question == b"bad":
                    raise ValueError("a bad question")
                return None if question == b"silence" else b"ok"

            async with broker.answer(P, reply):
                for question in (b"bad", b"silence"):
                    with pytest.raises(Transient, match="no answer"):
                        await broker.ask(P, question, 0.1)
                assert await broker.ask(P, b"good", 20.0) == b"ok"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_ends_an_owner_comes_out_as_it_is_and_ends_open_questions(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            asked, cancelled = asyncio.Event(), asyncio.Event()

            async def reply(_question: bytes) -> bytes | None:
                asked.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
                return None

            async def own() -> None:
                async with broker.answer(P, reply):
                    await asked.wait()
                    raise OwnershipLost

            owning = asyncio.create_task(own())
            while not asked.is_set():
                with pytest.raises(Transient):
                    await broker.ask(P, b"?", 0.2)
            with pytest.raises(OwnershipLost):
                await owning
            assert cancelled.is_set()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_owner_answers_again_after_the_broker_came_back(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:

            async def reply(question: bytes) -> bytes | None:
                return question

            async with broker.answer(P, reply):
                server.kill()
                await server.restart()
                assert await persist(lambda: broker.ask(P, b"echo", 5.0)) == b"echo"

    asyncio.run(asyncio.wait_for(run(), 60))


# --- robots and status ------------------------------------------------------------------------------------------------


def test_robots_are_kept_by_any_key_and_replaced(server: BrokerServer) -> None:
    keys = ["https://example.org:443", "http://[::1]:80", "a b.*.>", "..", "x" * 300]

    async def run() -> None:
        async with server.broker() as broker:
            assert await broker.get_robots(keys[0]) is None
            for key in keys:
                await broker.put_robots(key, key.encode())
            await broker.put_robots(keys[0], b"new")
            assert await broker.get_robots(keys[0]) == b"new"
            assert [await broker.get_robots(key) for key in keys[1:]] == [key.encode() for key in keys[1:]]
            with pytest.raises(Permanent):
                await broker.put_robots("big", b"x" * (2 << 20))

    asyncio.run(run())


def test_a_full_robots_bucket_forgets_the_oldest(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(robots_bytes=100_000) as broker:
            for number in range(20):
                await broker.put_robots(f"https://h{number}", b"x" * 10_000)
            assert await broker.get_robots("https://h0") is None
            assert await broker.get_robots("https://h19") == b"x" * 10_000

    asyncio.run(run())


def test_a_slow_listener_loses_the_oldest_and_holds_nobody_up(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as teller, server.broker() as listener:
            async with listener.listen(subjects.PROGRESS) as heard, listener.listen("status.mark") as mark:
                for number in range(5_000):
                    await teller.tell(subjects.PROGRESS, b"%d" % number)
                await teller.tell("status.mark", b"")
                await anext(mark)
                await teller.tell(subjects.PROGRESS, b"last")
                numbers = [text async for text in _until(heard, b"last")]
            assert 0 < len(numbers) <= 1_025
            assert numbers[0] != b"0"
            assert numbers == sorted(numbers, key=int)

    asyncio.run(asyncio.wait_for(run(), 60))


async def _until(heard: AsyncIterator[bytes], end: bytes) -> AsyncIterator[bytes]:
    async for text in heard:
        if text == end:
            return
        yield text


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_largest_message_fits_and_larger_is_refused_on_open_connection(
    server: BrokerServer,
) -> None:
    """With its header a message of exactly the limit is too large; the server would close the connection for it."""

    async def run() -> None:
        async with server.broker(read_bytes=1) as broker:
            limit = 1 << 20
            for excess in itertools.count(-200):
                try:
                    sequence = await broker.publish_report(P, "outcome", b"x" * (limit + excess), f"{excess:08d}")
                except TooLarge:
                    break
            assert -100 < excess <= 0
            with pytest.raises(TooLarge):
                await broker.publish_shard(POOL, P, 1, 0, b"x" * (limit + 1))
            assert await broker.publish_shard(POOL, P, 1, 0, b"x" * (limit // 2))
            reader = await broker.read_reports(P, "outcome", sequence - 1)
            assert [len(report.data) for report in await reader.read(10, 20.0)] == [limit + excess - 1]
            await reader.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port on which nobody listens, and that nobody else is given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_question_beyond_open_limit_is_refused_and_may_be_repeated(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "_OPEN_QUESTIONS", 2)

    async def run() -> None:
        taken, answered = asyncio.Queue[bytes](), asyncio.Event()

        async def reply(question: bytes) -> bytes:
            taken.put_nowait(question)
            await answered.wait()
            return question

        async with server.broker() as owner, server.broker(declare=False) as asker, owner.answer(P, reply):
            open_ones = [asyncio.create_task(asker.ask(P, b"%d" % number, 30.0)) for number in range(2)]
            assert {await taken.get(), await taken.get()} == {b"0", b"1"}
            with pytest.raises(Transient):
                await asker.ask(P, b"2", 0.5)
            assert taken.empty(), "it was not taken up"
            answered.set()
            assert await asyncio.gather(*open_ones) == [b"0", b"1"]
            assert await asker.ask(P, b"2", 30.0) == b"2"

    asyncio.run(run())
