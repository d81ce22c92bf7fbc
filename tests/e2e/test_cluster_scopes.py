"""A changed scope in a cluster of real processes: it holds for all that is queued, and can be widened again."""

import asyncio
import time
from collections import Counter
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
from tests.support.web.file_site import FileTree
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

TRAP = 20_000
IDENTITIES = {"url_drift": 0, "link_drift": 0}


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two masters with the workers' archive: on PostgreSQL each owns half of the partitions."""
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = asyncio.run(server.database())
    home = tmp_path / "workers"
    home.mkdir()
    with opened(tmp_path, url) as made:
        for name in ("m1", "m2"):
            made.master(name, ORB_ARCHIVE=str(home / "archive"))
        yield made


def workers(cluster: Cluster) -> None:
    """Start two workers with one archive."""
    for name in ("w1", "w2"):
        cluster.worker(name, ORB_DIR=str(cluster.folder / "workers"))


def counters(api: httpx.Client) -> dict[str, Any]:
    """The crawl's counters, of which both identities must hold."""
    found: dict[str, Any] = api.get("/v1/crawls/docs/stats").json()
    assert found["identity"] == IDENTITIES
    numbers: dict[str, Any] = found["counters"]
    return numbers


def upload(api: httpx.Client, urls: list[str]) -> None:
    """Give the seeds in parts; a full subject says when to go on."""
    while urls:
        part, urls = urls[:10_000], urls[10_000:]
        while True:
            content = "\n".join(part)
            answer = api.post("/v1/crawls/docs/seeds", content=content, headers={"Content-Type": "text/plain"})
            if answer.status_code != 429:
                break
            part = part[answer.json()["accepted"] :]
            time.sleep(int(answer.headers["retry-after"]))
        assert answer.status_code == 200, answer.text


def change(api: httpx.Client, scope: dict[str, Any]) -> None:
    """Declare another scope."""
    answer = api.patch("/v1/crawls/docs", json={"spec": {"scope": scope}})
    assert answer.status_code == 200, answer.text


@pytest.mark.timeout(300)
def test_excluded_trap_is_not_requested_and_comes_back_when_it_is_admitted(
    cluster: Cluster, web: Callable[..., Web]
) -> None:
    """The trap has thousands of queued URLs on one host; another host is crawled on."""
    served = web(SyntheticSite(pages=40, hosts=2))
    free, trap = served.origins
    workers(cluster)
    with asking(cluster, "m1") as api:
        spec = {"seeds": [f"{free}/"], "politeness": {"delay_s": 0.02}, "egress": {"allow": ["127.0.0.0/8"]}}
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        upload(api, [f"{trap}/trap/{n}" for n in range(TRAP)])
        cluster.wait_until(lambda: counters(api)["discovered"] > TRAP, "the trap is queued")
        served.wait_until(lambda log: sum(each.path.startswith("/trap/") for each in log) > 50)

        wanted = api.get("/v1/crawls/docs").json()["spec"] | {"scope": {"exclude": ["/trap/"]}}
        plan = api.post("/v1/crawls/docs/plan", json={"spec": wanted}).json()["scope"]
        queued = counters(api)["queued"]
        assert not plan["exact"], "of so many only a sample is read"
        assert abs(plan["leaving"] - queued) < TRAP * 0.1
        assert plan["rules"] == {"exclude_pattern": plan["leaving"]}

        change(api, {"exclude": ["/trap/"]})
        cluster.wait_until(partial(_queue_empty, api), "the trap has left the queue")
        emptied_ns = time.monotonic_ns()
        cluster.wait_until(partial(_finished, api), "it is finished")
        requests = [each for each in served.log() if each.path.startswith("/trap/")]
        assert [each.path for each in requests if each.begun_ns > emptied_ns] == []
        asked, found = len({each.path for each in requests}), counters(api)
        assert asked < TRAP / 2
        assert found["excluded"] + asked >= TRAP
        url = f"{trap}/trap/{TRAP - 1}"
        told = api.get("/v1/crawls/docs/urls/explain", params={"url": url}).json()
        assert (told["state"], told["blocking_reason"]) == (
            "excluded", "matches '/trap/' (revision 2 of the spec)",
        )  # fmt: skip

        wider = {"exclude": ["/trap/[0-8]", "/trap/9[0-8]"]}
        wanted = api.get("/v1/crawls/docs").json()["spec"] | {"scope": wider}
        plan = api.post("/v1/crawls/docs/plan", json={"spec": wanted}).json()["scope"]
        assert (plan["exact"], plan["leaving"], plan["excluded_before"]) == (True, 0, found["excluded"])
        change(api, wider)
        assert api.post("/v1/crawls/docs/start").status_code == 200
        served.wait_until(
            lambda log: any(each.path.startswith("/trap/9") for each in log if each.begun_ns > emptied_ns)
        )
        cluster.wait_until(partial(_finished, api), "it is finished")
        again = [each.path for each in served.log() if each.begun_ns > emptied_ns and each.path.startswith("/trap/")]
        assert {path[:7] for path in again} == {"/trap/9"}
        counters(api)


