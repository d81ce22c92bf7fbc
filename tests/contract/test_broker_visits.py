"""The Broker port's promises about shards: one at a time on a host slot, delivered until acknowledged, never lost."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from shared.adapters.nats import NatsBroker
from shared.adapters.nats import visits as visits_module
from shared.adapters.nats.connection import Unanswered
from shared.adapters.nats.streams import VISITS_CONSUMER
from shared.domain.errors import Refused, Transient
from shared.domain.ids import HostId, Partition
from shared.ports.broker import QueuedVisit, VisitMessage
from shared.wire.subjects import visits_stream
from tests.support.engines.nats_server import POOL, BrokerServer, persist
from tests.support.engines.nats_server import server as server

P = Partition(5)


async def queue(broker: NatsBroker, first: int, last: int) -> None:
    """One shard for each of the hosts first..last-1."""
    for host in range(first, last):
        assert await broker.publish_shard(POOL, P, host, 0, b"%d" % host)


async def one(broker: NatsBroker) -> VisitMessage:
    """The next shard, patiently."""
    (visit,) = await broker.pull_visits(POOL, 1, 30.0)
    return visit


async def settled(visit: VisitMessage) -> bool:
    """Acknowledge, patiently while the broker is away. False: it is there and did not answer. Either it was killed, has
    forgotten the delivery and delivers again, or it was slow, and the shard is done."""
    async with asyncio.timeout(30):
        while True:
            try:
                await visit.ack()
            except Unanswered:
                return False
            except Transient as error:
                await asyncio.sleep(min(error.retry_in, 0.05))
            else:
                return True


def hosts(visits: Sequence[VisitMessage]) -> list[int]:
    return [int(visit.data) for visit in visits]


def test_second_shard_of_host_slot_is_refused_until_first_is_acked(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            assert await broker.publish_shard(POOL, P, 1, 0, b"1")
            assert not await broker.publish_shard(POOL, P, 1, 0, b"2")
            assert await broker.publish_shard(POOL, P, 1, 1, b"other slot")
            visit = await one(broker)
            assert not await broker.publish_shard(POOL, P, 1, 0, b"2")
            await visit.ack()
            assert await broker.publish_shard(POOL, P, 1, 0, b"2")

    asyncio.run(run())


def test_a_full_queue_refuses_and_is_not_taken_for_an_occupied_slot(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(visits_bytes=5_000) as broker:
            with pytest.raises(Refused):
                await asyncio.gather(*(broker.publish_shard(POOL, P, host, 0, b"x" * 1_000) for host in range(9)))

    asyncio.run(run())


def test_nacked_shard_returns_after_its_delay_and_counts_deliveries(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            await queue(broker, 1, 2)
            loop = asyncio.get_running_loop()
            for delivery in range(1, 5):
                visit = await one(broker)
                assert visit.delivery == delivery
                await visit.nak(0.0)
            visit = await one(broker)
            before = loop.time()
            await visit.nak(0.3)
            assert (await one(broker)).delivery == 6
            assert loop.time() - before >= 0.3

    asyncio.run(asyncio.wait_for(run(), 60))


def test_silent_shard_returns_after_ack_wait_and_working_one_does_not(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(ack_wait_s=3.0) as broker:
            await queue(broker, 1, 3)
            held = {int(visit.data): visit for visit in [await one(broker), await one(broker)]}
            came: list[VisitMessage] = []
            while not came:
                await held[1].working()
                came += await broker.pull_visits(POOL, 2, 0.1)
            assert [(int(visit.data), visit.delivery) for visit in came] == [(2, 2)]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_queued_visits_are_listed_over_pools_and_dropped_up_to_sequence(
    server: BrokerServer,
) -> None:
    async def run() -> None:
        other, first, second = "eu", QueuedVisit(POOL, HostId(1), 0), QueuedVisit("eu", HostId(7), 2)
        async with server.broker() as broker:
            assert await broker.queued_visits(P) == []
            await broker.declare([POOL, other])
            await queue(broker, 1, 2)
            assert await broker.publish_shard(other, P, 7, 2, b"there")
            assert await broker.publish_shard(POOL, Partition(50), 1, 0, b"another partition's")
            assert sorted(await broker.queued_visits(P)) == sorted([first, second])
            visit = await one(broker)
            assert first in await broker.queued_visits(P), "what is out stands there until it is acknowledged"
            stood = await broker.visit_at(P, first)
            assert stood is not None
            assert stood.data == visit.data
            await broker.drop_visit(POOL, P, 1, 0, through=stood.sequence - 1)
            assert await broker.visit_at(P, first) == stood
            await visit.ack()
            await queue(broker, 1, 2)
            await broker.drop_visit(POOL, P, 1, 0, through=stood.sequence)
            later = await broker.visit_at(P, first)
            assert later is not None, "another shard in its place is not meant"
            assert later.sequence > stood.sequence
            await broker.drop_visit(POOL, P, 1, 0, through=later.sequence)
            assert await broker.visit_at(P, first) is None
            assert await broker.queued_visits(P) == [second]
            assert await broker.visit_at(P, QueuedVisit("nowhere", HostId(1), 0)) is None

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_shard_waits_until_it_is_first_delivered(server: BrokerServer) -> None:
    async def run() -> None:
        first, second = QueuedVisit(POOL, HostId(1), 0), QueuedVisit(POOL, HostId(2), 0)
        async with server.broker() as broker:
            assert not await broker.visit_waits(P, first), "nothing stands there"
            await queue(broker, 1, 3)
            assert await broker.visit_waits(P, first)
            visit = await one(broker)
            assert [await broker.visit_waits(P, place) for place in (first, second)] == [False, True]
            await visit.nak(0.0)
            assert not await broker.visit_waits(P, first), "it was delivered once"

    asyncio.run(run())


def test_acknowledging_twice_or_late_or_what_was_dropped_is_harmless(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            await queue(broker, 1, 2)
            visit = await one(broker)
            await visit.ack()
            await visit.ack()
            await visit.nak(0.0)
            assert await broker.pull_visits(POOL, 1, 0.2) == []
            await queue(broker, 1, 2)
            visit = await one(broker)
            await broker.drop_visit(POOL, P, 1, 0)
            await visit.ack()
            await queue(broker, 1, 2)
            assert hosts([await one(broker)]) == [1]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_dropping_deletes_that_slot_alone_queued_or_in_flight(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(ack_wait_s=3.0) as broker:
            await queue(broker, 1, 13)
            assert await broker.publish_shard(POOL, P, 1, 1, b"101")
            taken = await broker.pull_visits(POOL, 1, 20.0)
            assert hosts(taken) == [1]
            await broker.drop_visit(POOL, P, 1, 0)
            await broker.drop_visit(POOL, P, 12, 0)
            await broker.drop_visit(POOL, P, 99, 0)
            rest: list[VisitMessage] = []
            while len(rest) < 11:
                rest += await broker.pull_visits(POOL, 50, 20.0)
            assert hosts(rest) == [*range(2, 12), 101]
            for visit in rest:
                await visit.ack()
            assert await broker.pull_visits(POOL, 50, 3.5) == []

    asyncio.run(asyncio.wait_for(run(), 60))


def test_pull_waits_for_first_only_and_returns_whole_batches(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the broker pauses within what it said it has."""
    monkeypatch.setattr(visits_module, "_REST_S", 30.0)

    async def run() -> None:
        async with server.broker() as broker:
            pulling = asyncio.create_task(broker.pull_visits(POOL, 100, 3600.0))
            await asyncio.sleep(0.05)
            await queue(broker, 0, 1)
            assert hosts(await pulling) == [0]
        async with server.broker() as broker:
            await queue(broker, 1, 300)
            assert len(await broker.pull_visits(POOL, 200, 3600.0)) == 200
            assert len(await broker.pull_visits(POOL, 200, 3600.0)) == 99

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_pull_that_finds_nothing_ends_with_its_wait(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            for wait_s in (0.0, 0.1, 0.0, 0.05):
                assert await broker.pull_visits(POOL, 10, wait_s) == []
            await queue(broker, 1, 2)
            assert hosts(await broker.pull_visits(POOL, 10, 20.0)) == [1]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_shards_between_two_pulls_come_in_the_next_as_first_delivery(server: BrokerServer) -> None:
    """Pulls are cancelled and run out while shards are on their way to them."""
    chance = random.Random(1)

    async def run() -> None:
        async with server.broker(ack_wait_s=3600.0) as broker, server.broker(ack_wait_s=3600.0) as owner:
            seen: list[VisitMessage] = []
            for host in range(0, 300, 3):
                pulling = asyncio.create_task(broker.pull_visits(POOL, 10, chance.choice([0.0, 0.001, 20.0])))
                queueing = asyncio.create_task(queue(owner, host, host + 3))
                for _ in range(chance.randrange(20)):
                    await asyncio.sleep(0)
                pulling.cancel()
                await queueing
                try:
                    seen += await pulling
                except asyncio.CancelledError:
                    continue
            async with asyncio.timeout(30):
                while len(seen) < 300:
                    seen += await broker.pull_visits(POOL, 50, 1.0)
            assert sorted(hosts(seen)) == list(range(300))
            assert {visit.delivery for visit in seen} == {1}

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_no_caller_took_is_handed_back_on_close(server: BrokerServer) -> None:
    """Else it would come again only after ack_wait: an hour here."""

    async def run() -> None:
        async with server.broker(ack_wait_s=3600.0) as other:
            async with server.broker(ack_wait_s=3600.0) as leaving:
                pulling = asyncio.create_task(leaving.pull_visits(POOL, 10, 3600.0))
                await asyncio.sleep(0.1)
                pulling.cancel()
                await queue(other, 0, 5)
            visits: list[VisitMessage] = []
            while len(visits) < 5:
                visits += await other.pull_visits(POOL, 10, 20.0)
            assert sorted(hosts(visits)) == [0, 1, 2, 3, 4]
            await queue(other, 5, 6)
            assert hosts(await other.pull_visits(POOL, 10, 20.0)) == [5]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_workers_share_a_queue_and_each_shard_goes_to_one(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as owner, server.broker() as first, server.broker() as second:
            taken: Counter[int] = Counter()

            async def work(broker: NatsBroker) -> None:
                while sum(taken.values()) < 200:
                    for visit in await broker.pull_visits(POOL, 10, 0.2):
                        taken[int(visit.data)] += 1
                        await visit.ack()

            await asyncio.gather(work(first), work(second), queue(owner, 0, 200))
            assert taken == Counter(range(200))

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.long
def test_broker_kills_lose_no_shard_and_repeat_none_after_ack(server: BrokerServer) -> None:
    total = 1_500
    chance = random.Random(7)

    async def run() -> None:
        async with server.broker(ack_wait_s=3.0) as owner, server.broker(ack_wait_s=3.0, answer_s=0.5) as worker:
            seen: set[int] = set()
            acked: Counter[int] = Counter()
            dispatched = asyncio.Event()

            async def dispatch() -> None:
                for host in range(total):
                    # False after a lost answer: the shard is there already.
                    await persist(partial(owner.publish_shard, POOL, P, host, 0, b"%d" % host))
                dispatched.set()

            async def work() -> None:
                while True:
                    visits = await persist(partial(worker.pull_visits, POOL, 50, 0.3))
                    seen.update(hosts(visits))
                    done = await asyncio.gather(*map(settled, visits))
                    acked.update(host for host, ok in zip(hosts(visits), done, strict=True) if ok)
                    if not visits and dispatched.is_set() and not await persist(partial(worker.queued_visits, P)):
                        return

            async def kill(working: asyncio.Task[None]) -> None:
                kills = 0
                while not working.done() and kills < 12:
                    await asyncio.sleep(chance.uniform(0.05, 0.4))
                    server.kill()
                    await server.restart()
                    kills += 1

            async with asyncio.TaskGroup() as group:
                group.create_task(dispatch())
                working = group.create_task(work())
                group.create_task(kill(working))
            assert seen == set(range(total))
            # An ack that was stored but not answered, or a publish repeated after its shard was done, repeats a visit;
            # nothing else does.
            assert sum(acked.values()) - len(acked) <= 100
            assert await persist(partial(worker.pull_visits, POOL, 50, 1.5)) == []

    asyncio.run(asyncio.wait_for(run(), 110))


def test_pull_during_broker_death_is_transient_and_next_continues(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker() as broker:
            pulling = asyncio.create_task(broker.pull_visits(POOL, 10, 3600.0))
            await asyncio.sleep(0.1)
            server.kill()
            with pytest.raises(Transient):
                await pulling
            with pytest.raises(Transient):
                await broker.pull_visits(POOL, 10, 3600.0)
            await server.restart()
            await persist(partial(queue, broker, 1, 2))
            assert hosts(await persist(partial(broker.pull_visits, POOL, 10, 20.0))) == [1]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_settling_while_the_broker_is_away_is_transient_and_works_afterwards(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(ack_wait_s=3600.0, answer_s=5.0) as broker:
            await queue(broker, 1, 2)
            visit = await one(broker)
            server.kill()
            for settle in (visit.ack, partial(visit.nak, 0.0), visit.working):
                with pytest.raises(Transient):
                    await settle()
            await server.restart()
            if not await settled(visit):
                (visit,) = await persist(partial(broker.pull_visits, POOL, 1, 20.0))
                await visit.ack()
            await queue(broker, 1, 2)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_worker_beyond_waiting_limit_is_refused_and_served_later(server: BrokerServer) -> None:
    async def run() -> None:
        async with server.broker(max_waiting=1) as broker, server.broker(declare=False) as other:
            waiting = asyncio.create_task(broker.pull_visits(POOL, 1, 30.0))
            await waits(broker)
            with pytest.raises(Transient, match=r"cannot pull from the queue of pool .*: 409 .*MaxWaiting"):
                await other.pull_visits(POOL, 1, 30.0)
            await queue(broker, 0, 1)
            (first,) = await waiting
            await queue(broker, 1, 2)
            (second,) = await persist(lambda: other.pull_visits(POOL, 1, 30.0))
            assert (hosts([first]), hosts([second])) == ([0], [1])

    asyncio.run(run())


async def waits(broker: NatsBroker) -> None:
    """Until the pool's queue has a pull open."""
    info = f"$JS.API.CONSUMER.INFO.{visits_stream(POOL)}.{VISITS_CONSUMER}"
    while not json.loads((await broker._connection.request(info, b"", 5.0)).data)["num_waiting"]:  # noqa: ASYNC110  it tells nobody
        await asyncio.sleep(0.01)
