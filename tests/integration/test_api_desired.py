"""Whether a crawl runs, as declared over the API: what a PUT starts and pauses, what drifts, and what is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from shared.adapters.sql.engine.access_schema import audit_log
from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, Api, api, problem

Story = Callable[[Api, httpx.AsyncClient], Awaitable[None]]
AT = "/v1/crawls/docs"


def as_operator(path: Path, story: Story) -> None:
    """Run the story with an API and an operator's client."""

    async def whole() -> None:
        async with api(path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            await story(opened, client)

    asyncio.run(whole())


async def put(client: httpx.AsyncClient, desired: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"spec": SPEC, **more} | ({} if desired is None else {"desired": desired})
    plan = (await client.post(f"{AT}/plan", json=body)).json()
    answer = await client.put(AT, json=body)
    assert answer.status_code in (200, 201), answer.text
    shown: dict[str, Any] = (await client.get(AT)).json()
    assert shown == answer.json()
    assert (shown["desired"], shown["state"], shown["revision"]) == (desired, plan["state"], plan["revision"])
    return shown | {"plan": plan, "tag": answer.headers["etag"]}


async def verb(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await client.post(f"{AT}/{name}")
    assert answer.status_code == 200, answer.text
    crawl: dict[str, Any] = answer.json()["crawl"]
    return crawl


def test_put_starts_and_pauses_without_a_revision(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        made = await put(client, "paused")
        assert (made["state"], made["drifted"], made["plan"]["action"]) == ("created", False, "create")
        started = await put(client, "running", start=False)
        assert (started["state"], started["revision"], started["id"]) == ("seeding", 1, made["id"])
        assert started["plan"]["changes"] == [{"path": "desired", "before": "paused", "after": "running"}]
        same = await put(client, "running")
        assert (same["plan"]["action"], same["tag"]) == ("none", started["tag"]), "nothing differs, so nothing changes"
        assert (await put(client, "paused"))["state"] == "paused"
        assert (await put(client, "running", spec={**SPEC, "scope": {"max_depth": 9}}))["revision"] == 2
        free = await put(client, spec={**SPEC, "scope": {"max_depth": 9}})
        assert (free["state"], free["desired"]) == ("seeding", None), "verbs decide again"
        query = select(audit_log.c.action, audit_log.c.after).where(audit_log.c.target == "docs")
        rows = await opened.threads.read(lambda c: c.execute(query.order_by(audit_log.c.id)).all())
        assert [row.action for row in rows] == ["crawl.create"] + ["crawl.replace"] * 4
        assert '"desired":"paused"' in rows[0].after

    as_operator(tmp_path, story)


def test_verb_against_the_declaration_drifts_until_the_next_put(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        await put(client, "running")
        assert (await verb(client, "pause"))["drifted"]
        mended = await put(client, "running")
        assert (mended["state"], mended["drifted"]) == ("seeding", False)
        assert mended["plan"]["changes"] == [{"path": "state", "before": "paused", "after": "running"}]
        assert (await verb(client, "cancel"))["drifted"]
        assert (await put(client, "running"))["state"] == "seeding"
        assert (await put(client, "paused"))["state"] == "paused"
        assert (await verb(client, "resume"))["drifted"]
        assert (await put(client, "paused"))["state"] == "paused"

    as_operator(tmp_path, story)


def test_patch_changes_the_run_only_if_it_says_so(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        await put(client, "running")
        await verb(client, "pause")
        labelled = (await client.patch(AT, json={"labels": {"team": "search"}})).json()
        assert (labelled["state"], labelled["desired"], labelled["drifted"]) == ("paused", "running", True)
        fewer = await client.patch(AT, json={"spec": {"seeds": [*SPEC["seeds"], "https://example.org/b"]}})
        assert (fewer.json()["state"], fewer.json()["desired"]) == ("paused", "running")
        resumed = (await client.patch(AT, json={"desired": "running"})).json()
        assert (resumed["state"], resumed["drifted"], resumed["labels"]) == ("seeding", False, {"team": "search"})
        free = (await client.patch(AT, json={"desired": None})).json()
        assert (free["state"], free["desired"]) == ("seeding", None)

    as_operator(tmp_path, story)


@pytest.mark.parametrize("desired", ["stopped", "", 1, True, ["running"]])
def test_other_declaration_is_refused_with_its_field(tmp_path: Path, desired: Any) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        for answer in (
            await client.put(AT, json={"spec": SPEC, "desired": desired}),
            await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC, "desired": desired}),
        ):
            assert [each["path"] for each in problem(answer, 422, "invalid")["errors"]] == ["desired"]

    as_operator(tmp_path, story)


@pytest.mark.parametrize("scheduled", ["start", "refresh", "pause", "resume", "reset", "retry-failed"])
def test_schedule_that_starts_or_pauses_a_declared_crawl_is_refused(tmp_path: Path, scheduled: str) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        await put(client, "running")
        schedule = {"crawl": "docs", "verb": scheduled, "every_s": 3600}
        answer = await client.put("/v1/schedules/nightly", json=schedule)
        if scheduled in ("reset", "retry-failed"):
            assert answer.status_code == 201
            return
        [wrong] = problem(answer, 422, "invalid")["errors"]
        assert (wrong["path"], wrong["hint"]) == ("verb", "leave `desired` out of the crawl, or schedule another verb")
        assert f"declares `desired: running`, so no schedule applies {scheduled}" in wrong["message"]
        await put(client)
        made = await client.put("/v1/schedules/nightly", json=schedule)
        assert (made.status_code, made.json()["warnings"]) == (201, [])
        await put(client, "paused")
        [warning] = (await client.get("/v1/schedules/nightly")).json()["warnings"]
        assert warning.startswith("each firing is refused: the crawl declares `desired: paused`")

    as_operator(tmp_path, story)
