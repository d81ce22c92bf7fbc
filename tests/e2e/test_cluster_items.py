"""Items of a crawl on a real cluster: none is missing and none is there twice, whoever was killed meanwhile."""

import csv
import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.api.paging import every
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

RULES = [
    {"name": "page", "fields": {"title": {"css": "title", "required": True}, "first": {"css": "a", "take": "link"}}},
    {"name": "link", "when": "/7/", "each": "a", "fields": {"to": {"css": "a", "take": "link"}}},
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def test_every_page_has_items_once_after_worker_and_leader_kills(cluster: Cluster, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=150, hosts=5)
    served = web(site)
    for name in ("m1", "m2"):
        cluster.master(name)
    cluster.worker("w1", ORB_FAILPOINT="items_acked:3")
    cluster.worker("w2")
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": 0.1},
        "egress": {"allow": ["127.0.0.0/8"]},
        "extract": {"items": RULES},
    }
    cluster.wait_working("w1", "w2")
    with asking(cluster, "m1") as api:
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
    doomed = cluster.members["w1"]
    cluster.wait_until(lambda: doomed.process.poll() is not None, "a worker died between its items and its outcome")
    assert doomed.process.returncode == -signal.SIGKILL
    cluster.worker("w3")
    cluster.wait_until(lambda: cluster.leader() is not None, "somebody leads")
    leader = cluster.leader()
    assert leader is not None
    cluster.members[leader].end()
    other = "m2" if leader == "m1" else "m1"
    with asking(cluster, other) as api:
        cluster.wait_until(
            lambda: api.get("/v1/crawls/docs").json().get("state") == "finished", "the crawl is finished"
        )
        expected = site.expected_pages(served.origins)
        items = every(api, "/v1/crawls/docs/items?limit=50")
        pages = [item for item in items if item["rule"] == "page"]
        assert sorted(item["url"] for item in pages) == sorted(expected), "each page's item is there, and once"
        titles = {item["url"]: item["data"]["title"] for item in pages}
        for number in range(site.pages):
            url = served.origins[number % site.hosts] + site.path(number)
            assert titles.get(url, f"Page {number}") == f"Page {number}"
        links = {url: 0 for url in expected if "/7/" in url}
        for item in items:
            if item["rule"] == "link":
                links[item["url"]] += 1
        numbers = {served.origins[n % site.hosts] + site.path(n): n for n in range(site.pages)}
        assert links == {url: len(site.links(numbers[url])) for url in links}
        for item in items[:10]:
            assert api.get(f"/v1/crawls/docs/items/{item['id']}").json() == item
        export, ids = "/v1/crawls/docs/export/items", {item["id"] for item in items}
        assert len(ids) == len(items)
        lines = [json.loads(line) for line in api.get(export).text.splitlines()]
        rows = list(csv.DictReader(io.StringIO(api.get(f"{export}?format=csv").text, newline="")))
        table = pyarrow.parquet.read_table(io.BytesIO(api.get(f"{export}?format=parquet").content)).to_pylist()
        for found in (lines, rows, table):
            assert len(found) == len(ids)
            assert {row["id"] for row in found} == ids
        assert api.delete("/v1/crawls/docs").status_code in (200, 202, 204)
        cluster.wait_until(
            lambda: cluster.query("SELECT count(*) FROM items") == [(0,)], "the items of the deleted crawl are removed"
        )
    for name in ("w2", "w3"):
        log = cluster.members[name].log.read_text()
        assert [line for line in log.splitlines() if "fork" in line] == [], "a child that starts is no line of the log"
