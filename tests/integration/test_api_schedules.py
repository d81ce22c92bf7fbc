"""/v1/schedules over a real database: what is refused, what a GET returns after a PUT, and who may change what."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.access_schema import audit_log, schedules
from shared.domain.crawl.state import Verb
from shared.domain.ids import Term
from shared.domain.ops.access import Role
from shared.domain.schedules.firing import step_of
from shared.domain.schedules.spec import MAX_CRON_CHARS, MAX_EVERY_S, MAX_JITTER_S, MAX_LATE_S
from tests.support.api.rest_api import SOMEONE, Api, api, problem

Story = Callable[[Api, httpx.AsyncClient], Awaitable[None]]
AT = "/v1/schedules/nightly"
SPEC: dict[str, Any] = {"crawl": "docs", "verb": "start", "cron": "30 2 * * *", "zone": "Europe/Berlin"}
WHOLE: dict[str, Any] = {
    "crawl": None,
    "selector": {"team": "search"},
    "verb": "retry-failed",
    "cron": None,
    "every_s": 3600,
    "zone": "America/New_York",
    "window": {"start": "22:00", "end": "06:00"},
    "jitter_s": 60,
    "overlap": "queue",
    "catch_up": "last",
    "late_s": 30,
    "paused": False,
}


def as_operator(path: Path, story: Story) -> None:
    """Run the story with an API that has the crawl `docs`, and an operator's client."""

    async def whole() -> None:
        async with api(path / "orb.db") as opened, opened.as_role(Role.OPERATOR) as client:
            await opened.created("docs", start=False)
            await story(opened, client)

    asyncio.run(whole())


@pytest.mark.parametrize("given", [SPEC, WHOLE])
def test_schedule_is_returned_as_it_was_put(tmp_path: Path, given: dict[str, Any]) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        made = await client.put(AT, json=given)
        assert (made.status_code, made.headers["location"]) == (201, AT), made.text
        shown = await client.get(AT)
        assert shown.json() == made.json()
        assert shown.headers["etag"] == made.headers["etag"]
        assert {name: shown.json()[name] for name in given} == given
        times = [each["due_at"] for each in shown.json()["next_firings"]]
        assert times == sorted(set(times))
        assert len(times) == 10
        assert shown.json()["next_at"] == shown.json()["next_firings"][0]["fires_at"]
        unchanged = await client.get(AT, headers={"If-None-Match": shown.headers["etag"]})
        assert unchanged.status_code == 304
        again = await client.put(AT, json=given)
        assert (again.status_code, again.json()) == (200, shown.json())
        assert [each["name"] for each in (await client.get("/v1/schedules")).json()["items"]] == ["nightly"]

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("change", "path", "hint"),
    [
        ({"cron": "* * * * * *"}, "cron", "leave out the field of the seconds"),
        ({"cron": "0 0 30 2 *"}, "cron", "such as 30 2 * * *"),
        ({"cron": None, "every_s": 1}, "every_s", "at least 60"),
        ({"zone": "Europe/Berln"}, "zone", "did you mean Europe/Berlin?"),
        ({"crawl": "news"}, "crawl", "create the crawl first"),
        ({"selector": {"a": "b"}}, "crawl", "set one of both"),
        ({"verb": "delete"}, "verb", "expected one of start"),
        ({"window": {"start": "25:00", "end": "06:00"}}, "window.start", "HH:MM"),
        ({"window": {"start": "03:00", "end": "04:00"}}, "window", "widen the window"),
        ({"cronn": "0 0 * * *"}, "cronn", "did you mean cron?"),
    ],
)
def test_wrong_schedule_is_refused_with_field_and_remedy(
    tmp_path: Path, change: dict[str, Any], path: str, hint: str
) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        body = problem(await client.put(AT, json=SPEC | change), 422, "invalid")
        assert [each["path"] for each in body["errors"]] == [path]
        assert hint in body["errors"][0]["message"] + body["errors"][0].get("hint", "")
        assert (await client.get(AT)).status_code == 404

    as_operator(tmp_path, story)


