"""The audit log over REST: what was done is there, for admins only, and found by who, what and when."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from shared.domain.crawl.exclusions import MAX_TARGET_CHARS
from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, api, problem


async def listed(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """Every act, page by page."""
    items: list[dict[str, Any]] = []
    response = await client.get("/v1/audit", params={"limit": 2, **query})
    while True:
        assert response.status_code == 200, response.text
        items += response.json()["items"]
        if "next" not in response.links:
            return items
        response = await client.get(response.links["next"]["url"])


def test_what_was_done_is_listed_newest_first_and_found_by_who_what_and_when(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            async with served.as_role(Role.OPERATOR) as operator:
                for name in ("docs", "news"):
                    made = await operator.post("/v1/crawls", json={"name": name, "spec": SPEC})
                    assert made.status_code == 201
                await operator.post("/v1/crawls/docs/pause")
                again = await operator.put("/v1/crawls/docs", json={"spec": SPEC})
                assert again.status_code == 200
            shown = await listed(admin, action="crawl.")
            assert [(act["action"], act["target"]) for act in shown] == [
                ("crawl.pause", "docs"), ("crawl.create", "news"), ("crawl.create", "docs"),
            ]  # fmt: skip
            pause = shown[0]
            assert pause["actor"].startswith("operator (")
            assert (pause["before"]["state"], pause["after"]["state"]) == ("seeding", "paused")
            assert shown[-1]["before"] is None
            assert shown[-1]["request"] != shown[0]["request"]
            assert await listed(admin, actor="operator", target="docs", action="crawl.pause") == [pause]
            assert await listed(admin, actor=pause["actor"].split("(")[1].rstrip(")"), target="docs") == [
                shown[0], shown[2],
            ]  # fmt: skip
            since = await listed(admin, since=pause["at"])
            assert since[0] == pause
            assert pause not in await listed(admin, until=pause["at"])
            assert {act["action"] for act in await listed(admin)} > {"key.create"}

    asyncio.run(story())


def test_the_audit_log_is_for_admins_and_its_conditions_are_judged(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            for role in (Role.VIEWER, Role.OPERATOR):
                async with served.as_role(role) as client:
                    problem(await client.get("/v1/audit"), 403, "forbidden")
            problem(await served.anonymous.get("/v1/audit"), 401, "unauthenticated")
            problem(await admin.get("/v1/audit?since=2030-01-01T00:00:00"), 422, "invalid")
            problem(await admin.get("/v1/audit?until=soon"), 422, "invalid")
            problem(await admin.get("/v1/audit?cursor=x"), 422, "invalid")
            for name in ("actor", "action", "target"):  # nobody means "of nobody" by it, and nobody "of all"
                (wrong,) = problem(await admin.get(f"/v1/audit?{name}="), 422, "invalid")["errors"]
                assert wrong == {"path": f"query.{name}", "message": "is empty"}

    asyncio.run(story())


def test_audit_lists_the_exclusion_with_the_longest_target(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            start = "http://a.test/"
            target = start + "x" * (MAX_TARGET_CHARS - len(start))
            asked = {"target": target, "reason": "asked by mail", "requested_by": "webmaster@a.test"}
            async with served.as_role(Role.OPERATOR) as operator:
                assert (await operator.post("/v1/exclusions", json=asked)).status_code == 201
            assert [act["action"] for act in await listed(admin, target=target)] == ["exclusion.create"]
            problem(await admin.get("/v1/audit", params={"target": target + "x"}), 422, "invalid")

    asyncio.run(story())


def test_networks_that_a_spec_opens_stand_in_the_audit_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            inside = {**SPEC, "egress": {"allow": ["10.0.0.0/8"]}}
            async with served.as_role(Role.OPERATOR) as operator:
                assert (await operator.post("/v1/crawls", json={"name": "docs", "spec": inside})).status_code == 201
                wider = {"spec": {"egress": {"allow": ["0.0.0.0/0"]}}}
                assert (await operator.patch("/v1/crawls/docs", json=wider)).status_code == 200
                assert (await operator.put("/v1/crawls/docs", json={"spec": SPEC})).status_code == 200
            shown = await listed(admin, action="crawl.")
            opened = [
                [(act[side] or {}).get("egress_allow") for side in ("before", "after")] for act in reversed(shown)
            ]
            assert opened == [[None, ["10.0.0.0/8"]], [["10.0.0.0/8"], ["0.0.0.0/0"]], [["0.0.0.0/0"], None]]
            assert all(act["actor"].startswith("operator (") for act in shown)

    asyncio.run(story())
