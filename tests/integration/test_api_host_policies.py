"""/v1/host-policies over a real database: what is shown, what is refused, and how a change reaches the host's owner."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from api.leader.host_policy_publisher import HostPolicyPublisher
from shared.adapters.sql.catalog import host_policies as stored_policies
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log, host_policies
from shared.domain.errors import Permanent, Transient
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.domain.ops.host_policies import HostPolicySpec, limits_of
from shared.domain.reads.declared import Actor
from shared.domain.web.url import partition_of
from shared.wire.messages import Command, decode_report
from tests.support.api.rest_api import PARTITIONS, Api, api, problem
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server

Story = Callable[[Api, httpx.AsyncClient], Awaitable[None]]
AT = "/v1/host-policies"
HOST = f"{AT}/a.test"
BLOCK = {"reason": "asked by mail", "until": "2090-01-01T02:00:00.5+02:00"}


def as_operator(path: Path, story: Story) -> None:
    """Run the story with an API and an operator's client."""

    async def whole() -> None:
        async with api(path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            await story(opened, client)

    asyncio.run(whole())


def declared(body: dict[str, Any]) -> dict[str, Any]:
    """Return what was put, as the answer shows it."""
    block = {name: value for name, value in (body["block"] or {}).items() if value is not None}
    shown = {"delay_s": body["delay_s"], "block": block or None, "slots": body["slots"]}
    return {name: value for name, value in shown.items() if value is not None}


@pytest.mark.parametrize(
    ("put", "effective"),
    [
        ({}, {"delay_s": 0.0, "blocked": False, "slots": None}),
        ({"delay_s": 0}, {"delay_s": 0.0, "blocked": False, "slots": None}),
        ({"delay_s": 0.0001}, {"delay_s": 0.001, "blocked": False, "slots": None}),
        ({"delay_s": 86_400, "slots": 64}, {"delay_s": 86_400.0, "blocked": False, "slots": 64}),
        ({"block": BLOCK, "slots": 1}, {"delay_s": 0.0, "blocked": True, "slots": 1}),
        ({"block": {"reason": "for good"}}, {"delay_s": 0.0, "blocked": True, "slots": None}),
        (
            {"block": {"reason": "é", "until": "9999-12-31T23:59:59-14:00"}},
            {"delay_s": 0.0, "blocked": True, "slots": None},
        ),
    ],
)
def test_policy_is_shown_exactly_as_put(tmp_path: Path, put: dict[str, Any], effective: dict[str, Any]) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        made = await client.put(f"{AT}/A.Test", json=put)
        assert (made.status_code, made.headers["location"]) == (201, HOST)
        shown = await client.get(HOST)
        assert (shown.json(), shown.headers["etag"]) == (made.json(), made.headers["etag"])
        assert declared(shown.json()) == put
        assert (shown.json()["host"], shown.json()["effective"]) == ("a.test", effective)
        same = await client.put(HOST, json=declared(shown.json()), headers={"If-Match": shown.headers["etag"]})
        assert (same.status_code, same.json(), same.headers["etag"]) == (200, made.json(), made.headers["etag"])
        assert (await client.get(HOST, headers={"If-None-Match": made.headers["etag"]})).status_code == 304

    as_operator(tmp_path, story)


def test_change_needs_the_version_that_was_read_and_is_audited(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        first = await client.put(HOST, json={"delay_s": 2})
        second = await client.put(HOST, json={"slots": 3}, headers={"If-Match": first.headers["etag"]})
        assert (second.status_code, declared(second.json())) == (200, {"slots": 3}), "a PUT replaces the whole policy"
        stale = {"If-Match": first.headers["etag"]}
        problem(await client.put(HOST, json={"delay_s": 2}, headers=stale), 412, "lost-update")
        problem(await client.delete(HOST, headers=stale), 412, "lost-update")
        problem(await client.put(f"{AT}/b.test", json={"delay_s": 2}, headers=stale), 412, "lost-update")
        ended = await client.delete(HOST, headers={"If-Match": second.headers["etag"]})
        commands = [each["command"] for each in (first.json(), second.json(), ended.json())]
        assert (ended.status_code, len(set(commands))) == (202, 3)
        for command in commands:
            shown = (await client.get(f"/v1/commands/{command}")).json()
            assert (shown["kind"], shown["applied"], shown["partitions"]) == ("host_policy", 0, 1)
        for answer in (await client.get(HOST), await client.delete(HOST)):
            problem(answer, 404, "not-found")
        query = select(audit_log).where(audit_log.c.target == "a.test").order_by(audit_log.c.id)
        rows = await opened.threads.read(lambda c: c.execute(query).all())
        assert [(row.action, row.before, row.after) for row in rows] == [
            ("host_policy.create", None, '{"delay_s":2.0}'),
            ("host_policy.replace", '{"delay_s":2.0}', '{"slots":3}'),
            ("host_policy.delete", '{"slots":3}', None),
        ]

    as_operator(tmp_path, story)


def test_of_two_clients_that_create_one_policy_the_second_is_refused(tmp_path: Path) -> None:
    new = {"If-None-Match": "*"}

    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        bodies = ({"delay_s": 2}, {"block": BLOCK}, {"slots": 7})
        answers = await asyncio.gather(*(client.put(f"{AT}/A.test", json=each, headers=new) for each in bodies))
        assert sorted(each.status_code for each in answers) == [201, 412, 412]
        [made] = [each for each in answers if each.status_code == 201]
        for answer in answers:
            if answer is not made:
                problem(answer, 412, "lost-update")
                assert answer.headers["etag"] == made.headers["etag"]
        assert (await client.get(HOST)).json() == made.json()
        problem(await client.put(HOST, json=declared(made.json()), headers=new), 412, "lost-update")
        rows = await opened.threads.read(lambda c: c.execute(select(audit_log.c.action)).scalars().all())
        assert [row for row in rows if row.startswith("host_policy")] == ["host_policy.create"]
        await client.delete(HOST)
        assert (await client.put(HOST, json={"slots": 7}, headers=new)).status_code == 201

    as_operator(tmp_path, story)


@pytest.mark.parametrize("host", ["a.test:443", "A.Test:80"])
def test_policy_of_a_default_port_is_refused_with_the_host(tmp_path: Path, host: str) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        for answer in (
            await client.put(f"{AT}/{host}", json={"slots": 1}),
            await client.post(f"{AT}/{host}/plan", json={"slots": 1}),
        ):
            [error] = problem(answer, 422, "invalid")["errors"]
            assert error["path"] == "host"
            assert "has the default port" in error["message"]
            assert "write a.test:" in error["hint"]

    as_operator(tmp_path, story)


def test_policy_of_port_443_of_an_earlier_version_is_read_and_deleted(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        spec = HostPolicySpec(slots=1)
        await SqlDesired(opened.threads).put_host_policy(
            "a.test:443", Partition(0), spec, limits_of(spec, None), expected=None, actor=Actor("1", "x", "1"), now_ms=0
        )
        at = f"{HOST}:443"
        assert (await client.get(at)).json()["slots"] == 1
        assert [each["host"] for each in (await client.get(AT)).json()["items"]] == ["a.test:443"]
        assert (await client.delete(at)).status_code == 202
        problem(await client.get(at), 404, "not-found")

    as_operator(tmp_path, story)


def test_plan_says_what_a_put_would_do_and_changes_nothing(tmp_path: Path) -> None:
    plan, ended = f"{AT}/A.Test/plan", {"reason": "x", "until": "2020-01-01T00:00:00Z"}

    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        expected = {"action": "create", "changes": [], "warnings": []}
        assert (await client.post(plan, json={"slots": 3})).json() == expected
        problem(await client.get(HOST), 404, "not-found")
        made = await client.put(HOST, json={"block": BLOCK, "slots": 3})
        planned = (await client.post(plan, json={"block": {"reason": "other"}, "slots": 3, "delay_s": 0.5})).json()
        assert planned["action"] == "update"
        assert planned["changes"] == [
            {"path": "block.reason", "before": BLOCK["reason"], "after": "other"},
            {"path": "block.until", "before": BLOCK["until"], "after": None},
            {"path": "delay_s", "before": None, "after": 0.5},
        ]
        assert (await client.post(plan, json=declared(made.json()))).json()["action"] == "none"
        for url in (plan, "/v1/host-policies/b.test/plan"):
            [wrong] = problem(await client.post(url, json={"block": ended}), 422, "invalid")["errors"]
            assert wrong["path"] == "block.until"
        [wrong] = problem(await client.post(f"{AT}/*.test/plan", json={}), 422, "invalid")["errors"]
        assert (wrong["path"], wrong["message"]) == ("host", "is not a host")
        assert (await client.get(HOST)).json() == made.json()

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("host", "body", "field", "words"),
    [
        ("a.test/x", {}, "", ""),
        ("*.test", {}, "host", "is not a host"),
        ("user@a.test", {}, "host", "is not a host"),
        ("a.test", {"delay_s": -1}, "delay_s", ""),
        ("a.test", {"delay_s": 86_401}, "delay_s", ""),
        ("a.test", {"delay_s": "1"}, "delay_s", ""),
        ("a.test", {"slots": 0}, "slots", ""),
        ("a.test", {"slots": 65}, "slots", ""),
        ("a.test", {"slots": 1.5}, "slots", ""),
        ("a.test", {"block": {}}, "block.reason", ""),
        ("a.test", {"block": {"reason": ""}}, "block.reason", ""),
        ("a.test", {"block": {"reason": "a\nb"}}, "block.reason", ""),
        ("a.test", {"block": {"reason": "x" * 501}}, "block.reason", ""),
        ("a.test", {"block": {"reason": "x", "until": 7}}, "block.until", ""),
        ("a.test", {"block": {"reason": "x", "until": "2030-01-01T00:00:00"}}, "block.until", "time zone"),
        ("a.test", {"block": {"reason": "x", "until": "2030-13-01T00:00:00Z"}}, "block.until", ""),
        ("a.test", {"block": {"reason": "x", "until": "2020-01-01T00:00:00Z"}}, "block.until", "is in the past"),
        ("a.test", {"crawl_delay": 1}, "crawl_delay", ""),
    ],
)
def test_wrong_policy_is_refused_with_its_field(
    tmp_path: Path, host: str, body: dict[str, Any], field: str, words: str
) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        answer = await client.put(f"{AT}/{host}", json=body)
        if not field:
            assert answer.status_code == 404
            return
        [wrong] = problem(answer, 422, "invalid")["errors"]
        assert wrong["path"] == field
        assert words in wrong["message"]
        assert (await client.get(AT)).json()["items"] == []

    as_operator(tmp_path, story)


def test_policy_whose_block_has_ended_can_be_put_again(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        ended = {"reason": "x", "until": "2020-01-01T00:00:00Z"}
        await client.put(HOST, json={"block": BLOCK})
        text = '{"block":{"reason":"x","until":"2020-01-01T00:00:00Z"}}'
        await opened.threads.write(
            lambda c: c.execute(host_policies.update().values(spec=text, blocked_until_ms=1_577_836_800_000)).close()
        )
        assert not (await client.get(HOST)).json()["effective"]["blocked"]
        changed = await client.put(HOST, json={"block": ended, "delay_s": 1})
        assert (changed.status_code, changed.json()["block"]) == (200, ended)
        problem(await client.put(HOST, json={"block": {**ended, "reason": "y"}}), 422, "invalid")

    as_operator(tmp_path, story)


def test_list_is_paged_by_host(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        hosts = [f"h{n}.test" for n in range(5)]
        for host in reversed(hosts):
            assert (await client.put(f"{AT}/{host}", json={"delay_s": 1})).status_code == 201
        found: list[str] = []
        url: str | None = f"{AT}?limit=2"
        while url is not None:
            page = await client.get(url)
            found += [each["host"] for each in page.json()["items"]]
            url = page.links["next"]["url"] if "next" in page.links else None
        assert found == hosts

    as_operator(tmp_path, story)


def test_policies_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_policies, "MAX_HOST_POLICIES", 1)

    async def story(_: Api, client: httpx.AsyncClient) -> None:
        await client.put(HOST, json={})
        said = problem(await client.put(f"{AT}/b.test", json={}), 409, "full")
        assert said["hint"] == "delete host policies that are no longer needed"
        assert (await client.put(HOST, json={"slots": 2})).status_code == 200

    as_operator(tmp_path, story)


@pytest.mark.parametrize(("role", "writes"), [(Role.VIEWER, 403), (Role.OPERATOR, 201), (Role.ADMIN, 201)])
def test_viewer_reads_policies_and_writes_none(tmp_path: Path, role: Role, writes: int) -> None:
    async def story() -> None:
        async with api(tmp_path / "orb.db") as opened, opened.as_role(role) as client:
            assert (await client.put(HOST, json={})).status_code == writes
            assert (await client.get(AT)).status_code == 200
            assert (await opened.anonymous.get(AT)).status_code == 401

    asyncio.run(story())


def test_earlier_routes_of_blocks_and_delays_are_gone(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        for method, at in (("PUT", "block"), ("DELETE", "block"), ("PUT", "delay")):
            assert (await client.request(method, f"/v1/hosts/a.test/{at}", json={})).status_code == 404

    as_operator(tmp_path, story)


def test_commands_reach_the_owner_of_the_host_once_each(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with (
            server.broker() as broker,
            api(tmp_path / "orb.db", broker) as opened,
            opened.as_role(Role.OPERATOR) as client,
        ):
            made = [
                (await client.put(HOST, json={"delay_s": 1})).json()["command"],
                (await client.put(HOST, json={"block": BLOCK})).json()["command"],
                (await client.delete(HOST)).json()["command"],
            ]
            lifted = (await client.post("/v1/hosts/A.test/unblock")).json()["command"]
            publisher = HostPolicyPublisher(SqlDesired(opened.threads), broker)
            await publisher.once()
            await publisher.once()
            reader = await broker.read_reports(partition_of("a.test", PARTITIONS), "outcome", 0)
            reports = [decode_report(each.data) for each in await reader.read(10, 5.0)]
            await reader.close()
            assert [
                (each.id, each.kind, each.args) if isinstance(each, Command) else each for each in reports
            ] == [
                (lifted, "unblock_host", {"host": "a.test"}),
                *((command, "host_policy", {"host": "a.test"}) for command in made),
            ]  # fmt: skip

    asyncio.run(story())


@pytest.mark.parametrize("error", [Transient("full"), Permanent("no such stream")], ids=["for_now", "for_good"])
def test_command_that_the_broker_refuses_waits_and_holds_up_no_other(
    tmp_path: Path, error: Transient | Permanent
) -> None:
    class Half:
        """A broker that refuses the reports of one partition."""

        def __init__(self) -> None:
            self.refused = partition_of("a.test", PARTITIONS)
            self.published: list[str] = []

        async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> None:
            if partition == self.refused:
                raise error
            self.published.append(message_id)

    other = next(f"h{n}.test" for n in range(99) if partition_of(f"h{n}.test", 4) != partition_of("a.test", 4))

    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        first = (await client.put(HOST, json={"delay_s": 1})).json()["command"]
        second = (await client.put(f"{AT}/{other}", json={"delay_s": 1})).json()["command"]
        broker = Half()
        publisher = HostPolicyPublisher(SqlDesired(opened.threads), broker)  # type: ignore[arg-type]  # in part a broker
        assert await publisher.once() == {first: error}
        assert broker.published == [second]
        broker.refused = Partition(-1)
        assert await publisher.once() == {}
        assert broker.published == [second, first]

    as_operator(tmp_path, story)
