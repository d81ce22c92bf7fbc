"""Overrides by host and media types in a cluster of real processes, judged by what the servers were asked."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web import log_judge
from tests.support.web.file_site import FileTree
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

DELAY_S = 0.5
PAGES = 60
LIMIT = 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        made.master("m1")
        for name in ("w1", "w2"):
            made.worker(name)
        yield made


@pytest.fixture
def site(web: Callable[..., Web], tmp_path: Path) -> Web:
    """Two hosts with the same pages, half of them in a folder `print`, and a document each."""
    for name in ("one", "two"):
        (tmp_path / name / "print").mkdir(parents=True)
        paths = ["doc.pdf", *[f"print/{n}.html" for n in range(PAGES)], *[f"{n}.html" for n in range(PAGES)]]
        links = "".join(f"<a href={path}>x</a>" for path in paths)
        (tmp_path / name / "index.html").write_text(f"<title>start</title>{links}")
        for path in paths:
            (tmp_path / name / path).write_text("%PDF-1.7" if path.endswith("pdf") else f"<title>{path}</title>text")
    return web(*[FileTree(str(tmp_path / name)) for name in ("one", "two")])


def stats(api: httpx.Client) -> dict[str, Any]:
    """Return the crawl's numbers. Both identities must hold."""
    found: dict[str, Any] = api.get("/v1/crawls/docs/stats").json()
    assert found["identity"] == {"url_drift": 0, "link_drift": 0}
    return found


def asked(site: Web, host: str, begin: str = "/") -> list[str]:
    return [each.path for each in site.log() if each.host == host and each.path.startswith(begin)]


def test_override_holds_for_queued_urls_and_the_delay_of_its_host(cluster: Cluster, site: Web) -> None:
    (one, two), (first, second) = site.hosts, site.origins
    override = {"hosts": [two], "delay_s": DELAY_S, "max_pages_per_host": LIMIT}
    spec = {
        "seeds": [f"{first}/", f"{second}/"],
        "politeness": {"delay_s": 0.01},
        "egress": {"allow": ["127.0.0.0/8"]},
        "media": {"stored": ["text/html"]},
        "overrides": [override],
    }
    with asking(cluster, "m1") as api:
        wrong = {**spec, "overrides": [{"hosts": ["HTTP://x"], "delay_s": 1}]}
        answer = api.post("/v1/crawls", json={"name": "docs", "spec": wrong})
        assert answer.status_code == 422
        assert "overrides[0].hosts[0]" in answer.text
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        site.wait_until(lambda log: sum(each.host == two for each in log) > 3)

        changed = {**override, "exclude": ["/print/"]}
        assert api.patch("/v1/crawls/docs", json={"spec": {"overrides": [changed]}}).status_code == 200
        cluster.wait_until(partial(_finished, api), "it is finished")

        found = stats(api)
        assert len([path for path in asked(site, one) if path.endswith("html")]) == 2 * PAGES
        pages = [path for path in asked(site, two) if path not in ("/robots.txt", "/doc.pdf")]
        printed = asked(site, two, "/print/")
        assert len(pages) == LIMIT
        assert len(printed) < LIMIT - 1
        assert found["tallies"]["excluded"]["exclude_pattern"] == PAGES - len(printed), "the others left the queue"
        assert log_judge.smallest_gap(site.log(), two) >= DELAY_S
        assert log_judge.smallest_gap(site.log(), one) < DELAY_S
        documents = len({*asked(site, one, "/doc.pdf")}) + len({*asked(site, two, "/doc.pdf")})
        assert found["tallies"]["not_indexed"] == {"media_type": documents}
        assert found["counters"]["pages"] == 2 * PAGES + 1 + LIMIT

        told = api.get("/v1/crawls/docs/urls/explain", params={"url": f"{second}/print/1.html"}).json()
        checks = {each["rule"]: each for each in told["rules"]}
        assert checks["override"]["detail"].startswith("overrides[0] (delay_s, max_pages_per_host, exclude)")
        assert told["blocking_reason"] == "matches '/print/' (overrides[0].exclude) (revision 2 of the spec)"


def _finished(api: httpx.Client) -> bool:
    return bool(api.get("/v1/crawls/docs").json()["state"] == "finished")
