"""A crawl that declares whether it runs, in a cluster of real processes: it starts, stops and goes on by PUTs alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        made.master("m1")
        made.worker("w1")
        yield made


def state(api: httpx.Client) -> tuple[str, str, bool]:
    crawl = api.get("/v1/crawls/docs").json()
    return crawl["state"], crawl["desired"], crawl["drifted"]


@pytest.mark.timeout(300)
def test_crawl_follows_its_declaration_and_ends_without_drift(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=40))
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "politeness": {"delay_s": 0.2},
        "egress": {"allow": ["127.0.0.0/8"]},
    }

    def put(desired: str) -> None:
        body: dict[str, Any] = {"spec": spec, "desired": desired}
        answer = api.put("/v1/crawls/docs", json=body)
        assert answer.status_code in (200, 201), answer.text

    with asking(cluster, "m1") as api:
        put("paused")
        assert state(api) == ("created", "paused", False)
        assert served.log() == []
        put("running")
        served.wait_until(lambda log: len(log) > 5)
        assert api.post("/v1/crawls/docs/pause").status_code == 200
        assert state(api) == ("paused", "running", True)
        cluster.wait_until(lambda: api.get("/v1/crawls/docs/stats").json()["counters"]["leased"] == 0, "it is paused")
        requests = len(served.log())
        put("running")
        served.wait_until(lambda log: len(log) > requests)
        cluster.wait_until(lambda: state(api)[0] == "finished", "the crawl is finished", 120)
        assert state(api) == ("finished", "running", False)
        tag = api.get("/v1/crawls/docs").headers["etag"]
        put("running")
        assert state(api) == ("finished", "running", False)
        assert api.get("/v1/crawls/docs").headers["etag"] == tag, "a crawl that ended by itself is no drift"
        assert api.get("/v1/crawls/docs").json()["revision"] == 1
