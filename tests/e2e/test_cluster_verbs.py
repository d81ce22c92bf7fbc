"""What operators ask of crawls that run or are over, over real sockets and real processes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.domain.ids import CrawlId
from tests.support.api.cluster_clients import asking
from tests.support.engines.postgres import PostgresServer
from tests.support.machine_clock import living
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

DOCS = "/v1/crawls/docs"


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two masters: on PostgreSQL each owns half of the partitions."""
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = asyncio.run(server.database())
    with opened(tmp_path, url) as made:
        for name in ("m1", "m2"):
            made.master(name)
        yield made


def stats(api: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{DOCS}/stats").json()
    assert found["identity"] == {"url_drift": 0, "link_drift": 0}
    counters: dict[str, Any] = found["counters"]
    return counters


def test_seeds_are_added_and_deleted_and_rows_of_deleted_crawl_collected(
    cluster: Cluster, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=40, hosts=4))
    worker = cluster.worker("w1")
    with asking(cluster, "m1") as api:

        def state(wanted: str) -> Callable[[], bool]:
            return lambda: api.get(DOCS).json()["state"] == wanted

        def applied(response: httpx.Response) -> None:
            assert response.status_code == 202, response.text
            command = f"/v1/commands/{response.json()['command']}"
            cluster.wait_until(
                lambda: (body := api.get(command).json())["applied"] == body["partitions"], "the command is applied"
            )

        spec = {
            "seeds": [f"{served.origins[0]}/"],
            "scope": {"max_depth": 0},
            "politeness": {"delay_s": 0.05},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        cluster.wait_until(state("finished"), "the crawl is finished")
        assert stats(api)["pages"] == 1

        added = [f"{origin}/robots-not.html" for origin in served.origins[1:]]
        assert api.post(f"{DOCS}/seeds", json={"seeds": added}).json()["accepted"] == len(added)
        cluster.wait_until(lambda: stats(api)["failed"] == len(added), "the seeds are fetched, and are not there")
        cluster.wait_until(state("finished"), "the crawl is finished again")

        def paused() -> bool:
            """Whether it is, before it is finished once more: it has nothing to do."""
            assert api.post(f"{DOCS}/start").status_code == 200
            return api.post(f"{DOCS}/pause").status_code == 200

        cluster.wait_until(paused, "it runs, and is paused")
        assert state("paused")()
        never = [f"http://127.0.0.1:1/{n}" for n in range(30)]
        assert api.post(f"{DOCS}/seeds", json={"seeds": never}).json()["accepted"] == len(never)
        applied(api.request("DELETE", f"{DOCS}/seeds", json={"seeds": never[:10]}))
        why = api.get(f"{DOCS}/urls/explain", params={"url": never[0]}).json()
        assert why["state"] == "excluded"
        assert "an operator took it from the seeds" in why["blocking_reason"]
        assert stats(api)["excluded"] == 10
        applied(api.request("DELETE", f"{DOCS}/seeds", json={"all": True}))
        assert (stats(api)["excluded"], stats(api)["queued"]) == (30, 0)

        crawl_id = CrawlId(api.get(DOCS).json()["id"])
        worker.end()
        assert api.delete(DOCS).status_code == 204
        collected = f"SELECT count(*) FROM crawls WHERE crawl_id = {crawl_id} AND collected_at_ms IS NOT NULL"
        cluster.wait_until(lambda: cluster.query(collected) == [(1,)], "its rows are collected")
        for table in ("urls", "queues", "crawl_counters", "dead_letters", "leases"):
            assert cluster.query(f"SELECT count(*) FROM {table} WHERE crawl_id = {crawl_id}") == [(0,)], table


@pytest.mark.parametrize("verb", ["cancel", "pause", "delete"])
def test_no_request_starts_later_than_a_second_after_the_verb(
    cluster: Cluster, web: Callable[..., Web], verb: str
) -> None:
    """Shards of ten seconds are out by then. What is out comes back, and is neither lost nor done."""
    served = web(SyntheticSite(pages=2_000, hosts=8))
    cluster.worker("w1")
    with asking(cluster, "m1") as api, living() as lived:
        spec: dict[str, object] = {
            "seeds": [f"{origin}/" for origin in served.origins],
            "scope": {"mode": "any"},
            "politeness": {"delay_s": 0.2, "obey_robots": False},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        created = api.post("/v1/crawls", json={"name": "docs", "spec": spec})
        assert created.status_code == 201, created.text
        served.wait_served(300)
        response = api.delete(DOCS) if verb == "delete" else api.post(f"{DOCS}/{verb}")
        assert response.status_code in (200, 204), response.text
        answered = lived()
        while lived() < answered + 1.0:
            time.sleep(0.01)
        late_ns = time.monotonic_ns()
        crawl_id = CrawlId(created.json()["id"])
        cluster.wait_until(lambda: cluster.leased(crawl_id) == 0, "what was out has come back")
        assert [each.path for each in served.log() if each.begun_ns > late_ns] == []
        if verb != "delete":
            assert stats(api)["queued"] > 0
