"""A spec opens no network that the operator of the workers did not allow, and never a server of the cluster itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.api.cluster_clients import address, asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EVERYWHERE = {"allow": ["0.0.0.0/0", "::/0"]}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def started(cluster: Cluster, **of_worker: str) -> None:
    cluster.master("m1")
    cluster.worker("w1", ORB_METRICS="127.0.0.1:0", **of_worker)
    cluster.wait_working("w1")
    cluster.wait_until(lambda: cluster.leader() == "m1", "it leads")


def reasons(cluster: Cluster, name: str, *seeds: str, **fetch: Any) -> dict[str, tuple[str | None, str]]:
    """What became of each seed of a finished crawl that opens everything: the reason, and what explains it."""
    spec = {
        "seeds": list(seeds), "scope": {"max_depth": 0}, "politeness": {"obey_robots": False, "delay_s": 0},
        "retry": {"attempts": 1}, "egress": EVERYWHERE, "fetch": fetch,
    }  # fmt: skip
    with asking(cluster, "m1") as client:
        made = client.post("/v1/crawls", json={"name": name, "spec": spec})
        assert made.status_code == 201, made.text
        path = f"/v1/crawls/{name}"
        cluster.wait_until(lambda: client.get(path).json()["state"] == "finished", f"{name} is finished")
        found = {}
        for seed in seeds:
            detail = client.get(f"{path}/urls/lookup", params={"url": seed}).json()
            found[seed] = (
                detail["reason"],
                " ".join(client.get(f"{path}/urls/explain", params={"url": seed}).json()["why"]),
            )
        return found


def test_spec_that_opens_everything_reaches_no_loopback_of_a_plain_worker(
    cluster: Cluster, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=3))
    started(cluster, ORB_ALLOW_NET="")
    site = f"{served.origins[0]}/"
    master = f"{address(cluster, 'm1')}/readyz"
    for seed, (reason, why) in reasons(cluster, "inside", site, master).items():
        assert reason == "egress_denied", seed
        assert "egress.allow[0] (0.0.0.0/0) opens nothing at any worker" in why
    assert served.log() == []
    with asking(cluster, "m1") as client:
        crawl = client.get("/v1/crawls/inside").json()
        assert len(crawl["warnings"]) == 2
        counted = client.get("/v1/crawls/inside/stats").json()
        assert counted["tallies"]["failed"] == {"egress_denied": 2}, counted
        plan = client.post("/v1/crawls/other/plan", json={"spec": {"seeds": [site], "egress": EVERYWHERE}})
        assert plan.json()["warnings"] == crawl["warnings"]


@pytest.mark.smoke
def test_allowed_network_opens_sites_and_no_engine_or_member(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=3))
    started(cluster)
    site = f"{served.origins[0]}/"
    master = urlsplit(address(cluster, "m1"))
    nats = urlsplit(cluster.broker.endpoint.url).port
    metrics = cluster.said("w1", "metrics.exposed")[0]["address"]
    inside = [
        f"http://127.0.0.1:{master.port}/readyz",
        f"http://localhost:{master.port}/readyz",
        f"http://0.0.0.0:{master.port}/readyz",
        f"http://[::ffff:127.0.0.1]:{master.port}/readyz",
        f"http://127.0.0.1:{nats}/",
        f"http://127.0.0.77:{nats}/",
        f"http://{metrics}/metrics",
    ]
    found = reasons(cluster, "mixed", site, *inside)
    assert found.pop(site)[0] is None
    assert {seed: reason for seed, (reason, _) in found.items()} == dict.fromkeys(inside, "egress_denied")


def test_proxy_of_a_spec_is_no_way_around_the_bound(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=3))
    started(cluster)
    site = f"{served.origins[0]}/"
    master = urlsplit(address(cluster, "m1"))
    by_member = reasons(cluster, "by-member", site, proxy=f"http://127.0.0.1:{master.port}")
    assert by_member[site][0] == "egress_denied"
    to_member = reasons(
        cluster, "to-member", f"http://127.0.0.1:{master.port}/readyz", proxy=f"http://{urlsplit(site).netloc}"
    )
    assert [reason for reason, _ in to_member.values()] == ["egress_denied"]
