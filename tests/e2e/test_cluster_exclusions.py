"""An exclusion in a cluster of real processes: it holds at once, for every crawl, and for all that is queued."""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.engines.postgres import PostgresServer
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

TRAP = 100_000


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


def stats(api: httpx.Client, name: str) -> dict[str, Any]:
    """The crawl's counters, of which both identities must hold."""
    found: dict[str, Any] = api.get(f"/v1/crawls/{name}/stats").json()
    assert found["identity"] == {"url_drift": 0, "link_drift": 0}
    counters: dict[str, Any] = found["counters"]
    return counters


def create(api: httpx.Client, name: str, seed: str) -> None:
    spec = {"seeds": [seed], "politeness": {"delay_s": 0.02}, "egress": {"allow": ["127.0.0.0/8"]}}
    created = api.post("/v1/crawls", json={"name": name, "spec": spec})
    assert created.status_code == 201, created.text


def upload(api: httpx.Client, name: str, urls: list[str]) -> None:
    """Give the seeds in parts; a full subject says when to go on."""
    while urls:
        part, urls = urls[:10_000], urls[10_000:]
        while True:
            answer = api.post(
                f"/v1/crawls/{name}/seeds", content="\n".join(part), headers={"Content-Type": "text/plain"}
            )
            if answer.status_code != 429:
                break
            part = part[answer.json()["accepted"] :]
            time.sleep(int(answer.headers["retry-after"]))
        assert answer.status_code == 200, answer.text


@pytest.mark.timeout(300)
def test_exclusion_of_a_trap_lets_none_of_its_urls_be_requested(cluster: Cluster, web: Callable[..., Web]) -> None:
    """The trap has 100,000 queued URLs in one crawl, and some in another; a third host is crawled on."""
    served = web(SyntheticSite(pages=40, hosts=2))
    free, trap = served.origins
    for name in ("w1", "w2"):
        cluster.worker(name)
    with asking(cluster, "m1") as api:
        create(api, "docs", f"{free}/")
        create(api, "second", f"{trap}/second")
        upload(api, "docs", [f"{trap}/trap/{n}" for n in range(TRAP)])
        cluster.wait_until(lambda: stats(api, "docs")["discovered"] > TRAP, "the trap is queued")
        served.wait_until(lambda log: sum(each.host == served.hosts[1] for each in log) > 50)
        assert stats(api, "docs")["queued"] > TRAP * 0.9, "the trap is still queued"

        host = served.hosts[1].partition(":")[0]
        body = {"target": host, "reason": "asked by mail", "requested_by": "webmaster@example.org"}
        made = api.post("/v1/exclusions", json=body)
        assert made.status_code == 201, made.text
        command = f"/v1/commands/{made.json()['command']}"
        cluster.wait_until(
            lambda: (body := api.get(command).json())["applied"] == body["partitions"], "the exclusion is applied"
        )
        applied_ns = time.monotonic_ns()

        cluster.wait_until(lambda: stats(api, "docs")["queued"] == 0, "the queue is empty")
        upload(api, "second", [f"{trap}/late/{n}" for n in range(100)])
        cluster.wait_until(lambda: stats(api, "second")["discovered"] > 100, "later seeds are there")
        for name in ("docs", "second"):
            cluster.wait_until(partial(_finished, api, name), "it is finished")
        requests = [each for each in served.log() if each.host == served.hosts[1]]
        assert [each.path for each in requests if each.begun_ns > applied_ns] == []
        counters = stats(api, "docs")
        assert counters["excluded"] > TRAP * 0.9
        assert counters["excluded"] + len({each.path for each in requests} - {"/robots.txt"}) >= TRAP
        assert counters["pages"] > 0, "the other host was crawled"
        assert stats(api, "second")["excluded"] >= 100

        url = f"{trap}/late/1"
        told = api.get("/v1/crawls/second/urls/explain", params={"url": url}).json()
        assert (told["state"], told["blocking_reason"]) == (
            "excluded", f"the exclusion of {host}/32 covers it: asked by mail",
        )  # fmt: skip
        assert api.delete(made.headers["location"]).status_code == 204
        cluster.wait_until(lambda: _fetched_again(api, url, served), "a seed is fetched once the exclusion is over")
        stats(api, "second")


def _finished(api: httpx.Client, name: str) -> bool:
    return bool(api.get(f"/v1/crawls/{name}").json()["state"] == "finished")


def _fetched_again(api: httpx.Client, url: str, served: Web) -> bool:
    """Give the seed once more; True when it was requested. The owner may learn a moment later that it is free."""
    assert api.post("/v1/crawls/second/seeds", json={"seeds": [url]}).status_code == 200
    return any(each.path == "/late/1" for each in served.log())
