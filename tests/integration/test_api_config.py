"""/v1/config and the drains of /v1/masters and /v1/workers, over a real database."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import insert, select

from api.schemas.config import HotConfiguration, config_of
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.access_schema import audit_log, config_revisions
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


VALUE = "/v1/config/worker.max_visits"


def test_one_value_is_put_shown_and_restored(tmp_path: Path) -> None:
    async def story(_api: Api, client: httpx.AsyncClient) -> None:
        await client.put("/v1/config", json=DOCUMENT)
        others = DOCUMENT | {"worker": {}}
        before = (await client.get("/v1/config/worker.report_s")).json()
        assert (before["value"], before["default"], before["effective"]) == (None, 2.0, None)
        assert (before["unit"], before["minimum"], before["maximum"], before["type"]) == ("s", 0.01, 60, "number")
        put = await client.put(VALUE, json={"value": 77})
        assert put.status_code == 200, put.text
        shown = await client.get(VALUE)
        assert shown.json() == put.json()
        assert shown.headers["etag"] == put.headers["etag"]
        assert (shown.json()["value"], shown.json()["default"], shown.json()["effective"]) == (77, 1024, 77)
        whole = (await client.get("/v1/config")).json()
        assert (whole["revision"], given(whole["config"])) == (2, others | {"worker": {"max_visits": 77}})
        for _ in range(2):
            gone = await client.delete(VALUE)
            assert (gone.status_code, gone.json()["value"], gone.json()["effective"]) == (200, None, None), gone.text
        assert (await client.put(VALUE, json={"value": 77.0})).json()["value"] == 77
        whole = (await client.get("/v1/config")).json()
        assert whole["revision"] == 4, "what is so already makes no revision"
        earlier = (await client.get("/v1/config/revisions/3")).json()
        assert given(earlier["config"]) == {name: part for name, part in others.items() if part != {}}
        assert earlier["changed_by"]

    as_operator(tmp_path, story)


def given(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what is not set."""
    inner = {name: given(each) if isinstance(each, dict) else each for name, each in config.items()}
    return {name: each for name, each in inner.items() if each is not None and each != {}}


def test_every_setting_has_a_value_that_can_be_put_as_shown(tmp_path: Path) -> None:
    """Every leaf of the document is a value with limits, and its default is within them."""

    async def story(_: Api, client: httpx.AsyncClient) -> None:
        names = [name for name, _ignored in leaves((await client.get("/v1/config")).json()["config"])]
        assert len(names) > 25
        assert "retention.changes_days" in names
        for name in [*names, "pools.eu-1.max_visits", "pools.eu-1.report_s"]:
            value = (await client.get(f"/v1/config/{name}")).json()
            assert value["name"] == name
            assert value["description"]
            assert "Default" not in value["description"]
            assert value["value"] is None
            put = await client.put(f"/v1/config/{name}", json={"value": value["default"]})
            assert put.status_code == 200, (name, put.text)
            assert put.json()["value"] == put.json()["effective"] == value["default"], name
            beyond = "loud" if value["choices"] else value["maximum"] * 2 + 1 if value["maximum"] else -1
            refused = problem(await client.put(f"/v1/config/{name}", json={"value": beyond}), 422, "invalid")
            assert [each["path"] for each in refused["errors"]] == ["value"], name
        whole = (await client.get("/v1/config")).json()
        assert whole["revision"] == len(names) + 2
        assert all(value is not None for _, value in leaves(whole["config"]))

    as_operator(tmp_path, story)


