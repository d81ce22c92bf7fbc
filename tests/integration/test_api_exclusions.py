"""/v1/exclusions over a real database: what is refused, who may change them, and what a change leaves behind."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from shared.adapters.sql.catalog import exclusions as stored_exclusions
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log, exclusions
from shared.domain.crawl.exclusions import MAX_TARGET_CHARS
from shared.domain.ops.access import Role
from shared.domain.ops.exclusions import ExclusionTerms
from shared.domain.reads.declared import Actor
from tests.support.api.rest_api import PARTITIONS, Api, api, problem

Story = Callable[[Api, httpx.AsyncClient], Awaitable[None]]
AT = "/v1/exclusions"
ASKED: dict[str, Any] = {"target": "Example.ORG.", "reason": "asked by mail", "requested_by": "webmaster@example.org"}
SOON = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")


def as_operator(path: Path, story: Story) -> None:
    """Run the story with an API and an operator's client."""

    async def whole() -> None:
        async with api(path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            await story(opened, client)

    asyncio.run(whole())


async def created(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    response = await client.post(AT, json=ASKED | more)
    assert response.status_code == 201, response.text
    return response


def test_exclusion_is_shown_in_canonical_form_with_its_command(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        made = await created(client, until=SOON)
        body = made.json()
        assert made.headers["location"] == f"{AT}/{body['id']}"
        assert (body["target"], body["kind"], body["active"]) == ("example.org", "host", True)
        assert (body["reason"], body["requested_by"]) == (ASKED["reason"], ASKED["requested_by"])
        shown = await client.get(f"{AT}/{body['id']}")
        assert (shown.json(), shown.headers["etag"]) == (body, made.headers["etag"])
        unchanged = await client.get(f"{AT}/{body['id']}", headers={"If-None-Match": shown.headers["etag"]})
        assert unchanged.status_code == 304
        command = (await client.get(f"/v1/commands/{body['command']}")).json()
        assert (command["kind"], command["applied"], command["partitions"]) == ("exclude", 0, 1)
        everywhere = (await created(client, target="192.0.2.0/24")).json()["command"]
        assert (await client.get(f"/v1/commands/{everywhere}")).json()["partitions"] == PARTITIONS

    as_operator(tmp_path, story)


def test_change_needs_the_version_that_was_read_and_is_audited(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        made = await created(client)
        at, terms = made.headers["location"], {"reason": "asked again", "withdraw": True}
        changed = await client.put(at, json=terms, headers={"If-Match": made.headers["etag"]})
        assert (changed.status_code, changed.json()["withdraw"], changed.json()["requested_by"]) == (200, True, "")
        assert changed.json()["command"] != made.json()["command"]
        problem(await client.put(at, json=terms, headers={"If-Match": made.headers["etag"]}), 412, "lost-update")
        same = await client.put(at, json=terms)
        assert same.headers["etag"] == changed.headers["etag"], "nothing differs, so nothing changes"
        problem(await client.delete(at, headers={"If-Match": made.headers["etag"]}), 412, "lost-update")
        assert (await client.delete(at, headers={"If-Match": changed.headers["etag"]})).status_code == 204
        for answer in (await client.get(at), await client.put(at, json=terms), await client.delete(at)):
            problem(answer, 404, "not-found")
        query = select(audit_log.c.action).where(audit_log.c.target == "example.org").order_by(audit_log.c.id)
        actions = await opened.threads.read(lambda c: c.execute(query).scalars().all())
        assert actions == ["exclusion.create", "exclusion.replace", "exclusion.delete"]

    as_operator(tmp_path, story)


def test_command_that_a_change_dropped_before_it_was_sent_is_404(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        async def statuses(*commands: str) -> list[int]:
            return [(await client.get(f"/v1/commands/{each}")).status_code for each in commands]

        first = (await created(client)).json()
        at = f"{AT}/{first['id']}"
        second = (await client.put(at, json={"reason": "asked again"})).json()
        assert await statuses(first["command"], second["command"]) == [404, 200]
        desired = SqlDesired(opened.threads)
        (stored,) = (await desired.exclusions_in_force(0)).to_command
        await desired.exclusion_commanded(stored.exclusion_id, stored.revision)
        third = (await client.put(at, json={"reason": "asked once more"})).json()
        assert await statuses(second["command"], third["command"]) == [200, 200], "the second was sent"
        assert (await client.delete(at)).status_code == 204
        assert await statuses(second["command"], third["command"]) == [200, 404]
        gone = problem(await client.get(f"/v1/commands/{third['command']}"), 404, "not-found")
        assert "a later change has replaced it before it was sent" in gone["detail"]

    as_operator(tmp_path, story)


def test_second_exclusion_of_a_target_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        made = (await created(client)).json()
        detail = problem(await client.post(AT, json=ASKED | {"target": "EXAMPLE.org"}), 409, "exists")["detail"]
        assert f"exclusion {made['id']} has the target example.org" in detail
        found = (await client.get(AT, params={"target": "Example.org."})).json()["items"]
        assert [each["id"] for each in found] == [made["id"]]
        await created(client, target="example.org:8080")  # another port is another target

    as_operator(tmp_path, story)


def test_repeated_create_with_its_key_makes_one(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        once = {"Idempotency-Key": "one"}
        first = await client.post(AT, json=ASKED, headers=once)
        assert (await client.post(AT, json=ASKED, headers=once)).json() == first.json()
        assert len((await client.get(AT)).json()["items"]) == 1
        assert (await client.delete(first.headers["Location"])).status_code == 204
        again = await client.post(AT, json=ASKED, headers=once)
        assert (again.status_code, again.json()) == (201, first.json()), "the first answer, though it is gone"
        assert (await client.get(AT)).json()["items"] == []

    as_operator(tmp_path, story)


def test_list_is_paged_in_order_of_creation(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        targets = [f"h{n}.example.org" for n in range(5)]
        for target in targets:
            await created(client, target=target)
        found: list[str] = []
        url: str | None = f"{AT}?limit=2"
        while url is not None:
            page = await client.get(url)
            found += [each["target"] for each in page.json()["items"]]
            url = page.links["next"]["url"] if "next" in page.links else None
        assert found == targets

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "path", "says"),
    [
        ({"target": "https://user:secret@example.org/"}, "target", "user and password"),
        ({"target": "*.example.org"}, "target", "is not a host"),
        ({"target": "192.0.2.1/24"}, "target", "host bits set"),
        ({"target": "a" * 3_000}, "target", "2048"),
        ({"target": "https://example.org/" + "文" * 226}, "target", "has 2054 characters in canonical form"),
        ({"target": "example.org:443"}, "target", "has the default port"),
        ({"target": "example.org:80"}, "target", "has the default port"),
        ({"target": "a\x00b"}, "target", ""),
        ({"reason": ""}, "reason", ""),
        ({"until": "2020-01-01T00:00:00Z"}, "until", "in the past"),
        ({"until": "2040-01-01T00:00:00"}, "until", "time zone"),
        ({"withdraw": "yes"}, "withdraw", ""),
        ({"unti": SOON}, "unti", ""),
    ],
)
def test_wrong_field_is_named_with_the_reason(tmp_path: Path, body: dict[str, Any], path: str, says: str) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        (error,) = problem(await client.post(AT, json=ASKED | body), 422, "invalid")["errors"]
        assert error["path"] == path
        assert says in error["message"]
        problem(await client.post(f"{AT}/plan", json=ASKED | body), 422, "invalid")
        assert (await client.get(AT)).json()["items"] == []

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("target", "kind", "put"),
    [
        ("https://example.org/" + "%E6%96%87" * 226, "url_prefix", 200),
        ("regex:.*", "host", 422),
        ("a.test:443", "host", 200),
    ],
)
def test_row_of_another_version_is_listed_and_deleted(tmp_path: Path, target: str, kind: str, put: int) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        await created(client)
        by = Actor("1", "earlier", "1")
        await SqlDesired(opened.threads).add_exclusion(target, ExclusionTerms("x"), 1, actor=by, now_ms=0)
        listed = (await client.get(AT)).json()["items"]
        assert [(each["target"], each["kind"]) for each in listed] == [("example.org", "host"), (target, kind)]
        at = f"{AT}/{listed[1]['id']}"
        assert (await client.get(at)).json() == listed[1]
        if put == 200 and len(target) <= MAX_TARGET_CHARS:
            assert (await client.get(AT, params={"target": target})).json()["items"] == [listed[1]]
        assert (await client.put(at, json={"reason": "y"})).status_code == put
        assert (await client.delete(at)).status_code == 204
        assert len((await client.get(AT)).json()["items"]) == 1

    as_operator(tmp_path, story)


def test_viewers_read_and_only_operators_change(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        at = (await created(client)).headers["location"]
        async with opened.as_role(Role.VIEWER) as viewer:
            assert (await viewer.get(AT)).status_code == (await viewer.get(at)).status_code == 200
            for answer in (
                await viewer.post(AT, json=ASKED),
                await viewer.put(at, json={"reason": "x"}),
                await viewer.delete(at),
            ):
                problem(answer, 403, "forbidden")

    as_operator(tmp_path, story)


def test_number_and_bytes_of_exclusions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        await created(client, target="a.test")
        monkeypatch.setattr(stored_exclusions, "MAX_EXCLUSIONS_BYTES", 11)
        problem(await client.post(AT, json=ASKED | {"target": "bb.test"}), 409, "full")
        monkeypatch.setattr(stored_exclusions, "MAX_EXCLUSIONS", 1)
        said = problem(await client.post(AT, json=ASKED | {"target": "b.tt"}), 409, "full")
        assert said["hint"] == "delete exclusions that have ended"

    as_operator(tmp_path, story)


def test_list_in_force_leaves_out_what_has_ended(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        ending = (await created(client, target="a.test", until=SOON)).json()
        await created(client, target="b.test")
        desired = SqlDesired(opened.threads)
        ends_ms = int(datetime.fromisoformat(ending["until"]).timestamp() * 1000)
        before, after = await desired.exclusions_in_force(ends_ms - 1), await desired.exclusions_in_force(ends_ms)
        assert (before.targets, before.ends_ms) == (["a.test", "b.test"], ends_ms)
        assert (after.targets, after.ends_ms) == (["b.test"], None)
        assert [each.target for each in after.to_command] == ["a.test", "b.test"]
        await desired.exclusion_commanded(ending["id"], 1)
        assert [each.target for each in (await desired.exclusions_in_force(0)).to_command] == ["b.test"]

    as_operator(tmp_path, story)


def test_plan_says_what_would_change_and_changes_nothing(tmp_path: Path) -> None:
    plan = f"{AT}/plan"

    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        assert (await client.post(plan, json=ASKED)).json() == {"action": "create", "changes": [], "warnings": []}
        assert (await client.get(AT)).json()["items"] == []
        made = (await created(client, until="2090-01-01T02:00:00+02:00")).json()
        same = ASKED | {"target": "EXAMPLE.org", "until": "2090-01-01T00:00:00Z"}
        assert (await client.post(plan, json=same)).json()["action"] == "none"
        planned = (await client.post(plan, json=same | {"reason": "again", "withdraw": True, "until": None})).json()
        assert (planned["action"], planned["changes"]) == (
            "update",
            [
                {"path": "reason", "before": "asked by mail", "after": "again"},
                {"path": "until", "before": "2090-01-01T00:00:00Z", "after": None},
                {"path": "withdraw", "before": False, "after": True},
            ],
        )
        for wrong in ({"until": "2020-01-01T00:00:00Z"}, {"target": "*.test"}, {"reason": ""}):
            [error] = problem(await client.post(plan, json=ASKED | wrong), 422, "invalid")["errors"]
            assert [error["path"]] == list(wrong)
        assert (await client.get(f"{AT}/{made['id']}")).json() == made

    as_operator(tmp_path, story)


def test_exclusion_that_has_ended_can_be_put_again_as_it_is(tmp_path: Path) -> None:
    ended = {"reason": "x", "until": "2020-01-01T00:00:00Z"}

    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        at = f"{AT}/{(await created(client, reason='x', requested_by='')).json()['id']}"
        past = update(exclusions).values(until_ms=1_577_836_800_000)
        await opened.threads.write(lambda connection: connection.execute(past))
        shown = (await client.get(at)).json()
        assert (shown["active"], shown["until"]) == (False, ended["until"])
        assert (await client.put(at, json=ended)).json() == shown
        assert (await client.post(f"{AT}/plan", json=ended | {"target": "example.org"})).json()["action"] == "none"
        [wrong] = problem(await client.put(at, json=ended | {"reason": "y"}), 422, "invalid")["errors"]
        assert (wrong["path"], wrong["message"]) == ("until", "is in the past")

    as_operator(tmp_path, story)
