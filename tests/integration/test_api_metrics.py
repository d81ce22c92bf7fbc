"""/metrics of the API: open to whoever reaches it, and of bounded size, whatever is asked."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from api.server.app import application
from shared.domain.ops.access import Role
from shared.domain.ops.counts import OTHER
from shared.telemetry import Metric, registry_of
from tests.support.api.rest_api import Api, api, client_of, openapi_document, problem
from tests.support.processes.metrics_scrape import Scrape

UP = Metric("up", "gauge", "Up.")
REQUESTS = "orb_http_requests_total"
STREAMS = {"/v1/events", "/v1/crawls/{name}/events"}
"""What does not end by itself."""


@asynccontextmanager
async def measured(folder: Path) -> AsyncIterator[tuple[Api, httpx.AsyncClient]]:
    """An API that keeps metrics, and somebody without a key who asks it."""
    registry = registry_of([UP], lambda: [(UP, {(): 1})])
    async with api(folder / "crawl.db") as served, httpx.AsyncClient() as client:
        app = application(replace(served.app.state.services, registry=registry), client)
        async with client_of(app) as anonymous:
            served.app = app
            yield served, anonymous


async def scrape(client: httpx.AsyncClient) -> Scrape:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape([response.text])


def test_metrics_need_no_key_and_come_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with measured(tmp_path) as (_, client):
            assert (await scrape(client)).sum("orb_up") == 1
            accept = {"Accept": "application/openmetrics-text; version=1.0.0; charset=utf-8"}
            response = await client.get("/metrics", headers=accept)
            assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            assert response.text.endswith("# EOF\n")

    asyncio.run(story())


def test_a_process_without_metrics_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served:
            problem(await served.anonymous.get("/metrics"), 404, "not-found")

    asyncio.run(story())


def test_requests_are_counted_by_route_whatever_they_end_with(tmp_path: Path) -> None:
    async def story() -> None:
        async with measured(tmp_path) as (served, client):
            async with served.as_role(Role.VIEWER) as viewer:
                assert (await viewer.get("/v1/crawls/nowhere")).status_code == 404
                assert (await viewer.delete("/v1/crawls/nowhere")).status_code == 403
            assert (await client.get("/v1/crawls/nowhere")).status_code == 401
            found = await scrape(client)
            crawl = {"handler": "/v1/crawls/{name}", "method": "GET"}
            assert found.by("status", REQUESTS, **crawl) == {"404": 1, "401": 1}
            assert found.by("status", REQUESTS, handler="/v1/crawls/{name}", method="DELETE") == {"403": 1}
            assert found.sum("orb_http_request_duration_seconds_count", **crawl) == 2

    asyncio.run(story())


def test_nobody_who_asks_chooses_a_label(tmp_path: Path) -> None:
    async def story() -> None:
        async with measured(tmp_path) as (_, client):
            for n in range(20):
                await client.get(f"/nothing/{n}")
                await client.get(f"/v1/crawls/c{n}/urls?cursor={n}")
                await client.request(f"VERB{n}", f"/v1/crawls/c{n}")
                await client.request(f"VERB{n}", f"/{n}")
            found = await scrape(client)
            seen = {(labels["handler"], labels["method"]) for labels in found.labels(REQUESTS)}
            assert seen == {
                ("none", "GET"),
                ("none", OTHER),
                ("/v1/crawls/{name}/urls", "GET"),
                ("/v1/crawls/{name}", OTHER),
            }
            assert found.sum(REQUESTS) == 80

    asyncio.run(story())


def test_rejected_and_served_requests_count_under_the_same_route(tmp_path: Path) -> None:
    async def story() -> None:
        async with measured(tmp_path) as (served, client), served.as_role(Role.ADMIN) as admin:
            paths = [path for path, item in openapi_document()["paths"].items() if "get" in item]
            for path in paths:
                asked = re.sub(r"\{\w+\}", "1", path)
                if path not in STREAMS:
                    await admin.get(asked)
                await client.get(asked)
            found = await scrape(client)
            assert set(found.by("handler", REQUESTS)) == set(paths)

    asyncio.run(story())
