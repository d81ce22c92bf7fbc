"""/v1/crawls/{name}/seed-sets over a real database: what is shown, what is refused, and what reaches the owners."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.crawls import seed_places
from api.leader.seed_set_publisher import SeedSetPublisher
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.domain.errors import Transient
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.domain.ops.seed_sets import MAX_SET_SEEDS
from shared.domain.web.url import partition_of
from shared.wire.messages import Command, Discoveries, decode_discoveries, decode_report
from tests.support.api.rest_api import PARTITIONS, Api, api, problem
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

Story = Callable[[Api, httpx.AsyncClient], Awaitable[None]]
AT = "/v1/crawls/docs/seed-sets"
ONE = f"{AT}/one"
SPEC = {"seeds": ["http://a.test/"], "scope": {"schemes": ["http"], "max_url_length": 60}}


def as_operator(path: Path, story: Story) -> None:
    """Run the story with an API, a crawl and an operator's client."""

    async def whole() -> None:
        async with api(path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            made = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC, "start": False})
            assert made.status_code == 201, made.text
            await story(opened, client)

    asyncio.run(whole())


@pytest.mark.parametrize(
    "seeds",
    [
        [],
        ["http://A.test:80/x#y", {"url": "HTTP://b.test", "priority": -3}],
        [{"source": "é\u2028", "labels": {"team": "\u00fc"}, "url": "http://c.test/\u0000%zz", "priority": 1.0}],
        ["http://a.test/", "http://a.test"],
    ],
)
def test_set_is_shown_exactly_as_put(tmp_path: Path, seeds: list[Any]) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        made = await client.put(ONE, json={"seeds": seeds}, headers={"If-None-Match": "*"})
        assert (made.status_code, made.headers["location"]) == (201, ONE), made.text
        shown = await client.get(ONE)
        assert (shown.json(), shown.headers["etag"]) == (made.json(), made.headers["etag"])
        assert (shown.json()["seeds"], shown.json()["count"]) == (seeds, len(seeds))
        same = await client.put(ONE, json={"seeds": shown.json()["seeds"]}, headers={"If-Match": made.headers["etag"]})
        assert (same.status_code, same.json(), same.headers["etag"]) == (200, made.json(), made.headers["etag"])
        assert (await client.get(ONE, headers={"If-None-Match": made.headers["etag"]})).status_code == 304
        (listed,) = (await client.get(AT)).json()["items"]
        assert listed == {name: value for name, value in shown.json().items() if name != "seeds"}

    as_operator(tmp_path, story)


