"""What a cluster's workers stored is served by its masters: the bodies as the site sent them, the exports complete."""

import gzip
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
from tests.support.processes.crawl_proof import declared
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


def test_worker_that_starts_again_completes_the_segments_of_its_kill(cluster: Cluster, web: Callable[..., Web]) -> None:
    """Two workers write into one folder. The segments of the living one are left alone."""
    site = SyntheticSite(pages=200, hosts=8)
    served = web(site)
    archive = cluster.folder / "shared" / "archive"
    archive.parent.mkdir()
    cluster.master("m1", ORB_ARCHIVE=str(archive))
    for name in ("w1", "w2"):
        cluster.worker(name, ORB_DIR=str(archive.parent))
    cluster.wait_working("w1", "w2")
    crawl = declared(cluster, served, "m1")
    for name in ("w1", "w2"):
        cluster.wait_until(lambda name=name: bool(left_open(archive, name)), f"{name} stores pages")  # type: ignore[misc]  # bound now
    served.wait_served(80)
    cluster.members["w1"].end()
    (torn,) = left_open(archive, "w1")
    with torn.open("ab") as file:
        file.write(gzip.compress(b"WARC/1.1 a record")[:-9])
    cluster.worker("w1", ORB_DIR=str(archive.parent))
    cluster.wait_until(lambda: bool(cluster.said("w1", "segment.repaired")), "the segment is repaired")
    (repaired,) = cluster.said("w1", "segment.repaired")
    name = torn.name.removesuffix(".open")
    assert (repaired["segment"], repaired["kept"]) == (name, (archive / name).stat().st_size)
    assert repaired["cut"] > 0
    assert not torn.exists()
    cluster.finish(crawl)
    with asking(cluster, "m1") as api:
        pages = every(api, "/v1/crawls/docs/pages?status=200")
        assert {page["url"] for page in pages} == set(site.expected_pages(served.origins))
        stored = [page for page in pages if page["archive"]["segment"] == name]
        assert stored, "pages of the repaired segment were accepted"
        for page in stored[:10]:
            assert api.get(f"/v1/crawls/docs/pages/{page['id']}/body").content == httpx.get(page["url"]).content
    for name in ("w1", "w2"):
        cluster.members[name].signal(signal.SIGTERM)
        assert cluster.members[name].process.wait(30) == 0, cluster.last_words()
    assert list(archive.glob("*.open")) == []
    check_with_warcio(sorted(archive.glob("*.warc.gz")))


def left_open(archive: Path, worker: str) -> list[Path]:
    """Return the segments of a worker that it has not finished."""
    return list(archive.glob(f"*-{worker}-*.warc.gz.open"))