def leaves(part: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """The values of a document by their names."""
    found = []
    for name, each in part.items():
        found += leaves(each, f"{before}{name}.") if isinstance(each, dict) else [(before + name, each)]
    return found


def test_operators_at_different_values_never_overwrite_each_other(tmp_path: Path) -> None:
    """Twelve operators set values of their own, again and again, while two replace the same one."""

    async def story(_: Api, client: httpx.AsyncClient) -> None:
        names = ["log_level", "storage.headroom_bytes", "worker.report_s", "pools.b.report_s"]
        names += [f"pools.p{n}.max_visits" for n in range(8)]

        async def sets(name: str, n: int) -> None:
            for round_ in range(1, 5):
                value = "error" if name == "log_level" else round_ + n
                answer = await client.put(f"/v1/config/{name}", json={"value": value})
                assert answer.status_code == 200, answer.text

        await asyncio.gather(*(sets(name, n) for n, name in enumerate(names)))
        for n, name in enumerate(names):
            value = (await client.get(f"/v1/config/{name}")).json()["value"]
            assert value == ("error" if name == "log_level" else 4 + n), name
        whole = (await client.get("/v1/config")).json()
        assert whole["revision"] == 4 * len(names) - 3, "the log level was the same three times"

    as_operator(tmp_path, story)


def test_the_tag_of_a_value_changes_with_that_value_only(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        seen = {"If-Match": (await client.get(VALUE)).headers["etag"]}
        assert (await client.put("/v1/config/log_level", json={"value": "error"})).status_code == 200
        assert (await client.get(VALUE, headers={"If-None-Match": seen["If-Match"]})).status_code == 304
        assert (await client.put(VALUE, json={"value": 5}, headers=seen)).status_code == 200
        for lost in (
            await client.put(VALUE, json={"value": 6}, headers=seen),
            await client.delete(VALUE, headers=seen),
        ):
            problem(lost, 412, "lost-update")
            assert lost.headers["etag"] == (await client.get(VALUE)).headers["etag"]
        current = {"If-Match": (await client.get(VALUE)).headers["etag"]}
        assert (await client.get(VALUE)).json()["value"] == 5
        assert (await client.delete(VALUE, headers=current)).status_code == 200

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_visits", "worker.max_visits"),
        ("worker.max_visit", "worker.max_visits"),
        ("revisions", "retention.revisions"),
        ("pools.eu.max_visit", "pools.eu.max_visits"),
        ("loglevel", "log_level"),
        ("worker", None),
        ("pools.eu", None),
        ("pools.EU.report_s", None),
        ("log_level.x", "log_level"),
        ("master.grant_s.", "master.grant_s"),
    ],
)
def test_an_unknown_value_is_answered_with_what_was_meant(tmp_path: Path, name: str, meant: str | None) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        answers = [
            await client.put(f"/v1/config/{name}", json={"value": 1}),
            await client.delete(f"/v1/config/{name}", headers={"If-Match": "*"}),
        ]
        if name != "revisions":  # GET lists them
            answers.append(await client.get(f"/v1/config/{name}"))
        for answer in answers:
            hint = problem(answer, 404, "not-found")["hint"]
            assert hint == f"did you mean {meant}?" if meant else hint
        assert (await client.get("/v1/config")).json()["revision"] == 0
        assert (await client.get("/v1/config/revisions")).json()["items"] == []

    as_operator(tmp_path, story)


@pytest.mark.parametrize("value", [None, True, [3], {"a": 1}, "3", 0, 1.5, 10**400, "\x00"])
def test_what_a_value_cannot_be_is_refused_by_its_path(tmp_path: Path, value: Any) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        refused = problem(await client.put(VALUE, json={"value": value}), 422, "invalid")
        assert [error["path"] for error in refused["errors"]] == ["value"]
        problem(await client.put(VALUE, json={}), 422, "invalid")
        problem(await client.put(VALUE, json={"value": 3, "values": 4}), 422, "invalid")
        assert (await client.get("/v1/config")).json()["revision"] == 0

    as_operator(tmp_path, story)


