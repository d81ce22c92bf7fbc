"""The Events port's promises: a sequence names one event for ever, and readers lose and repeat nothing that is kept."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.domain.errors import Transient
from shared.ports.broker import Delivered
from shared.ports.events import EventReader, Events
from shared.wire.events import EVENTS, EVERY_EVENT, event_subject
from tests.support.engines.nats_server import BrokerServer, persist
from tests.support.engines.nats_server import server as server


async def told(events: Events, subject: str, *texts: str) -> int:
    """Publish; the sequence of the last."""
    sequence = 0
    for text in texts:
        sequence = await persist(partial(events.publish, subject, text.encode(), f"{subject} {text}"))
    return sequence


async def taken(reader: EventReader, max_count: int) -> list[str]:
    """Exactly so many, read in as many calls as it takes."""
    found: list[Delivered] = []
    async with asyncio.timeout(30):
        while len(found) < max_count:
            left = max_count - len(found)
            found += await persist(partial(reader.read, left, 1.0))
    return texts_of(found)


def texts_of(found: Sequence[Delivered]) -> list[str]:
    return [each.data.decode() for each in found]


def test_events_are_read_in_order_from_any_place_by_subject(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            events = broker.events
            await events.declare()
            first = await told(events, "events.crawl.1", "a")
            await told(events, "events.progress.1", "b")
            await told(events, "events.crawl.2", "c")
            last = await told(events, "events.crawl.1", "d")
            every = await events.read([EVERY_EVENT], 0)
            assert await taken(every, 4) == ["a", "b", "c", "d"]
            one = await events.read(["events.crawl.1", "events.progress.1"], first)
            assert await taken(one, 2) == ["b", "d"]
            await told(events, "events.crawl.2", "e")
            await told(events, "events.progress.1", "f")
            assert await taken(one, 1) == ["f"]
            assert await taken(every, 2) == ["e", "f"]
            state = await events.state()
            assert (state.first, state.last) == (first, last + 2)
            for reader in (every, one):
                await reader.close()

    asyncio.run(story())


def test_a_repeat_of_a_publish_is_stored_once(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            await broker.events.declare()
            once = await broker.events.publish("events.crawl.1", b"x", "same")
            assert await broker.events.publish("events.crawl.1", b"x", "same") == once
            assert (await broker.events.state()).last == once

    asyncio.run(story())


def test_the_newest_of_each_subject_are_found_however_many_came_before(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            events = broker.events
            await events.declare()
            assert list(await events.newest("events.crawl.*")) == []
            assert await events.last("events.crawl.*") is None
            for crawl in range(30):
                await told(events, f"events.crawl.{crawl}", f"{crawl} old", f"{crawl} new")
            assert sorted(texts_of(await events.newest("events.crawl.*"))) == sorted(f"{n} new" for n in range(30))
            last = await events.last("events.crawl.*")
            assert last is not None
            assert last.data == b"29 new"
            assert list(await events.newest("events.master.*")) == []

    asyncio.run(story())


def test_a_reader_goes_on_without_gap_or_repeat_when_the_broker_is_killed(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, server.broker() as other:
            await broker.events.declare()
            reader = await broker.events.read([EVERY_EVENT], 0)
            await told(other.events, "events.crawl.1", *map(str, range(20)))
            assert await taken(reader, 10) == [str(n) for n in range(10)]
            server.kill()
            with pytest.raises(Transient):
                await other.events.publish("events.crawl.1", b"x", "x")
            await server.restart()
            await told(other.events, "events.crawl.1", *map(str, range(20, 30)))
            assert await taken(reader, 20) == [str(n) for n in range(10, 30)]
            await reader.close()

    asyncio.run(story())


def test_what_is_bounded_forgets_the_oldest_and_says_where_it_begins(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker(events_count=5, events_per_subject=3) as broker:
            events = broker.events
            await events.declare()
            first = await told(events, "events.progress.1", *map(str, range(4)))
            await told(events, "events.crawl.1", "a", "b", "c")
            state = await events.state()
            assert (state.first, state.last) == (first - 1, first + 3)
            reader = await events.read([EVERY_EVENT], 0)
            assert await taken(reader, 5) == ["2", "3", "a", "b", "c"]
            await reader.close()

    asyncio.run(story())


def test_replacing_stream_begins_beyond_all_earlier_positions(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            events = broker.events
            await events.declare()
            before = await told(events, "events.crawl.1", *map(str, range(50)))
            reader = await events.read([EVERY_EVENT], before)
            old = await events.state()
            await demand(broker._connection, f"STREAM.DELETE.{EVENTS}", None, 5.0)
            with pytest.raises(Transient):
                await events.state()
            await events.declare()
            new = await events.state()
            assert new.created_ns != old.created_ns
            assert new.first > before
            assert await told(events, "events.crawl.1", "new") == new.first
            while True:
                try:
                    assert list(await reader.read(10, 5.0)) == [], "it is not the stream that it was opened on"
                except Transient as error:
                    if "open a new reader" in str(error):
                        break
            await reader.close()

    asyncio.run(story())


def test_masters_declaring_at_once_with_other_bounds_keep_one_stream(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as one, server.broker(events_age_s=60.0) as other:
            await asyncio.gather(*(broker.events.declare() for broker in (one, other) * 4))
            made = await one.events.state()
            await told(one.events, "events.crawl.1", "kept")
            await other.events.declare()
            await one.events.declare()
            kept = await other.events.state()
            assert (kept.created_ns, kept.first, kept.last) == (made.created_ns, made.first, made.first)

    asyncio.run(story())


def test_a_reader_that_is_closed_leaves_nothing_behind(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            await broker.events.declare()
            readers = [await broker.events.read([EVERY_EVENT], 0) for _ in range(3)]
            assert await consumers(broker._connection) == 3
            for reader in readers:
                await reader.close()
            assert await consumers(broker._connection) == 0

    asyncio.run(story())


async def consumers(connection: NatsConnection) -> int:
    info = await demand(connection, f"STREAM.INFO.{EVENTS}", None, 5.0)
    return int(info["state"]["consumer_count"])


@pytest.mark.parametrize("about", ["7", "m.1", "m 1", "*", ">", "a=b", "\u2603", ""])
def test_any_id_is_one_part_of_a_subject_and_no_two_are_the_same(about: str) -> None:
    subject = event_subject("master", about)
    assert subject.startswith("events.master.")
    part = subject.removeprefix("events.master.")
    assert not set(part) & set(". *>\t\n")
    others = ["7", "m.1", "m 1", "*", ">", "a=b", "\u2603", ""]
    assert [other for other in others if event_subject("master", other) == subject] == [about]
