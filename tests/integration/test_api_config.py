"""/v1/config and the drains of /v1/masters and /v1/workers, over a real database."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import select

from api.schemas.config import HotConfiguration, config_of
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log
from shared.domain.ops.access import Role
from shared.domain.ops.config import Drains, HotConfig, MasterPart, MemberRole, WorkerPart
from tests.support.api.rest_api import SOMEONE, Api, api, problem

Story = Callable[[Api, httpx.AsyncClient], Awaitable[None]]
DOCUMENT: dict[str, Any] = {
    "log_level": "warning",
    "worker": {"max_visits": 8},
    "pools": {"eu": {"report_s": 0.5}},
    "master": {"dispatch_ahead_ratio": 0, "seed_upload_refusal_ratio": 0.25},
}


def as_operator(path: Path, story: Story) -> None:
    """Run the story with an API and an operator's client."""

    async def whole() -> None:
        async with api(path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            await story(opened, client)

    asyncio.run(whole())


def test_a_configuration_is_put_as_a_whole_and_shown_as_it_is_understood(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        before = await client.get("/v1/config")
        assert (before.status_code, before.headers["etag"]) == (200, '"0"')
        assert (before.json()["revision"], before.json()["changed_at"]) == (0, None)
        put = await client.put("/v1/config", json=DOCUMENT, headers={"If-Match": '"0"'})
        assert (put.status_code, put.headers["etag"]) == (200, '"1"'), put.text
        shown = (await client.get("/v1/config")).json()
        assert shown == put.json()
        assert shown["config"]["worker"] == {"max_visits": 8, "report_s": None}
        assert shown["config"]["pools"] == {"eu": {"max_visits": None, "report_s": 0.5}}
        assert shown["config"]["master"]["dispatch_ahead_ratio"] == 0
        assert shown["changed_at"] is not None
        # What is shown may be put as it is, and what is left out goes back to the start-up values.
        assert (await client.put("/v1/config", json=shown["config"])).json()["revision"] == 1
        assert (await client.put("/v1/config", json={})).json()["revision"] == 2
        assert (await client.get("/v1/config")).json()["config"]["log_level"] is None

    as_operator(tmp_path, story)


def test_second_of_two_concurrent_config_changes_is_refused(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        seen = {"If-Match": (await client.get("/v1/config")).headers["etag"]}
        assert (await client.put("/v1/config", json=DOCUMENT, headers=seen)).status_code == 200
        lost = await client.put("/v1/config", json={"log_level": "debug"}, headers=seen)
        problem(lost, 412, "lost-update")
        assert lost.headers["etag"] == '"1"'
        assert (await client.get("/v1/config")).json()["config"]["log_level"] == "warning"
        lines = await opened.threads.read(
            lambda c: c.execute(select(audit_log.c.action, audit_log.c.before, audit_log.c.after)).all()
        )
        replaced = [line for line in lines if line.action == "config.replace"]
        assert [msgspec.json.decode(line.before) for line in replaced] == [{}], "who, what, before and after"
        assert msgspec.json.decode(replaced[0].after)["worker"] == {"max_visits": 8}

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"appetite": 1}, "appetite"),
        ({"worker": {"visit": 8}}, "worker.visit"),
        ({"worker": {"max_visits": 0}}, "worker.max_visits"),
        ({"master": {"dispatch_ahead_ratio": 3}}, "master.dispatch_ahead_ratio"),
        ({"master": {"grant_s": 3000}}, "master.grant_s"),
        ({"pools": {"eu": {"max_visits": "many"}}}, "pools.eu.max_visits"),
        ({"log_level": "loud"}, "log_level"),
    ],
)
def test_what_is_unknown_or_out_of_bounds_is_refused_by_its_path(
    tmp_path: Path, body: dict[str, Any], path: str
) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        refused = problem(await client.put("/v1/config", json=body), 422, "invalid")
        assert [error["path"] for error in refused["errors"]] == [path]
        assert (await client.get("/v1/config")).json()["revision"] == 0

    as_operator(tmp_path, story)


