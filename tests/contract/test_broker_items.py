"""The stream of items' promises: every crawl's on a subject of its own, in order, once, for as long as it is kept."""

import asyncio
from functools import partial

import pytest

from shared.domain.errors import Transient
from shared.domain.ids import CrawlId
from tests.support.engines.nats_server import BrokerServer, persist, read_all
from tests.support.engines.nats_server import server as server


def test_items_of_all_crawls_are_read_in_order_from_any_place(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            empty = await broker.items_state()
            assert (empty.first, empty.last) == (1, 0)
            for n in range(6):
                assert await broker.publish_items(CrawlId(n % 2 + 1), b"%d" % n, f"m{n}") == n + 1
            assert await broker.publish_items(CrawlId(1), b"0", "m0") == 1, "a repeat is stored once"
            reader = await broker.read_items(2)
            found = await read_all(reader, 4)
            assert [(each.sequence, each.data) for each in found] == [(n + 1, b"%d" % n) for n in range(2, 6)]
            await reader.close()
            state = await broker.items_state()
            assert (state.first, state.last) == (1, 6)
            server.kill()
            await server.restart()
            again = await persist(partial(broker.read_items, 5))
            assert [each.data for each in await read_all(again, 1)] == [b"5"]
            await again.close()

    asyncio.run(story())


def test_oldest_items_are_dropped_at_limit_and_producers_never_refused(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker(items_bytes=64 * 1024) as broker:
            for n in range(40):
                await broker.publish_items(CrawlId(1), b"x" * 4096, f"m{n}")
            state = await broker.items_state()
            assert state.last == 40
            assert 20 < state.first < 40

    asyncio.run(story())


def test_a_master_that_was_told_lower_bounds_starts_all_the_same(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            for n in range(40):
                await broker.publish_items(CrawlId(1), b"x" * 4096, f"m{n}")
            async with server.broker(items_bytes=64 * 1024, items_age_s=60.0):
                state = await broker.items_state()
            assert state.first > 20

    asyncio.run(story())


def test_nobody_is_told_that_items_are_stored_when_there_is_no_stream(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker(declare=False) as broker:
            with pytest.raises(Transient):
                await broker.publish_items(CrawlId(1), b"x", "m")

    asyncio.run(story())
