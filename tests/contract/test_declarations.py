"""Streams and consumers while a cluster is upgraded: what a later release has declared, an earlier one leaves alone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from blake3 import blake3

from shared.adapters.nats import streams
from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.events import events_stream
from shared.adapters.nats.jetstream import SECOND_NS, demand
from shared.adapters.nats.settings import StreamSettings
from shared.domain.ids import Partition
from shared.wire.events import EVENTS
from shared.wire.subjects import REPORTS, visits_stream
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

POOL = "default"
Declared = tuple[int, int, int, set[str]]

OF = {1: "63f682f374130ca5", 2: "ab4cfc6347128398"}
"""What each declaration declares where nobody says otherwise, in a digest."""


@contextmanager
def release(number: int) -> Iterator[None]:
    """What is declared in the block is declared by the release with this declaration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "DECLARATION", number)
        yield


async def declare(server: BrokerServer, by: int, per_subject: int, ack_wait_s: float, events: int) -> Declared:
    """Declare all, as a master does that starts; what holds then: the three bounds, and who has declared each."""
    with release(by):
        async with server.broker(
            declare=False, reports_per_subject=per_subject, ack_wait_s=ack_wait_s, events_per_subject=events
        ) as broker:
            await broker.declare([POOL])
            await broker.events.declare()
    url, login = server.endpoint.url, server.endpoint.master
    connection = await NatsConnection.open([url], login=login, name="look", settings=StreamSettings())
    try:
        reports = (await demand(connection, f"STREAM.INFO.{REPORTS}", None, 5.0))["config"]
        kept = (await demand(connection, f"STREAM.INFO.{EVENTS}", None, 5.0))["config"]
        queue = f"CONSUMER.INFO.{visits_stream(POOL)}.{streams.VISITS_CONSUMER}"
        consumer = (await demand(connection, queue, None, 5.0))["config"]
    finally:
        await connection.close()
    signatures = {config["metadata"]["orb_declaration"] for config in (reports, kept, consumer)}
    return (
        reports["max_msgs_per_subject"], consumer["ack_wait"] // SECOND_NS, kept["max_msgs_per_subject"], signatures
    )  # fmt: skip


def test_earlier_release_beside_later_one_reverts_nothing(server: BrokerServer) -> None:
    async def story() -> None:
        assert await declare(server, 1, 5, 10, 50) == (5, 10, 50, {"1"})
        assert await declare(server, 2, 7, 20, 70) == (7, 20, 70, {"2"})
        assert await declare(server, 1, 5, 10, 50) == (7, 20, 70, {"2"}), "or both would undo it at each start"
        assert await declare(server, 2, 6, 30, 60) == (6, 30, 60, {"2"}), "settings are those of who starts"

    asyncio.run(story())


def test_an_earlier_release_starts_though_there_is_more_than_it_would_allow(server: BrokerServer) -> None:
    async def story() -> None:
        await declare(server, 2, 7, 20, 70)
        async with server.broker(declare=False) as broker:
            for n in range(7):
                await broker.publish_report(Partition(0), "discovery", b"x", f"m{n}")
        assert (await declare(server, 1, 5, 10, 50))[0] == 7

    asyncio.run(story())


def test_stream_without_a_number_is_declared_anew(server: BrokerServer) -> None:
    """An operator may have made it."""

    async def story() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "signed", dict)
            async with server.broker(declare=False, reports_per_subject=5) as broker:
                await broker.declare([POOL])
        assert await declare(server, 1, 7, 20, 70) == (7, 20, 70, {"1"})

    asyncio.run(story())


def test_what_operators_set_of_a_stream_and_nobody_declares_stays(server: BrokerServer) -> None:
    set_by_hand = {"compression": "s2", "description": "ours", "metadata": {"team": "search"}}

    async def story() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "signed", lambda wanted: {**wanted, "metadata": {}})
            async with server.broker(declare=False, reports_per_subject=5) as broker:
                await broker.declare([POOL])
                await broker.events.declare()
                for name in (REPORTS, EVENTS):
                    config = (await demand(broker._connection, f"STREAM.INFO.{name}", None, 5.0))["config"]
                    await demand(broker._connection, f"STREAM.UPDATE.{name}", {**config, **set_by_hand}, 5.0)
        assert await declare(server, 1, 7, 20, 70) == (7, 20, 70, {"1"})
        async with server.broker(declare=False) as broker:
            for name in (REPORTS, EVENTS):
                config = (await demand(broker._connection, f"STREAM.INFO.{name}", None, 5.0))["config"]
                assert (config["compression"], config["description"]) == ("s2", "ours"), name
                assert (config["metadata"]["team"], config["metadata"]["orb_declaration"]) == ("search", "1"), name

    asyncio.run(story())


def test_master_with_other_waiting_limit_starts_on_existing_queue(
    server: BrokerServer,
) -> None:
    """NATS takes no other for a consumer that it has: told one, the master would wait for ever. All else is set."""

    async def waiting(max_waiting: int, max_ack_pending: int) -> tuple[int, int]:
        chosen = {"max_waiting": max_waiting, "max_ack_pending": max_ack_pending}
        async with server.broker(declare=False, **chosen) as broker:
            await broker.declare([POOL])
            queue = f"CONSUMER.INFO.{visits_stream(POOL)}.{streams.VISITS_CONSUMER}"
            config = (await demand(broker._connection, queue, None, 5.0))["config"]
        return config["max_waiting"], config["max_ack_pending"]

    async def story() -> None:
        assert await waiting(10, 100) == (10, 100)
        assert await waiting(20, 200) == (10, 200)

    asyncio.run(story())


def test_a_change_of_what_is_declared_is_another_declaration() -> None:
    """Else two releases that are both at work undo each other's at every start."""
    defaults = StreamSettings()
    declared = [
        streams.reports_stream(defaults), streams.robots_stream(defaults), streams.items_stream(defaults),
        streams.visits_stream(POOL, defaults), streams.visits_consumer(defaults), events_stream(defaults, 0),
    ]  # fmt: skip
    digest = blake3(msgspec.json.encode(declared, order="sorted")).hexdigest(length=8)
    assert digest == OF.get(streams.DECLARATION), f"raise streams.DECLARATION and add {digest!r} here"
    assert max(OF) == streams.DECLARATION
