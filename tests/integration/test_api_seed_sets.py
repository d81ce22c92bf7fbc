"""/v1/crawls/{name}/seed-sets over a real database: what is shown, what is refused, and what reaches the owners."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.crawls import seed_places
from api.leader.seed_set_publisher import SeedSetPublisher
from shared.adapters.sql.catalog import seed_sets as stored_sets
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.domain.errors import Transient
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.domain.ops.seed_sets import MAX_SET_SEEDS
from shared.domain.web.url import partition_of
from shared.ports.broker import Broker, ReportKind
from shared.wire.messages import Command, decode_discoveries, decode_report
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
        [{"source": "é\u2028", "labels": {"team": "\u00fc"}, "url": "http://c.test/\u0000%zz", "priority": 1}],
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
        late = [await client.put(ONE, json={"seeds": ["http://a.test/2"]}, headers=stale)]
        late.append(await client.delete(ONE, headers=stale))
        for refused in late:
            problem(refused, 412, "lost-update")
            assert refused.headers["etag"] == second.headers["etag"], "the set's, not the crawl's"
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
        nowhere = "/v1/crawls/other/seed-sets/one"
        problem(await client.put(nowhere, json={"seeds": []}), 404, "not-found")
        problem(await client.put(nowhere, json={"seeds": [1]}, headers={"If-Match": "*"}), 422, "invalid")

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
        bodies: list[Any] = [{}, {"seeds": "http://a.test/"}, {"seeds": [], "more": 1}, []]
        for body in bodies:
            problem(await client.put(ONE, json=body), 422, "invalid")
        many = [f"http://a.test/{n}" for n in range(MAX_SET_SEEDS + 1)]
        answer = problem(await client.put(ONE, json={"seeds": many}), 422, "invalid")
        assert [each["path"] for each in answer["errors"]] == ["seeds"]
        assert (await client.get(ONE)).json() == kept.json()

    as_operator(tmp_path, story)


class _Dying:
    """A broker whose publisher dies at its third message."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sent = 0

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        self._send()
        return await self._broker.publish_report(partition, kind, data, message_id)

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        self._send()
        return await self._broker.publish_command(partition, data, message_id)

    def _send(self) -> None:
        self._sent += 1
        if self._sent == 3:
            raise Transient("killed", retry_in=0.0)


def test_change_reaches_its_owners_in_order_and_as_one(
    tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader dies between two messages. The next one sends the same messages, each once in the stream."""
    monkeypatch.setattr(seed_places, "MESSAGE_BYTES", 100)
    home = partition_of("a.test", PARTITIONS)

    async def story() -> None:
        async with (
            server.broker() as broker,
            api(tmp_path / "orb.db", broker) as opened,
            opened.as_role(Role.OPERATOR) as client,
        ):
            await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC, "start": False})
            first = [f"http://{host}.test/{n}" for host in "abcdef" for n in range(5)]
            made = (await client.put(ONE, json={"seeds": first})).json()["command"]
            left = (await client.put(ONE, json={"seeds": first[5:]})).json()["command"]
            desired = SqlDesired(opened.threads)
            killed = SeedSetPublisher(desired, _Dying(broker), PARTITIONS)  # type: ignore[arg-type]  # in part a broker
            assert [*await killed.once()] == [made]
            assert len(await desired.seed_set_commands(0)) == 2, "the later change waits for the refused one"
            for _ in range(2):
                await SeedSetPublisher(desired, broker, PARTITIONS).once()
            assert await desired.seed_set_commands(0) == []

            reader = await broker.read_reports(home, "discovery", 0)
            found = [decode_discoveries(each.data) for each in await reader.read(10, 5.0)]
            await reader.close()
            assert [(each.producer, each.n, each.of_set) for each in found] == [("seeds-set-1", 1, True)]
            reader = await broker.read_reports(home, "outcome", 0)
            commands = [decode_report(each.data) for each in await reader.read(50, 5.0)]
            await reader.close()
            ids = [(each.id, len(each.args["places"])) for each in commands if isinstance(each, Command)]
            assert (ids[0], ids[-1][0], len(ids) > 2) == ((made, 0), left, True)
            assert sum(count for _, count in ids) == 5

    asyncio.run(asyncio.wait_for(story(), 120))


def test_list_is_paged_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_sets, "MAX_SEED_SETS", 5)

    async def story(_: Api, client: httpx.AsyncClient) -> None:
        names = [f"s{n}" for n in range(5)]
        for name in reversed(names):
            assert (await client.put(f"{AT}/{name}", json={"seeds": []})).status_code == 201
        said = problem(await client.put(f"{AT}/s9", json={"seeds": []}), 409, "full")
        assert said["hint"] == "delete seed sets of the crawl that are no longer needed"
        found: list[str] = []
        url: str | None = f"{AT}?limit=2"
        while url is not None:
            page = await client.get(url)
            found += [each["name"] for each in page.json()["items"]]
            url = page.links["next"]["url"] if "next" in page.links else None
        assert found == names
        problem(await client.put(f"{AT}/No", json={"seeds": []}), 422, "invalid")

    as_operator(tmp_path, story)


def test_plan_says_what_a_put_would_do_and_changes_nothing(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        none = {"action": "create", "changes": [], "warnings": []}
        async with opened.as_role(Role.VIEWER) as viewer:
            assert (await viewer.post(f"{ONE}/plan", json={"seeds": ["http://a.test/"]})).json() == none
            problem(await viewer.get(ONE), 404, "not-found")
            made = await client.put(ONE, json={"seeds": ["http://a.test/", {"url": "http://b.test/", "priority": 1}]})
            same = {"seeds": made.json()["seeds"]}
            unchanged = {"action": "none", "changes": [], "warnings": []}
            assert (await viewer.post(f"{ONE}/plan", json=same)).json() == unchanged
            planned = (await viewer.post(f"{ONE}/plan", json={"seeds": []})).json()
            assert planned["action"] == "update"
            assert planned["changes"] == [{"path": "seeds", "before": same["seeds"], "after": []}]
            assert (await viewer.get(ONE)).json() == made.json()
            other = await viewer.post("/v1/crawls/other/seed-sets/one/plan", json={"seeds": ["https://a.test/"]})
            assert other.json() == none | {"warnings": ["there is no crawl 'other': create it before the seed set"]}

    as_operator(tmp_path, story)


@pytest.mark.parametrize("crawl", ["docs", "none"])
@pytest.mark.parametrize(
    "body",
    [
        {"seeds": ["http://a.test/", "ftp://b.test/", {"url": 3}, "//"]},
        {"seeds": [{"url": "http://a.test/", "prio": 1}]},
        {"seeds": ["http://a.test/"], "name": "one"},
        {"seeds": ["http://a.test/" + "x" * 9000]},
        {},
    ],
)
def test_plan_refuses_what_a_put_refuses_in_the_same_words(tmp_path: Path, crawl: str, body: dict[str, Any]) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        at = f"/v1/crawls/{crawl}/seed-sets/one"
        put = problem(await client.put(at, json=body), 422, "invalid")
        plan = problem(await client.post(f"{at}/plan", json=body), 422, "invalid")
        assert plan["errors"] == put["errors"] != []

    as_operator(tmp_path, story)
