"""Seeds taken back over REST: out of the spec as a new revision, out of the queue by their owners."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.crawls import seed_places
from shared.adapters.nats import NatsBroker
from shared.domain.frontier.commands import GREATEST
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.domain.web.url import fingerprint, partition_of
from shared.wire.messages import Command, decode_report
from tests.support.api.rest_api import PARTITIONS, api, problem
from tests.support.engines.nats_server import BrokerServer, stored
from tests.support.engines.nats_server import server as server

DOCS = "/v1/crawls/docs"
SPEC = {"seeds": ["https://one.test/", "https://two.test/"]}


@asynccontextmanager
async def declared(folder: Path, server: BrokerServer) -> AsyncIterator[tuple[NatsBroker, httpx.AsyncClient]]:
    async with (
        server.broker() as broker,
        api(folder / "crawl.db", broker) as served,
        served.as_role(Role.OPERATOR) as client,
    ):
        made = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})
        assert made.status_code == 201, made.text
        yield broker, client


async def delete(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> httpx.Response:
    return await client.request("DELETE", f"{DOCS}/seeds", json=body, headers=headers)


async def told(broker: NatsBroker) -> dict[int, Command]:
    """The newest command of each partition that has one."""
    return dict(await all_told(broker))


def place(url: str) -> list[object]:
    return [url.split("/")[2], fingerprint(url)]


def test_an_uploaded_seeds_owner_is_told_and_the_spec_stays(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with declared(tmp_path, server) as (broker, client):
            asked = await delete(client, {"seeds": ["HTTPS://Three.test:443/#x"]})
            assert asked.status_code == 202, asked.text
            assert asked.json()["revision"] == 1
            ((partition, command),) = (await told(broker)).items()
            assert partition == partition_of("three.test", PARTITIONS)
            assert (command.id, command.kind) == (asked.json()["command"], "delete_seeds")
            assert command.args == {"all": False, "places": [place("https://three.test/")]}
            progress = (await client.get(f"/v1/commands/{command.id}")).json()
            assert (progress["applied"], progress["partitions"]) == (0, 1)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_deleting_a_spec_seed_adds_a_revision_and_last_seed_stays(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with declared(tmp_path, server) as (broker, client):
            asked = await delete(client, {"seeds": ["https://one.test/"]})
            assert asked.json()["revision"] == 2
            crawl = (await client.get(DOCS)).json()
            assert [seed["url"] for seed in crawl["spec"]["seeds"]] == ["https://two.test/"]
            assert list(await told(broker)) == [partition_of("one.test", PARTITIONS)]
            again = await delete(client, {"seeds": ["https://one.test/"]})
            assert again.json()["revision"] == 2, "what was broken off may be asked for again"
            refused = problem(await delete(client, {"seeds": ["https://two.test/"]}), 422, "invalid")
            assert "seed" in refused["detail"]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_all_but_the_specs_seeds_are_asked_for_at_every_owner(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with declared(tmp_path, server) as (broker, client):
            asked = await delete(client, {"all": True})
            assert (asked.status_code, asked.json()["revision"]) == (202, 1)
            commands = await told(broker)
            assert sorted(commands) == list(range(PARTITIONS))
            assert all(command.args["all"] for command in commands.values())
            kept = [kept for command in commands.values() for kept in command.args["places"]]
            assert sorted(kept) == sorted(map(place, SPEC["seeds"]))
            for partition, command in commands.items():
                assert {partition_of(host, PARTITIONS) for host, _ in command.args["places"]} <= {partition}

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_deletion_that_is_none_or_comes_too_late_changes_nothing(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with declared(tmp_path, server) as (broker, client):
            tag = (await client.get(DOCS)).headers["etag"]
            wrong: list[dict[str, Any]] = [
                {},
                {"seeds": []},
                {"seeds": ["http://a.test/"], "all": True},
                {"seeds": ["x:y"]},
            ]
            for body in wrong:
                problem(await delete(client, body), 422, "invalid")
            problem(await delete(client, {"seeds": ["https://one.test/"], "now": True}), 422, "invalid")
            long = {"seeds": ["https://one.test/" + "x" * 4000] * 1_000}
            problem(await delete(client, {"seeds": [*long["seeds"], *long["seeds"]]}), 413, "too-large")
            await client.patch(DOCS, json={"spec": {"weight": 2}})
            problem(await delete(client, {"seeds": ["https://one.test/"]}, **{"If-Match": tag}), 412, "lost-update")
            problem(await client.request("DELETE", "/v1/crawls/none/seeds", json={"all": True}), 404, "not-found")
            assert await told(broker) == {}
            assert (await client.get(DOCS)).json()["revision"] == 2

    asyncio.run(asyncio.wait_for(story(), 60))


async def all_told(broker: NatsBroker) -> list[tuple[int, Command]]:
    """Every command of every partition, in order."""
    found: list[tuple[int, Command]] = []
    for partition in range(PARTITIONS):
        for data in await stored(broker, Partition(partition), "outcome"):
            message = decode_report(data)
            assert isinstance(message, Command)
            found.append((partition, message))
    return found


def test_seeds_beyond_one_message_are_split_and_last_bears_the_id(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_places, "MESSAGE_BYTES", 200)
    many = [f"https://one.test/{number}" for number in range(30)]
    home = partition_of("one.test", PARTITIONS)

    async def story() -> None:
        async with declared(tmp_path, server) as (broker, client):
            asked = await delete(client, {"seeds": [f"{url}/uploaded" for url in many]})
            named = await all_told(broker)
            assert {partition for partition, _ in named} == {home}
            places = [tuple(each) for _, command in named for each in command.args["places"]]
            assert places == [tuple(place(f"{url}/uploaded")) for url in many]
            assert [command.id for _, command in named][-1] == asked.json()["command"]
            assert len({command.id for _, command in named}) == len(named) > 3

            put = await client.put(DOCS, json={"spec": {"seeds": many}})
            assert put.status_code == 200, put.text
            asked = await delete(client, {"all": True})
            every = [each for each in await all_told(broker) if each not in named]
            last = {partition: command.id for partition, command in every}
            assert last == dict.fromkeys(range(PARTITIONS), asked.json()["command"]), "each owner's last one is this"
            progress = (await client.get(f"/v1/commands/{asked.json()['command']}")).json()
            assert (progress["applied"], progress["partitions"]) == (0, PARTITIONS)
            here = [command.args for partition, command in every if partition == home]
            assert len(here) > 3
            kept = [tuple(each) for args in here for each in args["places"]]
            assert sorted(kept) == sorted(tuple(place(url)) for url in many)

    asyncio.run(asyncio.wait_for(story(), 60))


@given(st.lists(st.tuples(st.text("ab.", max_size=40), st.binary(min_size=16, max_size=16)), unique_by=lambda p: p[1]))
def test_each_fingerprint_is_in_one_commands_range_with_kept_ones(
    kept: list[tuple[str, bytes]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seed_places, "MESSAGE_BYTES", 100)
        parts: list[dict[str, Any]] = [dict(part) for part in seed_places.between(kept)]
    assert (parts[0]["above"], parts[-1]["upto"]) == (b"", GREATEST)
    for before, part in itertools.pairwise(parts):
        assert before["upto"] == part["above"]
    for part in parts:
        assert all(part["above"] < fingerprint <= part["upto"] for _, fingerprint in part["places"])
        assert len(part["places"]) <= 1 or seed_places.size_of(part["places"]) <= 100
    assert sorted(each for part in parts for each in part["places"]) == sorted(kept)