def test_schedule_of_a_later_version_is_named_and_can_be_replaced(tmp_path: Path) -> None:
    async def story(us: Api, client: httpx.AsyncClient) -> None:
        await client.put(AT, json=SPEC)
        later = update(schedules).values(spec='{"verb":"start","crawl":"docs","every_s":60,"overlap":"replace"}')
        await us.threads.write(lambda c: c.execute(later))
        refused = problem(await client.get(AT), 500, "internal")
        assert "the schedule 'nightly' cannot be used" in refused["detail"]
        assert "put or delete the schedule" in refused["hint"]
        assert (await client.put(AT, json=SPEC)).status_code == 200
        assert (await client.get(AT)).json()["overlap"] == "skip"

    as_operator(tmp_path, story)


def test_plan_shows_what_a_put_would_change(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        planned = (await client.post(f"{AT}/plan", json=SPEC)).json()
        assert planned == {"action": "create", "changes": [], "warnings": []}
        assert (await client.get(AT)).status_code == 404, "a plan changes nothing"
        await client.put(AT, json=SPEC)
        assert (await client.post(f"{AT}/plan", json=SPEC)).json()["action"] == "none"
        planned = (await client.post(f"{AT}/plan", json=SPEC | {"crawl": "gone", "window": WHOLE["window"]})).json()
        assert planned == {
            "action": "update",
            "changes": [
                {"path": "crawl", "before": "docs", "after": "gone"},
                {"path": "window", "before": None, "after": WHOLE["window"]},
            ],
            "warnings": ["there is no crawl 'gone': create it before the schedule"],
        }

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    "wrong", [{"zone": "Europe/Berlinn"}, {"cron": "0 0 31 2 *"}, {"verb": "explode"}, {"late_s": -1}, {"every_s": 60}]
)
def test_plan_is_refused_as_the_put_is(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        put = await client.put(AT, json=SPEC | wrong)
        plan = await client.post(f"{AT}/plan", json=SPEC | wrong)
        assert (plan.status_code, plan.json()["errors"]) == (422, put.json()["errors"])

    as_operator(tmp_path, story)


def test_second_operator_is_refused_and_changes_are_audited(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        tag = (await client.put(AT, json=SPEC)).headers["etag"]
        first = await client.put(AT, json=SPEC | {"jitter_s": 5}, headers={"If-Match": tag})
        assert first.status_code == 200
        for method in ("PUT", "DELETE"):
            body = SPEC if method == "PUT" else None
            late = await client.request(method, AT, json=body, headers={"If-Match": tag})
            assert "current version" in problem(late, 412, "lost-update")["detail"]
        paused = await client.post(f"{AT}/pause", headers={"If-Match": first.headers["etag"]})
        assert (paused.json()["paused"], paused.json()["next_firings"]) == (True, [])
        assert (await client.post(f"{AT}/pause")).headers["etag"] == paused.headers["etag"]
        assert len((await client.post(f"{AT}/resume")).json()["next_firings"]) == 10
        assert (await client.delete(AT)).status_code == 204
        query = select(audit_log.c.action).where(audit_log.c.target == "nightly").order_by(audit_log.c.id)
        rows = await opened.threads.read(lambda c: list(c.execute(query).scalars()))
        actions = ("create", "replace", "pause", "resume", "delete")
        assert rows == [f"schedule.{action}" for action in actions]

    as_operator(tmp_path, story)


def test_repeated_create_makes_one_schedule(tmp_path: Path) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        body, key = {"name": "nightly", **SPEC}, {"Idempotency-Key": "once"}
        made = await client.post("/v1/schedules", json=body, headers=key)
        again = await client.post("/v1/schedules", json=body, headers=key)
        assert (made.status_code, again.status_code) == (201, 201)
        assert made.json() == again.json()
        problem(await client.post("/v1/schedules", json=body), 409, "exists")
        problem(
            await client.post("/v1/schedules", json=body | {"jitter_s": 1}, headers=key), 422, "idempotency-key-reused"
        )

    as_operator(tmp_path, story)


def test_viewer_reads_schedules_and_changes_none(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        await client.put(AT, json=SPEC)
        async with opened.as_role(Role.VIEWER) as viewer:
            for path in ("/v1/schedules", AT, f"{AT}/history"):
                assert (await viewer.get(path)).status_code == 200
            problem(await viewer.put(AT, json=SPEC), 403, "forbidden")
            problem(await viewer.post(f"{AT}/pause"), 403, "forbidden")
            problem(await viewer.delete(AT), 403, "forbidden")

    as_operator(tmp_path, story)


def test_schedules_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.adapters.sql.catalog.schedules.MAX_SCHEDULES", 1)

    async def story(_: Api, client: httpx.AsyncClient) -> None:
        await client.put(AT, json=SPEC)
        said = problem(await client.put("/v1/schedules/weekly", json=SPEC), 409, "full")
        assert said["hint"] == "delete schedules that are no longer needed"

    as_operator(tmp_path, story)


def test_schedule_of_a_later_version_is_listed_as_unreadable(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        made = (await client.put(AT, json=SPEC)).json()
        await client.put("/v1/schedules/weekly", json=SPEC)
        later = update(schedules).where(schedules.c.name == "nightly").values(spec='{"verb":"start","overlap":"new"}')
        await opened.threads.write(lambda connection: connection.execute(later))
        for query in ({}, {"crawl": "docs"}):
            listed = await client.get("/v1/schedules", params=query)
            assert listed.status_code == 200, listed.text
            unread, other = listed.json()["items"]
            assert (other["name"], other["verb"], other["unreadable"]) == ("weekly", "start", None)
            assert unread["unreadable"].startswith("its spec cannot be read: ")
            assert {name for name, value in unread.items() if value is None} == {
                "verb", "cron", "every_s", "zone", "window", "jitter_s", "overlap", "catch_up", "late_s", "last_due_at",
            }  # fmt: skip
            same = ("name", "id", "crawl", "selector", "paused", "next_at", "created_at", "created_by")
            assert {name: unread[name] for name in same} == {name: made[name] for name in same}

    as_operator(tmp_path, story)


def test_history_is_paged_and_a_deleted_crawl_is_a_warning(tmp_path: Path) -> None:
    async def story(opened: Api, client: httpx.AsyncClient) -> None:
        await client.put(AT, json=SPEC | {"cron": None, "every_s": 60})
        await opened.catalog.turn("docs", Verb.DELETE, expected=None, actor=SOMEONE, now_ms=1)
        assert "create it, or delete this schedule" in (await client.get(AT)).json()["warnings"][0]
        schedules = SqlSchedules(opened.threads)
        await schedules.claim(Term(1))
        for _ in range(3):
            stored = await schedules.schedule("nightly")
            assert stored.due_ms is not None
            step = step_of(stored.spec, stored.schedule_id, stored.due_ms, stored.due_ms)
            assert step is not None
            await schedules.fire(Term(1), stored, step, stored.due_ms, 1)
        seen: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            body = (await client.get(f"{AT}/history", params={"limit": 1, **cursor})).json()
            seen += body["items"]
            if body["next"] is None:
                break
            cursor = {"cursor": body["next"]}
        assert [each["due_at"] for each in seen] == sorted((each["due_at"] for each in seen), reverse=True)
        assert [each["outcome"] for each in seen] == ["refused"] * 3
        assert seen[0]["effects"][0]["detail"] == "there is no crawl 'docs'"

    as_operator(tmp_path, story)


@pytest.mark.parametrize(
    ("field", "limit"),
    [("every_s", MAX_EVERY_S), ("jitter_s", MAX_JITTER_S), ("late_s", MAX_LATE_S), ("cron", MAX_CRON_CHARS)],
)
def test_value_above_its_limit_is_refused(tmp_path: Path, field: str, limit: int) -> None:
    async def story(_: Api, client: httpx.AsyncClient) -> None:
        given: Any = "0 0 * * * " + " " * (limit - 9) if field == "cron" else limit + 1
        body = problem(await client.put(AT, json=SPEC | {"cron": None, field: given}), 422, "invalid")
        assert [each["path"] for each in body["errors"]] == [field]

    as_operator(tmp_path, story)
