"""Seed sets in a cluster of real processes: what leaves the sets is fetched no more, whichever process is killed."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.engines.postgres import PostgresServer
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

SEEDS = 400
"""More than a host gives in the time of the test at its delay. The web answers 404 to most."""


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = asyncio.run(server.database())
    with opened(tmp_path, url) as made:
        yield made


def put(api: httpx.Client, name: str, seeds: list[str]) -> str:
    """Put a seed set, and return the path of its command."""
    answer = api.put(f"/v1/crawls/docs/seed-sets/{name}", json={"seeds": seeds})
    assert answer.status_code in (200, 201), answer.text
    assert api.get(f"/v1/crawls/docs/seed-sets/{name}").json()["seeds"] == seeds
    return f"/v1/commands/{answer.json()['command']}"


def applied(api: httpx.Client, command: str) -> bool:
    body = api.get(command).json()
    return bool(body["applied"] == body["partitions"])


def finished(api: httpx.Client) -> bool:
    return bool(api.get("/v1/crawls/docs").json()["state"] == "finished")


@pytest.mark.timeout(300)
def test_smaller_set_holds_though_leader_and_worker_are_killed(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=3, hosts=3))
    large, free, start = served.hosts
    first = cluster.master("m1")
    cluster.wait_until(lambda: cluster.leader() == "m1", "m1 leads")
    cluster.master("m2")
    worker = cluster.worker("w1")
    urls = [f"http://{large}/s{number}" for number in range(SEEDS)]
    kept, shared, uploaded, free_urls = urls[-2:], urls[-4:-2], urls[-5], [f"http://{free}/s{n}" for n in range(4)]
    with asking(cluster, "m1") as api:
        spec = {
            "seeds": [f"http://{start}/0"],
            "politeness": {"delay_s": 0.25},
            "scope": {"max_depth": 0},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        put(api, "two", shared)
        early = put(api, "one", urls + free_urls)
        cluster.wait_until(lambda: applied(api, early), "the first set is applied", 60)
        assert api.post("/v1/crawls/docs/seeds", json={"seeds": [uploaded]}).status_code == 200
        served.wait_until(lambda log: sum(each.host == large for each in log) > 3)
        command = put(api, "one", kept)
    first.signal(signal.SIGKILL)
    worker.signal(signal.SIGKILL)
    cluster.worker("w2")

    with asking(cluster, "m2") as api:
        cluster.wait_until(lambda: applied(api, command), "the next leader has the smaller set applied", 120)
        withdrawn_ns = time.monotonic_ns()
        cluster.wait_until(lambda: finished(api), "the crawl is finished", 120)
        paths = {f"http://{each.host}{each.path}" for each in served.log()}
        late = {f"http://{each.host}{each.path}" for each in served.log() if each.begun_ns > withdrawn_ns}
        assert {*kept, *shared, uploaded} <= paths, "what the sets have, and what was uploaded, is fetched"
        assert late <= {*kept, *shared, uploaded, f"http://{large}/robots.txt", f"http://{free}/robots.txt"}
        counters = api.get("/v1/crawls/docs/stats").json()["counters"]
        ends = sum(counters[name] for name in ("done", "failed", "excluded"))
        assert (counters["queued"], counters["leased"], counters["discovered"]) == (0, 0, ends)
        assert counters["accepted"] == counters["new"] + counters["known"] + counters["refused"]
        left = set(urls + free_urls) - {*kept, *shared, uploaded} - paths
        assert len(left) > SEEDS // 2, "most left before they were fetched"
        for url in (min(left), max(left)):
            told = api.get("/v1/crawls/docs/urls/lookup", params={"url": url}).json()
            assert (told["state"], told["reason"]) == ("excluded", "seed_withdrawn")
        assert counters["excluded"] >= len(left)

        again = put(api, "three", [min(left)])
        cluster.wait_until(lambda: applied(api, again), "the new set is applied", 60)
        served.wait_until(lambda log: any(f"http://{each.host}{each.path}" == min(left) for each in log))
        answer = api.delete("/v1/crawls/docs/seed-sets/three")
        assert answer.status_code == 202, answer.text
