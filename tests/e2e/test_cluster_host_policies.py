"""Host policies in a cluster of real processes: they reach all hosts, and outlive their owners and leaders."""

import asyncio
import itertools
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

DELAY_S = 1.5
QUIET_NS = 5_000_000_000
URLS = 15, 100
"""Seeds of each host, and those of the host without a policy. The web answers 404 to most."""


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = asyncio.run(server.database())
    with opened(tmp_path, url) as made:
        yield made


def put(api: httpx.Client, host: str, policy: dict[str, object]) -> str:
    """Declare a policy, and return the path of its command."""
    answer = api.put(f"/v1/host-policies/{host}", json=policy)
    assert answer.status_code in (200, 201), answer.text
    return f"/v1/commands/{answer.json()['command']}"


def applied(api: httpx.Client, command: str) -> bool:
    body = api.get(command).json()
    return bool(body["applied"] == body["partitions"])


def left_alone(api: httpx.Client, served: Web, host: str) -> bool:
    """Return True if the host is shown as blocked, and had no request for QUIET_NS: visits are over."""
    since_ns = time.monotonic_ns() - QUIET_NS
    blocked = api.get(f"/v1/hosts/{host}").json()["host"]["blocked_until"] is not None
    return blocked and not any(each.host == host and each.begun_ns > since_ns for each in served.log())


@pytest.mark.timeout(300)
def test_policy_outlives_the_master_that_took_it_and_the_owner(cluster: Cluster, web: Callable[..., Web]) -> None:
    """A block stops a crawl under way. The master that leads and owns its partitions is killed right after the PUT."""
    served = web(SyntheticSite(pages=3, hosts=3))
    slow, free, blocked = served.hosts
    first = cluster.master("m1")
    cluster.wait_until(lambda: cluster.leader() == "m1", "m1 leads")
    cluster.master("m2")
    cluster.worker("w1")
    with asking(cluster, "m1") as api:
        early = put(api, slow, {"delay_s": DELAY_S})
        cluster.wait_until(lambda: applied(api, early), "the policy of a host that no crawl knows is applied")
        seeds = [f"http://{host}/{number}" for host in served.hosts for number in range(URLS[host == free])]
        spec = {"seeds": seeds, "politeness": {"delay_s": 0.2}, "egress": {"allow": ["127.0.0.0/8"]}}
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        served.wait_until(lambda log: sum(each.host == blocked for each in log) > 3)
        command = put(api, blocked, {"block": {"reason": "asked by mail"}})
    first.signal(signal.SIGKILL)

    with asking(cluster, "m2") as api:
        cluster.wait_until(lambda: applied(api, command), "the next leader has the block applied", 120)
        cluster.wait_until(lambda: left_alone(api, served, blocked), "the host is left alone")
        quiet_ns = time.monotonic_ns()
        served.wait_until(lambda log: sum(each.host == free and each.begun_ns > quiet_ns for each in log) > 10)
        told = api.get("/v1/crawls/docs/urls/explain", params={"url": f"http://{blocked}/14"}).json()
        reasons = [each["detail"] for each in told["rules"] if each["rule"] == "blocked"]
        assert reasons == [f"the policy of {blocked} blocks it without an end: asked by mail"]
        assert [each.path for each in served.log() if each.host == blocked and each.begun_ns > quiet_ns] == []

        answer = api.delete(f"/v1/host-policies/{blocked}")
        assert answer.status_code == 202, answer.text
        cluster.wait_until(
            lambda: bool(api.get("/v1/crawls/docs").json()["state"] == "finished"), "the crawl is finished", 120
        )
        assert any(each.host == blocked and each.begun_ns > quiet_ns for each in served.log())
        assert api.get(f"/v1/host-policies/{slow}").json()["delay_s"] == DELAY_S
    requests = sorted((each for each in served.log() if each.host == slow), key=lambda each: each.begun_ns)
    gaps = [after.begun_ns - before.ended_ns for before, after in itertools.pairwise(requests)]
    assert len(gaps) > 10
    assert min(gaps) >= DELAY_S * 1e9