def test_every_earlier_revision_can_be_read_and_gone_back_to(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        for visits in (1, 2, 3):
            await client.put("/v1/config", json={"worker": {"max_visits": visits}})
        page = (await client.get("/v1/config/revisions?limit=2")).json()
        assert [each["revision"] for each in page["items"]] == [3, 2]
        rest = (await client.get("/v1/config/revisions", params={"cursor": page["next"]})).json()
        assert ([each["revision"] for each in rest["items"]], rest["next"]) == ([1], None)
        first = (await client.get("/v1/config/revisions/1")).json()
        assert (await client.put("/v1/config", json=first["config"])).json()["revision"] == 4
        problem(await client.get("/v1/config/revisions/9"), 404, "not-found")

    as_operator(tmp_path, story)


def test_viewers_read_and_change_nothing(tmp_path: Path) -> None:
    async def story(opened: Api, _: httpx.AsyncClient) -> None:
        async with opened.as_role(Role.VIEWER) as viewer:
            assert (await viewer.get("/v1/config")).status_code == 200
            assert (await viewer.get("/v1/masters/m1")).status_code == 200
            problem(await viewer.put("/v1/config", json={}), 403, "forbidden")
            for path in ("masters/m1/drain", "masters/m1/undrain", "workers/w1/drain", "workers/w1/undrain"):
                problem(await viewer.post(f"/v1/{path}"), 403, "forbidden")

    as_operator(tmp_path, story)


def test_a_drain_is_kept_until_it_is_taken_back_and_again_is_harmless(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        desired = SqlDesired(opened.threads)
        for _ in range(2):
            drained = await client.post("/v1/masters/m1/drain")
            assert drained.status_code == 202, drained.text
            assert drained.json() == {"id": "m1", "role": "master", "draining": True, "alive": True}
        assert await desired.drains() == Drains(masters=("m1",))
        for _ in range(2):
            assert (await client.post("/v1/masters/m1/undrain")).json()["draining"] is False
        assert await desired.drains() == Drains()

    as_operator(tmp_path, story)


def test_absent_member_is_not_drained_but_its_drain_can_be_undone(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        problem(await client.post("/v1/workers/w9/drain"), 404, "not-found")
        problem(await client.post("/v1/workers/w9/undrain"), 404, "not-found")
        problem(await client.get("/v1/workers/w9"), 404, "not-found")
        problem(await client.post("/v1/workers/no%20name/drain"), 422, "invalid")
        await SqlDesired(opened.threads).drain(MemberRole.WORKER, "w9", actor=SOMEONE, now_ms=1)
        assert (await client.post("/v1/workers/w9/undrain")).json()["alive"] is False

    as_operator(tmp_path, story)


def test_a_body_and_the_document_that_members_follow_have_the_same_bounds() -> None:
    """One is judged by pydantic, the other by msgspec: what one takes the other must take, too."""
    stored, body = msgspec.json.schema(HotConfig)["$defs"], HotConfiguration.model_json_schema()["$defs"]
    for part, shown in (("WorkerPart", "WorkerValues"), ("MasterPart", "MasterValues")):
        assert {name: bounds(field) for name, field in stored[part]["properties"].items()} == {
            name: bounds(field) for name, field in body[shown]["properties"].items()
        }
    assert config_of(HotConfiguration.model_validate(DOCUMENT)) == HotConfig(
        log_level="warning",
        worker=WorkerPart(max_visits=8),
        pools={"eu": WorkerPart(report_s=0.5)},
        master=MasterPart(dispatch_ahead_ratio=0.0, seed_upload_refusal_ratio=0.25),
    )


def bounds(field: dict[str, Any]) -> dict[str, Any]:
    """The bounds of a number that may be left out."""
    (number,) = [each for each in field["anyOf"] if each["type"] != "null"]
    return {name: number[name] for name in ("type", "minimum", "maximum")}
