"""The leader looks back at crawls that are over: what died on its way to the owners is done, what came late is run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from api.crawls.controller import CrawlController
from api.crawls.garbage_collector import AGAIN_S, GarbageCollector
from api.routes import crawl_verbs as turning
from shared.adapters.local.clock import SystemClock
from shared.adapters.nats import NatsBroker
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import CANCELLED, COMPLETE
from shared.domain.errors import Transient
from shared.domain.frontier.commands import collection_of
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.ops.access import Role
from shared.ports.broker import Broker
from shared.runtime.supervise import Tasks
from shared.wire.messages import Command, decode_report
from tests.support.api.rest_api import SPEC, api
from tests.support.crawl_controller import controlling, lead
from tests.support.database.store_tables import Tables, books, links, sqlite_tables
from tests.support.engines.nats_server import BrokerServer, stored
from tests.support.engines.nats_server import server as server

PARTITIONS = 8
DOCS = "/v1/crawls/docs"


class AwayBroker:
    """A broker that takes no report."""

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        raise Transient("away", retry_in=0.01)


class NotingBroker:
    """A broker that notes which partitions were told something."""

    def __init__(self) -> None:
        self.told: list[Partition] = []

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        self.told.append(partition)
        return len(self.told)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    while not await true():  # noqa: ASYNC110  neither the database nor the broker has an event for it
        await asyncio.sleep(0.02)


@asynccontextmanager
async def leader(tables: Tables, broker: NatsBroker) -> AsyncIterator[CrawlController]:
    """What a leader does for crawls, done while the context is open."""
    controller = controlling(tables.store, items_of(tables), broker, SystemClock(), partitions=PARTITIONS)
    async with Tasks() as tasks:
        running = tasks.start("lead", lead(controller, Term(1)))
        yield controller
        running.cancel()


def items_of(tables: Tables) -> SqlItems:
    """The table of items beside the others."""
    assert isinstance(tables.store, SqlStore)
    return SqlItems(tables.store.executor)


async def told(broker: NatsBroker, partition: Partition) -> list[Command]:
    """The commands on a partition's subject."""
    found = map(decode_report, await stored(broker, partition, "outcome"))
    return [message for message in found if isinstance(message, Command)]


async def applied(tables: Tables, partition: Partition, command: Command) -> None:
    """The partition's owner does it."""
    crawl_id = CrawlId(command.crawl)
    owner = Tables(tables.store, tables.at, crawl_id, (await tables.store.claim(partition, Term(9))).fence)
    run = CommandRun(command.id, crawl_id, command.kind, dict(command.args), partition)
    await owner.run(await owner.accept(run))


@pytest.mark.parametrize("verb", ["delete", "reset"])
def test_leader_resumes_deletion_interrupted_between_sql_and_broker(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(turning, "COMMAND_S", 0.05)

    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables, server.broker() as broker:
            await tables.found(*links("a.test", range(5)))
            async with api(tables.path, cast(Broker, AwayBroker())) as served, served.as_role(Role.OPERATOR) as client:
                response = await (client.delete(DOCS) if verb == "delete" else client.post(f"{DOCS}/reset"))
                assert response.status_code in (200, 204), response.text
                command_id = collection_of(tables.crawl_id)
                progress = (await client.get(f"/v1/commands/{command_id}")).json()
                assert (progress["applied"], progress["partitions"]) == (0, PARTITIONS)
            assert await broker.pending_reports() == 0, "nobody was told"

            async def all_told() -> bool:
                return await broker.pending_reports() >= PARTITIONS

            async def collected() -> bool:
                return not await tables.store.uncollected()

            async with leader(tables, broker) as controller:
                await until(all_told)
                for partition in map(Partition, range(PARTITIONS)):
                    (command,) = [each for each in await told(broker, partition) if each.id == command_id]
                    await applied(tables, partition, command)
                controller.wake(look_back=True)
                await until(collected)
            assert tables.value("SELECT count(*) FROM urls") == 0
            assert books(tables.path) == []

    asyncio.run(asyncio.wait_for(story(), 60))


def test_collection_is_sent_to_members_without_it_and_repeated_later(tmp_path: Path) -> None:
    """What was acknowledged is on its way; a stream may be lost all the same."""

    class Late(SystemClock):
        late = 0.0

        def elapsed(self) -> float:
            return super().elapsed() + self.late

    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables:
            clock, broker = Late(), NotingBroker()
            await tables.store.set_state(tables.crawl_id, CrawlState.DELETED, None, 0)
            await applied(tables, Partition(0), Command(collection_of(tables.crawl_id), tables.crawl_id, "delete"))
            collects = GarbageCollector(tables.store, items_of(tables), cast(Broker, broker), clock)
            for _ in range(2):
                await collects.once()
                assert len(broker.told) == PARTITIONS - 1
            clock.late = AGAIN_S
            await collects.once()
            assert len(broker.told) == 2 * (PARTITIONS - 1)
            assert set(broker.told) == set(range(1, PARTITIONS))

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize(("reason", "runs"), [(COMPLETE, True), (CANCELLED, False)])
def test_what_is_queued_after_the_end_is_run_where_the_crawl_was_complete(
    tmp_path: Path, server: BrokerServer, reason: str, runs: bool
) -> None:
    """Seeds, a retry or a replay may be applied after the leader found that nothing was left to do."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as tables, server.broker() as broker:
            other, _ = await tables.store.put_crawl("other", "{}", 0)
            for crawl_id in (tables.crawl_id, other.crawl_id):
                await tables.store.set_state(crawl_id, CrawlState.FINISHED, COMPLETE, 0)
            await tables.store.set_state(tables.crawl_id, CrawlState.FINISHED, reason, 0)
            await tables.found(*links("a.test", range(3)))

            async def looked() -> bool:
                return not await tables.store.uncollected()

            # A crawl that is deleted beside it shows that the leader has looked.
            await tables.store.set_state(other.crawl_id, CrawlState.DELETED, None, 0)
            for partition in map(Partition, range(PARTITIONS)):
                await applied(tables, partition, Command(collection_of(other.crawl_id), other.crawl_id, "delete"))
            async with leader(tables, broker):
                await until(looked)
            row = await tables.store.crawl(tables.crawl_id)
            assert row is not None
            assert row.state is (CrawlState.RUNNING if runs else CrawlState.FINISHED)
            assert (await tables.store.counters(tables.crawl_id)).queued == 3, "they wait for a start"
            assert books(tables.path) == []

    asyncio.run(asyncio.wait_for(story(), 60))


def test_complete_crawl_takes_seeds_and_ended_crawl_does_not(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with (
            sqlite_tables(tmp_path) as tables,
            server.broker() as broker,
            api(tables.path, broker) as served,
            served.as_role(Role.OPERATOR) as client,
        ):
            assert (await client.put(DOCS, json={"spec": SPEC})).status_code == 200
            for reason, status in ((COMPLETE, 200), (CANCELLED, 409), ("max_pages", 409)):
                await tables.store.set_state(tables.crawl_id, CrawlState.FINISHED, reason, 0)
                answer = await client.post(f"{DOCS}/seeds", json={"seeds": [f"http://{reason}.test/"]})
                assert answer.status_code == status, answer.text
                if status == 409:
                    assert answer.json()["allowed_verbs"] == ["start"]

    asyncio.run(asyncio.wait_for(story(), 60))
