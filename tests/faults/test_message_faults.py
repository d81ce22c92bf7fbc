"""Whoever meddles with the post does what he says, and keeps the count that the judge asks him for."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shared.domain.errors import Refused
from shared.domain.ids import Partition
from shared.wire.messages import Command, Malformed, decode_discoveries, decode_report, encode
from tests.support.engines.nats_server import POOL, BrokerServer, stored
from tests.support.faults.message_faults import MessageListener
from tests.support.processes.cluster import PARTITIONS

P = Partition(1)
BYTES = 16 << 20
"""Of events, and of items."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BrokerServer]:
    """A broker that has room for little beside what its streams set apart."""
    server = BrokerServer(tmp_path / "broker", max_store=316 << 20)
    yield server
    asyncio.run(server.embedded.stop())


def test_unreadable_messages_reach_every_partition_and_are_counted(
    small: BrokerServer,
) -> None:
    mine = encode(Command(id="c", crawl=1, kind="k"))

    async def before() -> None:
        async with small.broker(events_bytes=BYTES, items_bytes=BYTES) as broker:
            await broker.publish_report(P, "outcome", mine, "1")
            await broker.publish_shard(POOL, P, 1, 0, b"shard")

    async def after(post: MessageListener) -> None:
        async with small.broker(declare=False) as broker:
            found: list[bytes] = []
            for number in range(PARTITIONS):
                found += await stored(broker, Partition(number), "outcome")
                found += await stored(broker, Partition(number), "discovery")
            assert sorted(found) == sorted([mine] * (1 + post.repeated) + post.unreadable)
            for letter in post.unreadable:
                for decode in (decode_report, decode_discoveries):
                    with pytest.raises(Malformed):
                        decode(letter)
            assert [at.slot for at in await broker.queued_visits(P)] == [0, 9]
            assert len(post.noise) == 1

    asyncio.run(before_a_post_listens(small))
    with closing(MessageListener(small.endpoint)) as post:
        asyncio.run(before())
        post.wait_for(2)
        post.corrupt(7)
        assert len(post.unreadable) == PARTITIONS * 2 * 3
        post.repeat(7)
        assert post.repeated == 1, "the shard's place is taken"
        asyncio.run(after(post))


async def before_a_post_listens(server: BrokerServer) -> None:
    async with server.broker(events_bytes=BYTES, items_bytes=BYTES):
        pass


def test_a_full_store_refuses_reports_until_there_is_room_again(small: BrokerServer) -> None:
    async def publish(number: int) -> None:
        async with small.broker(declare=False, events_bytes=BYTES, items_bytes=BYTES) as broker:
            await broker.publish_report(P, "outcome", b"r", f"{number}")

    asyncio.run(before_a_post_listens(small))
    with closing(MessageListener(small.endpoint)) as post:
        with post.full(), pytest.raises(Refused, match="storage limits"):
            asyncio.run(publish(1))
        asyncio.run(publish(2))
