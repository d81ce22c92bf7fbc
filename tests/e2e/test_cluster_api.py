"""The API of a cluster's masters, over real sockets: any of them answers, and writes reach the leader."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import judge
from tests.support.cluster import TTL_S, Cluster
from tests.support.cluster import cluster as opened
from tests.support.synthetic import SyntheticSite
from tests.support.web import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

DELAY_S = 0.05
SLACK_S = 2.0
FIRST_KEY = "the first admin key, shown this once: "


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def address(cluster: Cluster, name: str) -> str:
    """Where a master's API is, as it said itself."""
    cluster.wait_until(lambda: bool(cluster.said(name, "master.started")), f"{name} has started")
    return f"http://{cluster.said(name, 'master.started')[-1]['http']}"


def admin(cluster: Cluster) -> dict[str, str]:
    """The header with the first key, which one master has shown once."""
    said = "".join(member.log.read_text() for member in cluster.members.values())
    assert said.count(FIRST_KEY) == 1
    return {"Authorization": f"Bearer {said.split(FIRST_KEY)[1].split()[0]}"}


def body(served: Web, name: str) -> dict[str, object]:
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": DELAY_S},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    return {"name": name, "spec": spec}


def test_a_crawl_declared_at_a_follower_runs_and_writes_work_again_after_the_leader_died(
    cluster: Cluster, web: Callable[..., Web]
) -> None:
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
    places = {name: address(cluster, name) for name in (leader, follower)}
    key = admin(cluster)
    with httpx.Client(base_url=places[follower], headers=key, timeout=20) as api:
        assert httpx.get(f"{places[follower]}/v1/crawls", timeout=20).status_code == 401
        assert api.get("/livez").status_code == 200
        assert api.get("/readyz").status_code == 200
        assert "swagger" in api.get("/docs").text.lower()
        made = api.post("/v1/crawls", json=body(served, "docs"))
        assert made.status_code == 201, made.text
        cluster.wait_until(lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished")
        stats = api.get("/v1/crawls/docs/stats").json()
    expected = site.expected_pages(served.origins)
    assert sorted(cluster.pages()) == sorted(expected)
    assert min(judge.smallest_gap(served.log(), host) for host in judge.hosts(served.log())) >= DELAY_S
    assert stats

    cluster.members[leader].end()
    died = time.monotonic()
    with httpx.Client(base_url=places[follower], headers=key, timeout=20) as api:
        assert api.get("/v1/crawls/docs").status_code == 200, "reads never stop"
        answers: list[int] = []

        def written() -> bool:
            answers.append(api.post("/v1/crawls", json=body(served, "again")).status_code)
            return answers[-1] == 201

        cluster.wait_until(written, "a write works again")
    assert time.monotonic() - died <= TTL_S + SLACK_S + 2.0  # the last: what one try may take to be refused
    assert set(answers[:-1]) <= {502, 503, 504}, "no leader is said, never guessed"
