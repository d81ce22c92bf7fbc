"""The Backlog port: how many reports the owners have yet to apply, by their positions and the broker's own clock."""

import asyncio
from functools import partial

import pytest

from shared.adapters.nats import NatsBroker
from shared.domain.errors import Transient
from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import Partition
from shared.ports.broker import ReportKind
from tests.support.engines.nats_server import BrokerServer, persist
from tests.support.engines.nats_server import server as server

P, Q = Partition(3), Partition(5)


async def published(broker: NatsBroker, partition: Partition, kind: ReportKind, count: int) -> list[int]:
    """Their sequences."""
    return [
        await persist(partial(broker.publish_report, partition, kind, b"r", f"{partition} {kind} {n}"))
        for n in range(count)
    ]


def test_what_is_behind_the_positions_is_counted_and_what_is_applied_is_not(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            assert await broker.unapplied({}) == Waiting(0, None)
            outcomes = await published(broker, P, "outcome", 3)
            discoveries = await published(broker, P, "discovery", 2)
            others = await published(broker, Q, "outcome", 4)
            created = (await broker.reports_state()).created_ns
            assert (await broker.unapplied({})).count == 9

            half = {P: Position(created, outcomes[-1], 0, discoveries[-1], 0), Q: Position(created, others[1], 0, 0, 0)}
            waiting = await broker.unapplied(half)
            assert waiting.count == 4, "of a partition that is behind, all that still stands is counted"
            assert waiting.oldest_s is not None
            assert waiting.oldest_s >= 0
            await broker.purge_reports(Q, "outcome", others[1])
            assert (await broker.unapplied(half)).count == 2

            whole = {**half, Q: Position(created, others[-1], 0, 0, 0)}
            assert await broker.unapplied(whole) == Waiting(0, None), "applied, and not purged yet"
            elsewhere = {p: Position(created + 1, 10**9, 0, 10**9, 0) for p in (P, Q)}
            assert (await broker.unapplied(elsewhere)).count == 7, "positions in a stream that is gone"

    asyncio.run(story())


def test_the_oldest_is_as_old_as_the_first_that_is_not_applied(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            [first] = await published(broker, P, "outcome", 1)
            early = await broker.unapplied({})
            [second] = await published(broker, Q, "outcome", 1)
            created = (await broker.reports_state()).created_ns
            newer = await broker.unapplied({P: Position(created, first)})
            older = await broker.unapplied({})
            assert (newer.count, older.count) == (1, 2)
            assert None not in (early.oldest_s, newer.oldest_s, older.oldest_s)
            assert (older.oldest_s or 0) > (early.oldest_s or 0), "it ages"
            assert (older.oldest_s or 0) > (newer.oldest_s or 0), "and is the first that is not applied"
            done = {P: Position(created, first), Q: Position(created, second)}
            assert await broker.unapplied(done) == Waiting(0, None)

    asyncio.run(story())


def test_it_is_not_known_while_the_broker_is_away(server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker:
            server.kill()
            with pytest.raises(Transient):
                await broker.unapplied({})
            await server.restart()

    asyncio.run(story())
