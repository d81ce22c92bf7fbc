"""A wider scope of a crawl over REST, on a master that cannot read the archive of its stored pages."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, text

from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, Api, Story, problem
from tests.support.api.rest_api import told as told
from tests.support.engines.nats_server import server as server

WIDER = {"spec": {**SPEC, "scope": {"max_depth": 4}}}
NARROWER = {"spec": {**SPEC, "scope": {"max_depth": 2}}}
_COUNT = text(
    "INSERT INTO crawl_tallies (crawl_id, partition, kind, key, n)"
    " SELECT crawl_id, 0, 'outlinks', 'left_out', :n FROM crawls WHERE name = 'docs'"
)


_STATE = text("UPDATE crawls SET state = :state WHERE name = 'docs'")
_LEASED = text(
    "INSERT INTO crawl_counters (crawl_id, partition, version, discovered, leased)"
    " SELECT crawl_id, 0, 1, 1, :n FROM crawls WHERE name = 'docs'"
    " ON CONFLICT (crawl_id, partition) DO UPDATE SET leased = excluded.leased"
)


async def put(served: Api, statement: TextClause, **values: object) -> None:
    """Change the crawl's rows as an owner or the leader does."""

    def change(connection: Connection) -> None:
        connection.execute(statement, values)

    await served.threads.write(change)


async def pages_with_links_left_out(served: Api, n: int) -> None:
    """Count `n` stored pages of the crawl with links that the scope left out, as an owner does."""

    def count(connection: Connection) -> None:
        connection.execute(_COUNT, {"n": n})

    await served.threads.write(count)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_wider_scope_without_archive_is_refused_and_planned_so(method: str, told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs")
        await pages_with_links_left_out(served, 7)
        async with served.as_role(Role.OPERATOR) as client:
            plan = (await client.post("/v1/crawls/docs/plan", json=WIDER)).json()
            assert plan["scope"]["pages_to_read"] == 7
            assert any("cannot read the archive" in warning for warning in plan["warnings"])
            refused = await client.request(method, "/v1/crawls/docs", json=WIDER)
            assert "cannot read the archive" in problem(refused, 409, "no-archive")["detail"]
            crawl = (await client.get("/v1/crawls/docs")).json()
            assert (crawl["revision"], crawl["spec"]["scope"]["max_depth"]) == (1, 3)

    told(story)


@pytest.mark.parametrize("state", ["seeding", "running"])
def test_wider_scope_is_refused_while_pages_may_be_stored_without_archive(
    state: str, told: Callable[[Story], None]
) -> None:
    """Their links would wait for an archive, and the crawl would not finish."""

    async def story(served: Api) -> None:
        await served.created("docs")
        await put(served, _STATE, state=state)
        await put(served, _LEASED, n=0)
        async with served.as_role(Role.OPERATOR) as client:
            plan = (await client.post("/v1/crawls/docs/plan", json=WIDER)).json()
            assert any("that are being stored" in warning for warning in plan["warnings"])
            for method in ("PUT", "PATCH"):
                refused = await client.request(method, "/v1/crawls/docs", json=WIDER)
                assert "while the crawl is paused" in problem(refused, 409, "no-archive")["detail"]
            await put(served, _STATE, state="paused")
            await put(served, _LEASED, n=1)
            refused = await client.put("/v1/crawls/docs", json=WIDER)
            assert "that are being stored" in problem(refused, 409, "no-archive")["detail"]
            await put(served, _LEASED, n=0)
            changed = await client.put("/v1/crawls/docs", json=WIDER)
            assert (changed.status_code, changed.json()["revision"]) == (200, 2)

    told(story)


@pytest.mark.parametrize(("body", "left_out"), [(NARROWER, 7), (WIDER, 0)])
def test_scope_that_needs_no_archive_is_changed_without_one(
    body: dict[str, Any], left_out: int, told: Callable[[Story], None]
) -> None:
    async def story(served: Api) -> None:
        await served.created("docs")
        await pages_with_links_left_out(served, left_out)
        async with served.as_role(Role.OPERATOR) as client:
            plan = (await client.post("/v1/crawls/docs/plan", json=body)).json()
            assert not any("archive" in warning for warning in plan["warnings"])
            changed = await client.put("/v1/crawls/docs", json=body)
        assert (changed.status_code, changed.json()["revision"]) == (200, 2)

    told(story)
