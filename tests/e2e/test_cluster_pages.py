"""What a cluster's workers stored is served by its masters: the bodies as the site sent them, the exports complete."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.api.paging import every
from tests.support.archive.stored_crawl import check_with_warcio
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def test_pages_that_two_workers_stored_are_served_by_every_master(cluster: Cluster, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=60, hosts=4)
    served = web(site)
    home = cluster.folder / "shared"
    home.mkdir()
    for name in ("m1", "m2"):
        cluster.master(name, ORB_ARCHIVE=str(home / "archive"))
    for name in ("w1", "w2"):
        cluster.worker(name, ORB_DIR=str(home))
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": 0.02},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    cluster.wait_working("w1", "w2")
    with asking(cluster, "m1") as api:
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        cluster.wait_until(lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished")
    expected = sorted(site.expected_pages(served.origins))
    for name in ("m1", "m2"):
        with asking(cluster, name) as api:
            pages = every(api, "/v1/crawls/docs/pages?limit=7&status=200")
            assert sorted(page["url"] for page in pages) == expected
            assert len({page["archive"]["segment"].split("-")[2] for page in pages}) == 2, "both workers stored some"
            for page in pages[:20]:
                body = api.get(f"/v1/crawls/docs/pages/{page['id']}/body")
                assert body.content == httpx.get(page["url"]).content, page["url"]
                assert body.headers["content-disposition"].startswith("attachment; ")
            lines = [json.loads(line) for line in api.get("/v1/crawls/docs/export/links").text.splitlines()]
            # Every page but the seed was found by a link that the archive has kept.
            assert {line["target"] for line in lines} >= set(expected) - {f"{served.origins[0]}/"}
            seeds = every(api, "/v1/crawls/docs/seeds")
            assert [(seed["url"], seed["state"]) for seed in seeds] == [(f"{served.origins[0]}/", "done")]
    for member in cluster.members.values():
        if member.name.startswith("w"):
            member.signal(signal.SIGTERM)
            assert member.process.wait(30) == 0, cluster.last_words()
    check_with_warcio(sorted((home / "archive").glob("*.warc.gz")))