def test_values_that_contradict_each_other_are_refused_one_by_one(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        low, high = "/v1/config/storage.low_watermark_ratio", "/v1/config/storage.high_watermark_ratio"
        refused = problem(await client.put(low, json={"value": 0.97}), 422, "invalid")
        assert [error["path"] for error in refused["errors"]] == ["value"]
        assert "storage.high_watermark_ratio, 0.95" in refused["errors"][0]["message"]
        assert (await client.put(high, json={"value": 0.99})).status_code == 200
        assert (await client.put(low, json={"value": 0.97})).status_code == 200
        problem(await client.delete(high), 422, "invalid")
        assert (await client.delete(low)).status_code == 200
        grant = (await client.get("/v1/config/master.grant_s")).json()
        assert grant["maximum"] == 30
        problem(await client.put("/v1/config/master.grant_s", json={"value": 31}), 422, "invalid")
        # Masters that were started again with a shorter grant: other values can be changed nevertheless.
        long = HotConfig(master=MasterPart(grant_s=60.0))
        await SqlDesired(opened.threads).put_config(long, expected=None, actor=SOMEONE, now_ms=1)
        assert (await client.put(VALUE, json={"value": 3})).status_code == 200
        grant = (await client.get("/v1/config/master.grant_s")).json()
        assert (grant["value"], grant["effective"]) == (60, 30)
        problem(await client.put("/v1/config/master.grant_s", json={"value": 61}), 422, "invalid")
        assert (await client.delete("/v1/config/master.grant_s")).status_code == 200

    as_operator(tmp_path, story)


def test_a_pool_follows_all_workers_until_it_has_a_value(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        of_pool = "/v1/config/pools.eu.max_visits"
        await client.put(VALUE, json={"value": 12})
        shown = (await client.get(of_pool)).json()
        assert (shown["value"], shown["effective"], shown["default"]) == (None, 12, 1024)
        await client.put(of_pool, json={"value": 3})
        assert (await client.get(of_pool)).json()["effective"] == 3
        assert (await client.get(VALUE)).json()["effective"] == 12
        await client.delete(of_pool)
        assert (await client.get("/v1/config")).json()["config"]["pools"] == {}

    as_operator(tmp_path, story)


def test_a_value_keeps_settings_of_a_later_version(tmp_path: Path) -> None:
    """During an upgrade an older leader stores one value. What only newer masters know stays."""

    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        newer = '{"worker":{"max_visits":8,"appetite":"good"},"kitchen":{"oven":{}}}'
        row = {"revision": 7, "document": newer, "changed_at_ms": 1, "changed_by": "a newer program"}
        await opened.threads.write(lambda c: c.execute(insert(config_revisions).values(**row)).close())
        await client.put("/v1/config/log_level", json={"value": "error"})
        await client.delete(VALUE)
        stored = await SqlDesired(opened.threads).config()
        kept = {"worker": {"appetite": "good"}, "kitchen": {"oven": {}}, "log_level": "error"}
        assert (stored.revision, msgspec.json.decode(stored.text)) == (9, kept)

    as_operator(tmp_path, story)


def test_viewers_read_and_change_nothing(tmp_path: Path) -> None:
    async def story(opened: Api, _: httpx.AsyncClient) -> None:
        async with opened.as_role(Role.VIEWER) as viewer:
            assert (await viewer.get("/v1/config")).status_code == 200
            assert (await viewer.get("/v1/masters/m1")).status_code == 200
            problem(await viewer.put("/v1/config", json={}), 403, "forbidden")
            assert (await viewer.get(VALUE)).status_code == 200
            problem(await viewer.put(VALUE, json={"value": 3}), 403, "forbidden")
            problem(await viewer.delete(VALUE), 403, "forbidden")
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


def test_plan_says_which_settings_would_change_and_changes_nothing(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        planned = (await client.post("/v1/config/plan", json=DOCUMENT)).json()
        assert (planned["action"], [each["path"] for each in planned["changes"]]) == (
            "update",
            [
                "log_level",
                "master.dispatch_ahead_ratio",
                "master.seed_upload_refusal_ratio",
                "pools.eu",
                "worker.max_visits",
            ],
        )
        assert (await client.get("/v1/config")).json()["revision"] == 0
        shown = (await client.put("/v1/config", json=DOCUMENT)).json()["config"]
        assert (await client.post("/v1/config/plan", json=shown)).json()["action"] == "none"
        planned = (await client.post("/v1/config/plan", json=DOCUMENT | {"pools": {"eu": {"report_s": 2}}})).json()
        assert planned["changes"] == [{"path": "pools.eu.report_s", "before": 0.5, "after": 2.0}]
        wrong = {"storage": {"low_watermark_ratio": 0.9, "high_watermark_ratio": 0.5}}
        [error] = problem(await client.post("/v1/config/plan", json=wrong), 422, "invalid")["errors"]
        assert error["path"] == "storage.low_watermark_ratio"

    as_operator(tmp_path, story)
