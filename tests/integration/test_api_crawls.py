"""Crawls over REST: declared, changed by several at once, paged, started and stopped."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, Api, Story, api, problem
from tests.support.api.rest_api import told as told
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server


def test_a_crawl_is_created_shown_and_named_by_its_etag(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        made = await served.created("docs", labels={"team": "search"})
        assert made.headers["location"] == "/v1/crawls/docs"
        async with served.as_role(Role.VIEWER) as viewer:
            got = await viewer.get("/v1/crawls/docs")
        assert got.json() == made.json()
        assert got.headers["etag"].startswith('"1-1.'), "which has what changes without an operator behind a dot"
        assert made.headers["etag"] == got.headers["etag"]
        body = got.json()
        assert (body["state"], body["revision"], body["labels"]) == ("seeding", 1, {"team": "search"})
        assert body["spec"]["scope"]["max_depth"] == 3
        assert body["spec"]["politeness"]["delay_s"] == 1.0, "every default is shown"

    told(story)


def test_an_update_of_what_somebody_else_changed_is_refused_and_not_lost(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        tag = (await served.created("docs")).headers["etag"]
        async with served.as_role(Role.OPERATOR) as one:
            first = await one.put("/v1/crawls/docs", json={"spec": {**SPEC, "weight": 2}}, headers={"If-Match": tag})
            assert first.status_code == 200
            second = await one.put("/v1/crawls/docs", json={"spec": {**SPEC, "weight": 3}}, headers={"If-Match": tag})
            problem(second, 412, "lost-update")
            got = await one.get("/v1/crawls/docs")
            assert second.headers["etag"] == first.headers["etag"] == got.headers["etag"]
            now = got.json()
            assert (now["spec"]["weight"], now["revision"]) == (2, 2)

    told(story)


def test_of_many_who_change_the_same_version_exactly_one_succeeds(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        tag = (await served.created("docs")).headers["etag"]
        async with served.as_role(Role.OPERATOR) as client:
            answers = await asyncio.gather(
                *(
                    client.put("/v1/crawls/docs", json={"spec": {**SPEC, "weight": n}}, headers={"If-Match": tag})
                    for n in range(2, 12)
                )
            )
        assert sorted(answer.status_code for answer in answers) == [200, *[412] * 9]

    told(story)


def test_patches_of_several_fields_at_once_are_all_kept(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs", labels={"a": "1"})
        patches: list[dict[str, Any]] = [
            {"spec": {"weight": 7}},
            {"spec": {"scope": {"max_depth": None}}},
            {"labels": {"a": None, "b": "2"}},
        ]
        async with served.as_role(Role.OPERATOR) as client:
            answers = await asyncio.gather(*(client.patch("/v1/crawls/docs", json=patch) for patch in patches))
            assert {answer.status_code for answer in answers} == {200}
            body = (await client.get("/v1/crawls/docs")).json()
        assert (body["spec"]["weight"], body["spec"]["scope"]["max_depth"], body["labels"]) == (7, None, {"b": "2"})
        assert body["revision"] == 3, "labels make no revision"

    told(story)


def test_putting_what_is_declared_already_changes_nothing(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:
            first = await client.put("/v1/crawls/docs", json={"spec": SPEC})
            again = await client.put("/v1/crawls/docs", json={"spec": SPEC})
            assert (first.status_code, again.status_code) == (201, 200)
            assert first.headers["etag"] == again.headers["etag"]
            only_new = await client.put("/v1/crawls/docs", json={"spec": SPEC}, headers={"If-None-Match": "*"})
            problem(only_new, 412, "lost-update")
            absent = await client.put("/v1/crawls/other", json={"spec": SPEC}, headers={"If-Match": '"1-1"'})
            problem(absent, 412, "lost-update")

    told(story)


def test_a_plan_says_what_a_put_would_do_and_does_nothing(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:
            wanted = {"spec": {**SPEC, "weight": 5}, "labels": {"team": "search"}}
            assert (await client.post("/v1/crawls/docs/plan", json=wanted)).json()["action"] == "create"
            problem(await client.get("/v1/crawls/docs"), 404, "not-found")
            await served.created("docs")
            plan = (await client.post("/v1/crawls/docs/plan", json=wanted)).json()
            assert (plan["action"], plan["revision"]) == ("update", 2)
            assert plan["changes"] == [
                {"path": "labels.team", "before": None, "after": "search"},
                {"path": "spec.weight", "before": 1, "after": 5},
            ]
            assert plan["scope"] is None, "the scope is the same"
            deeper = {"spec": {**SPEC, "scope": {"max_depth": 9}}}
            scope = (await client.post("/v1/crawls/docs/plan", json=deeper)).json()["scope"]
            assert (scope["leaving"], scope["rules"], scope["exact"], scope["excluded_before"]) == (0, {}, True, 0)
            await client.put("/v1/crawls/docs", json=wanted)
            assert (await client.post("/v1/crawls/docs/plan", json=wanted)).json()["action"] == "none"
            diff = (await client.get("/v1/crawls/docs/revisions/2/diff")).json()
            assert diff["changes"] == [{"path": "spec.weight", "before": 1, "after": 5}]
            revisions = (await client.get("/v1/crawls/docs/revisions?limit=1")).json()
            assert [each["revision"] for each in revisions["items"]] == [2]
            rest = (await client.get("/v1/crawls/docs/revisions", params={"cursor": revisions["next"]})).json()
            assert [each["revision"] for each in rest["items"]] == [1]
            assert rest["next"] is None

    told(story)


def test_a_create_that_is_repeated_with_its_key_creates_once(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        body = {"name": "docs", "spec": SPEC}
        again = {"Idempotency-Key": "k1"}
        async with served.as_role(Role.OPERATOR) as client:
            answers = await asyncio.gather(*(client.post("/v1/crawls", json=body, headers=again) for _ in range(5)))
            assert {answer.status_code for answer in answers} == {201}
            assert len({answer.text for answer in answers}) == 1
            other = await client.post("/v1/crawls", json={**body, "name": "more"}, headers=again)
            problem(other, 422, "idempotency-key-reused")
            problem(await client.post("/v1/crawls", json=body), 409, "exists")

    told(story)


def test_paging_lists_every_remaining_crawl_once_under_changes(
    told: Callable[[Story], None],
) -> None:
    async def story(served: Api) -> None:
        for n in range(10):
            await served.created(f"crawl-{n}")
        seen: list[str] = []
        async with served.as_role(Role.OPERATOR) as client:
            url = "/v1/crawls?limit=3&prefix=crawl-"
            while True:
                response = await client.get(url)
                page = response.json()
                seen += [crawl["name"] for crawl in page["items"]]
                if page["next"] is None:
                    assert "link" not in response.headers
                    break
                if len(seen) == 3:
                    await served.created("crawl-00")  # behind us
                    await served.created("crawl-5b")  # ahead of us
                url = response.links["next"]["url"]
        assert seen == [*(f"crawl-{n}" for n in range(6)), "crawl-5b", *(f"crawl-{n}" for n in range(6, 10))]

    told(story)


def test_crawls_are_found_by_state_label_and_prefix(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs", labels={"team": "search", "tier": "1"})
        await served.created("docs-old", start=False, labels={"team": "search"})
        await served.created("news")
        async with served.as_role(Role.VIEWER) as viewer:

            async def names(query: str) -> list[str]:
                return [crawl["name"] for crawl in (await viewer.get(f"/v1/crawls?{query}")).json()["items"]]

            assert await names("state=created") == ["docs-old"]
            assert await names("prefix=docs") == ["docs", "docs-old"]
            assert await names("label=team%3Dsearch") == ["docs", "docs-old"]
            assert await names("label=team%3Dsearch&label=tier%3D1") == ["docs"]
            assert await names("prefix=%25") == []
            assert await names("label=team%3Dsearch&label=team%3Dsearch") == ["docs", "docs-old"]
            problem(await viewer.get("/v1/crawls?label=team%3Dsearch&label=team%3Dnews"), 422, "invalid")
            problem(await viewer.get("/v1/crawls?label=team"), 422, "invalid")
            problem(await viewer.get("/v1/crawls?cursor=nonsense"), 422, "invalid")

    told(story)


def test_an_illegal_verb_is_refused_and_told_what_is_legal(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs", start=False)
        async with served.as_role(Role.OPERATOR) as client:
            refused = problem(await client.post("/v1/crawls/docs/resume"), 409, "illegal-transition")
            assert "start" in refused["allowed_verbs"]
            failed = problem(await client.post("/v1/crawls/docs/retry-failed"), 409, "illegal-transition")
            shown = (await client.get("/v1/crawls/docs")).json()["allowed_verbs"]
            assert refused["allowed_verbs"] == failed["allowed_verbs"] == shown
            assert "refresh" not in refused["hint"], "the crawl fetches each page once"
            states = [
                (await client.post(f"/v1/crawls/docs/{verb}")).json()["crawl"]["state"]
                for verb in ("start", "pause", "resume", "cancel", "start")
            ]
            assert states == ["seeding", "paused", "seeding", "finished", "seeding"]

    told(story)


def test_refresh_needs_recrawl_and_says_so(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs", start=False)
        async with served.as_role(Role.OPERATOR) as client:
            refused = problem(await client.post("/v1/crawls/docs/refresh"), 409, "illegal-transition")
            assert refused["detail"] == "the crawl fetches each page once: set `recrawl` in its spec before a refresh"
            crawl = (await client.get("/v1/crawls/docs")).json()
            assert crawl["allowed_verbs"] == refused["allowed_verbs"] == ["start", "cancel", "reset", "delete"]
            assert crawl["state"] == "created", "nothing was changed"
            again = {**SPEC, "recrawl": {"policy": "fixed", "min_s": 60}}
            crawl = (await client.put("/v1/crawls/docs", json={"spec": again, "start": False})).json()
            assert "refresh" in crawl["allowed_verbs"]
            made = await client.post("/v1/crawls/docs/refresh", headers={"If-Match": '"0-0"'})
            problem(made, 412, "lost-update")
            made = await client.post("/v1/crawls/docs/refresh")
            assert (made.status_code, made.json()["crawl"]["state"]) == (200, "seeding")
            assert made.headers["etag"] != ""
            refused = problem(await client.post("/v1/crawls/docs/refresh"), 409, "illegal-transition")
            assert refused["detail"] == "a refresh of the crawl has begun already: wait for its end"
        async with served.as_role(Role.VIEWER) as viewer:
            problem(await viewer.post("/v1/crawls/docs/refresh"), 403, "forbidden")

    told(story)


def test_a_deleted_name_is_free_and_a_reset_crawl_has_another_id(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            first = await served.created("docs")
            async with served.as_role(Role.OPERATOR) as client:
                turned = (await client.post("/v1/crawls/docs/reset")).json()
                assert (turned["crawl"]["id"], turned["crawl"]["revision"]) == (2, 1)
                command = (await client.get(f"/v1/commands/{turned['command']}")).json()
                assert (command["kind"], command["applied"], command["partitions"]) == ("delete", 0, 4)
                assert await broker.pending_reports() == 4, "every owner is told"
                late = await client.delete("/v1/crawls/docs", headers={"If-Match": first.headers["etag"]})
                problem(late, 412, "lost-update")
                assert (await client.delete("/v1/crawls/docs")).status_code == 204
                problem(await client.get("/v1/crawls/docs"), 404, "not-found")
                problem(await client.post("/v1/crawls/docs/start"), 404, "not-found")
            assert (await served.created("docs")).json()["id"] == 3

    asyncio.run(story())


def test_of_a_delete_and_a_start_that_race_the_delete_stands(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with server.broker() as broker, api(tmp_path / "crawl.db", broker) as served:
            await served.created("docs", start=False)
            async with served.as_role(Role.OPERATOR) as client:
                deleted, started = await asyncio.gather(
                    client.delete("/v1/crawls/docs"), client.post("/v1/crawls/docs/start")
                )
                assert deleted.status_code == 204
                assert started.status_code in (200, 404)
                problem(await client.get("/v1/crawls/docs"), 404, "not-found")

    asyncio.run(story())
