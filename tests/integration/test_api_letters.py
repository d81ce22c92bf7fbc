"""Dead letters over REST: replayed and discarded by the owner of their partition, one by one or a crawl's at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from shared.adapters.nats import NatsBroker
from shared.domain.frontier.store_model import DeadLetterRow
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.wire.messages import Command, decode_report
from tests.support.api.rest_api import PARTITIONS, SPEC, Api, api, problem
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, sqlite_tables
from tests.support.engines.nats_server import BrokerServer, stored
from tests.support.engines.nats_server import server as server

LETTERS = "/v1/dead-letters"


@asynccontextmanager
async def given_up(
    folder: Path, server: BrokerServer
) -> AsyncIterator[tuple[Tables, NatsBroker, Api, httpx.AsyncClient]]:
    """A crawl with a letter of a URL (1), and a message that nobody could read (2); an operator."""
    async with (
        sqlite_tables(folder) as tables,
        server.broker() as broker,
        api(tables.path, broker) as served,
        served.as_role(Role.OPERATOR) as client,
    ):
        assert (await client.put("/v1/crawls/docs", json={"spec": SPEC})).status_code == 200
        await tables.bury(DeadLetterRow(tables.crawl_id, "url", NOW_MS, "5 grants ended", "http://a.test/"))
        await tables.bury(DeadLetterRow(None, "outcome", NOW_MS, "cannot be read", payload=b"\xc1"))
        yield tables, broker, served, client


async def told(broker: NatsBroker, partition: Partition) -> list[Command]:
    found = map(decode_report, await stored(broker, partition, "outcome"))
    return [message for message in found if isinstance(message, Command)]


def test_a_letters_owner_alone_is_told_and_the_audit_log_keeps_who_asked(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with given_up(tmp_path, server) as (tables, broker, _, client):
            replayed = await client.post(f"{LETTERS}/1/replay")
            discarded = await client.delete(f"{LETTERS}/2")
            assert (replayed.status_code, discarded.status_code) == (202, 202)
            commands = await told(broker, PARTITION)
            assert [(each.kind, each.crawl, each.args) for each in commands] == [
                ("replay", tables.crawl_id, {"letter": 1}),
                ("discard", 0, {"letter": 2}),
            ]
            assert [each.id for each in commands] == [replayed.json()["command"], discarded.json()["command"]]
            assert await broker.pending_reports() == 2
            progress = (await client.get(f"/v1/commands/{commands[0].id}")).json()
            assert (progress["kind"], progress["applied"], progress["partitions"]) == ("replay", 0, 1)
            logged = tables.rows("SELECT action, after FROM audit_log WHERE action LIKE 'command.%' ORDER BY id")
            assert logged == [("command.replay", '{"letter":1}'), ("command.discard", '{"letter":2}')]
            await tables.command("replay", id=commands[0].id, letter=1)
            assert (await client.get(f"/v1/commands/{commands[0].id}")).json()["applied"] == 1
            problem(await client.get(f"{LETTERS}/1"), 404, "not-found")
            problem(await client.post(f"{LETTERS}/1/replay"), 404, "not-found")

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_crawls_letters_are_asked_for_at_every_owner(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with given_up(tmp_path, server) as (tables, broker, _, client):
            asked = await client.post(f"{LETTERS}/replay?crawl=docs")
            gone = await client.delete(f"{LETTERS}?crawl=docs")
            assert (asked.status_code, gone.status_code) == (202, 202)
            for partition in map(Partition, range(PARTITIONS)):
                assert [(each.kind, each.crawl, each.args) for each in await told(broker, partition)] == [
                    ("replay", tables.crawl_id, {"letter": 0}),
                    ("discard", tables.crawl_id, {"letter": 0}),
                ]
            problem(await client.post(f"{LETTERS}/replay?crawl=none"), 404, "not-found")
            problem(await client.delete(LETTERS), 422, "invalid")

    asyncio.run(asyncio.wait_for(story(), 60))


def test_viewers_read_letters_and_change_none(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with given_up(tmp_path, server) as (_, broker, served, _), served.as_role(Role.VIEWER) as viewer:
            assert len((await viewer.get(LETTERS)).json()["items"]) == 2
            for method, path in (("POST", "/1/replay"), ("DELETE", "/1"), ("POST", "/replay?crawl=docs")):
                problem(await viewer.request(method, LETTERS + path), 403, "forbidden")
            assert await broker.pending_reports() == 0

    asyncio.run(asyncio.wait_for(story(), 60))
