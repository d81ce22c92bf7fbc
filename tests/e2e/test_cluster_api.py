"""The API of a cluster's masters, over real sockets: any of them answers, and writes reach the leader."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.api.cluster_clients import address, asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

DELAY_S = 0.05


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def body(served: Web, name: str) -> dict[str, object]:
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": DELAY_S},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    return {"name": name, "spec": spec}


@pytest.mark.smoke
def test_a_crawl_declared_at_a_follower_runs_and_is_shown_there(cluster: Cluster, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=200, hosts=8)
    served = web(site)
    for name in ("m1", "m2"):
        cluster.master(name)
    for name in ("w1", "w2"):
        cluster.worker(name)
    cluster.wait_until(lambda: set(cluster.owners()) == {cluster.leader()}, "the leader owns all partitions")
    leader = cluster.leader()
    assert leader is not None
    follower = "m2" if leader == "m1" else "m1"
    with asking(cluster, follower) as api:
        assert httpx.get(f"{address(cluster, follower)}/v1/crawls", timeout=20).status_code == 401
        assert api.get("/livez").status_code == 200
        assert api.get("/readyz").status_code == 200
        assert "swagger" in api.get("/docs").text.lower()
        made = api.post("/v1/crawls", json=body(served, "docs"))
        assert made.status_code == 201, made.text
        cluster.wait_until(lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished")
        stats = api.get("/v1/crawls/docs/stats").json()
    expected = site.expected_pages(served.origins)
    assert sorted(cluster.pages()) == sorted(expected)
    assert min(log_judge.smallest_gap(served.log(), host) for host in log_judge.hosts(served.log())) >= DELAY_S
    assert stats