WIDE_PAGES = 150


@pytest.mark.timeout(300)
def test_wider_scope_finds_pages_in_the_archive_although_an_owner_dies(
    cluster: Cluster, web: Callable[..., Web], tmp_path: Path
) -> None:
    """Each page links to a page of its own on another host."""
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    served = web(*[FileTree(str(tmp_path / name)) for name in ("near", "far")])
    near, far = served.origins
    for n in range(WIDE_PAGES):
        (tmp_path / "near" / f"{n}.html").write_text(f"<a href={n + 1}.html>n</a><a href={far}/{n}.html>f</a>")
        (tmp_path / "far" / f"{n}.html").write_text("<title>far</title>")
    (tmp_path / "near" / f"{WIDE_PAGES}.html").write_text("<title>last</title>")
    workers(cluster)
    seeds = [f"{near}/{n}.html" for n in range(WIDE_PAGES)]
    spec = {"seeds": seeds, "politeness": {"delay_s": 0}, "egress": {"allow": ["127.0.0.0/8"]}}
    pages = Counter((served.hosts[0], f"/{n}.html") for n in range(WIDE_PAGES + 1))

    def requested() -> Counter[tuple[str, str]]:
        return Counter((each.host, each.path) for each in served.log() if each.path != "/robots.txt")

    with asking(cluster, "m2") as api:
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        cluster.wait_until(partial(_finished, api), "it is finished")
        assert requested() == pages
        wanted = api.get("/v1/crawls/docs").json()["spec"] | {"scope": {"mode": "any"}}
        plan = api.post("/v1/crawls/docs/plan", json={"spec": wanted}).json()["scope"]
        assert (plan["pages_to_read"], plan["pages_unlisted"]) == (WIDE_PAGES, 0)
        change(api, {"mode": "any"})
        assert api.post("/v1/crawls/docs/start").status_code == 200
        cluster.members["m1"].end()
        cluster.wait_until(partial(_finished, api), "it is finished")
        pages.update((served.hosts[1], f"/{n}.html") for n in range(WIDE_PAGES))
        assert requested() == pages
        found = api.get("/v1/crawls/docs/stats").json()["tallies"]["rediscovered"]
        assert found.keys() == {"pages", "links"}, "no page was queued again"
        assert (found["pages"], found["links"] >= WIDE_PAGES) == (WIDE_PAGES, True)
        assert api.get("/v1/crawls/docs/progress").json()["commands"] == {}
        counters(api)


def _queue_empty(api: httpx.Client) -> bool:
    found = counters(api)
    return bool(found["queued"] + found["leased"] == 0)


def _finished(api: httpx.Client) -> bool:
    return bool(api.get("/v1/crawls/docs").json()["state"] == "finished")