def test_change_needs_the_version_that_was_read(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        first = await client.put(ONE, json={"seeds": ["http://a.test/1"]})
        second = await client.put(ONE, json={"seeds": []}, headers={"If-Match": first.headers["etag"]})
        assert (second.status_code, second.json()["seeds"]) == (200, [])
        stale = {"If-Match": first.headers["etag"]}
        problem(await client.put(ONE, json={"seeds": ["http://a.test/2"]}, headers=stale), 412, "lost-update")
        problem(await client.delete(ONE, headers=stale), 412, "lost-update")
        problem(await client.put(ONE, json={"seeds": []}, headers={"If-None-Match": "*"}), 412, "lost-update")
        problem(await client.put(f"{AT}/two", json={"seeds": []}, headers=stale), 412, "lost-update")
        ended = await client.delete(ONE, headers={"If-Match": second.headers["etag"]})
        commands = [each["command"] for each in (first.json(), second.json(), ended.json())]
        assert (ended.status_code, len(set(commands))) == (202, 3)
        for command in commands:
            progress = (await client.get(f"/v1/commands/{command}")).json()
            assert (progress["kind"], progress["applied"]) == ("seed_set", 0)
        for missing in (ONE, f"{AT}/two", "/v1/crawls/other/seed-sets/one"):
            problem(await client.get(missing), 404, "not-found")
            problem(await client.delete(missing), 404, "not-found")
        problem(await client.put("/v1/crawls/other/seed-sets/one", json={"seeds": []}), 404, "not-found")

    as_operator(tmp_path, story)


def test_all_wrong_seeds_are_named_at_once_and_nothing_changes(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        kept = await client.put(ONE, json={"seeds": ["http://a.test/"]})
        good = [f"http://a.test/{n}" for n in range(30)]
        bad: list[Any] = [
            "a.test",
            {"url": "ftp://a.test/"},
            {"url": "http://a.test/", "urls": 1},
            7,
            {"url": "http://a.test/", "labels": {"No": "x"}},
            {"url": "http://user:word@a.test/"},
            {"priority": 1},
            None,
        ]
        answer = problem(await client.put(ONE, json={"seeds": [*good, *bad, *(["http://"] * 40)]}), 422, "invalid")
        places = {each["path"].partition(".")[0] for each in answer["errors"]}
        assert places == {f"seeds[{n}]" for n in range(30, 30 + len(bad) + 40)}
        scoped = ["https://a.test/", "http://a.test/" + "x" * 60, "http://a.test/fine"]
        answer = problem(await client.put(ONE, json={"seeds": scoped}), 422, "invalid")
        assert [each["path"] for each in answer["errors"]] == ["seeds[0].url", "seeds[1].url"]
        for body in ({}, {"seeds": "http://a.test/"}, {"seeds": [], "more": 1}, []):
            problem(await client.put(ONE, json=body), 422, "invalid")
        many = [f"http://a.test/{n}" for n in range(MAX_SET_SEEDS + 1)]
        answer = problem(await client.put(ONE, json={"seeds": many}), 422, "invalid")
        assert [each["path"] for each in answer["errors"]] == ["seeds"]
        assert (await client.get(ONE)).json() == kept.json()

    as_operator(tmp_path, story)


def test_change_reaches_its_owners_in_order_and_as_one(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader dies between two messages. The next one sends the same messages, and none twice in the stream."""
    monkeypatch.setattr(seed_places, "MESSAGE_BYTES", 100)

    async def whole() -> None:
        async with (
            server.client() as broker,
            api(tmp_path / "orb.db", broker=broker) as opened,
            opened.as_role(Role.OPERATOR) as client,
        ):
            await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC, "start": False})
            await broker.declare(["default"])
            first = [f"http://{host}.test/{n}" for host in "ab" for n in range(5)]
            made = await client.put(ONE, json={"seeds": first})
            left = await client.put(ONE, json={"seeds": first[5:]})
            desired = SqlDesired(opened.store.executor)
            publisher = SeedSetPublisher(desired, broker, PARTITIONS, lambda: True)
            real, sent = broker.publish_report, 0

            async def dies(*args: Any) -> None:
                nonlocal sent
                sent += 1
                if sent == 3:
                    raise Transient("killed", retry_in=0.0)
                await real(*args)

            monkeypatch.setattr(broker, "publish_report", dies)
            with pytest.raises(Transient):
                await publisher.once()
            assert len(await desired.seed_set_commands(0)) == 2, "the later change waits for the refused one"
            monkeypatch.setattr(broker, "publish_report", real)
            await publisher.once()
            assert await desired.seed_set_commands(0) == []

            home = Partition(partition_of("a.test", PARTITIONS))
            found: list[Discoveries] = []
            async with broker.read_reports(home, "discovery", 0) as reports:
                for report in await reports.pull(100, 1.0):
                    found.append(decode_discoveries(report.data))
            assert [(each.of_set, each.n) for each in found if each.producer == "seeds-set-1"] == [(True, 1)]
            ids: list[tuple[str, int]] = []
            async with broker.read_reports(home, "outcome", 0) as reports:
                for report in await reports.pull(100, 1.0):
                    command = decode_report(report.data)
                    assert isinstance(command, Command)
                    ids.append((command.id, len(command.args["places"])))
            one, two = made.json()["command"], left.json()["command"]
            assert (ids[0], ids[-1][0]) == ((one, 0), two)
            assert (len(ids) > 2, sum(n for _, n in ids)) == (True, 5)

    asyncio.run(asyncio.wait_for(whole(), 120))
