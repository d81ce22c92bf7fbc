"""Labels and sources of seeds on their way to pages, items and exports, by one command and by a cluster."""

import asyncio
import csv
import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

from tests.support.api.cluster_clients import asking
from tests.support.api.paging import every
from tests.support.engines.nats_server import read_all
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.crawl_process import write_spec
from tests.support.processes.orb_command import orb
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

ITEMS = [{"name": "page", "fields": {"title": {"css": "title", "required": True}}}]
PAGES = 40
RED = ({"team": "red"}, "list-1")
BLUE = ({"list": "2", "team": "blue"}, None)
NONE: tuple[dict[str, str], None] = ({}, None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def site(web: Callable[..., Web]) -> Web:
    """Three sites of their own. The pages of each lead to each other only."""
    return web(*[SyntheticSite(pages=PAGES, seed=n) for n in (1, 2, 3)])


def of(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["labels"], row["source"]


def test_pages_and_items_have_the_context_of_their_seed_after_kills(cluster: Cluster, site: Web) -> None:
    red, blue, plain = site.origins
    expected = {red: RED, blue: BLUE, plain: NONE}
    for name in ("m1", "m2"):
        cluster.master(name)
    cluster.worker("w1", ORB_FAILPOINT="discoveries_acked:4")
    cluster.worker("w2")
    spec = {
        "seeds": [{"url": f"{red}/", "labels": RED[0], "source": RED[1]}],
        "politeness": {"delay_s": 0.05},
        "egress": {"allow": ["127.0.0.0/8"]},
        "extract": {"items": ITEMS},
    }
    cluster.wait_working("w1", "w2")
    with asking(cluster, "m1") as api:
        assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
        seeds = [{"url": f"{blue}/", "labels": BLUE[0]}, f"{plain}/"]
        lines = "\n".join(json.dumps(seed) for seed in seeds)
        given = api.post("/v1/crawls/docs/seeds", content=lines, headers={"Content-Type": "application/jsonl"})
        assert given.json()["accepted"] == 2
    doomed = cluster.members["w1"]
    cluster.wait_until(lambda: doomed.process.poll() is not None, "a worker died between its links and its outcomes")
    assert doomed.process.returncode == -signal.SIGKILL
    cluster.worker("w3")
    cluster.wait_until(lambda: cluster.leader() is not None, "a master leads")
    leader = cluster.leader()
    assert leader is not None
    cluster.members[leader].end()
    with asking(cluster, "m2" if leader == "m1" else "m1") as api:
        cluster.wait_until(
            lambda: api.get("/v1/crawls/docs").json().get("state") == "finished", "the crawl is finished"
        )
        pages = every(api, "/v1/crawls/docs/pages?limit=50")
        assert len(pages) == 3 * PAGES
        assert {origin(page["url"]): of(page) for page in pages} == expected
        assert all(of(page) == expected[origin(page["url"])] for page in pages)
        items = every(api, "/v1/crawls/docs/items?limit=50")
        assert len(items) == 3 * PAGES
        assert all(of(item) == expected[origin(item["url"])] for item in items)
        deepest = max((page for page in pages if origin(page["url"]) == red), key=lambda page: int(page["depth"]))
        assert deepest["depth"] > 1
        for way in ("urls/lookup", "urls/explain", "pages/lookup"):
            assert of(api.get(f"/v1/crawls/docs/{way}", params={"url": deepest["url"]}).json()) == RED, way
        listed = {seed["url"]: seed for seed in every(api, "/v1/crawls/docs/seeds")}
        assert {url: (seed["labels"], seed["given_source"]) for url, seed in listed.items()} == {
            f"{each}/": context for each, context in expected.items()
        }
        for kind in ("pages", "items"):
            export = f"/v1/crawls/docs/export/{kind}"
            rows = [json.loads(line) for line in api.get(export).text.splitlines()]
            assert len(rows) == 3 * PAGES
            assert all((row["labels"] or {}, row["source"]) == expected[origin(row["url"])] for row in rows)
            table = pyarrow.parquet.read_table(io.BytesIO(api.get(f"{export}?format=parquet").content)).to_pylist()
            texts = list(csv.DictReader(io.StringIO(api.get(f"{export}?format=csv").text, newline="")))
            for row in (*table, *texts):
                found = (json.loads(row["labels"] or "{}"), row["source"] or None)
                assert found == expected[origin(row["url"])]
        published = [page for message in asyncio.run(messages(cluster)) for page in message["pages"]]
        assert {page["url"] for page in published} == {page["url"] for page in pages}
        assert all(
            (page.get("labels", {}), page.get("source")) == expected[origin(page["url"])] for page in published
        ), "an item has its seed's labels when it is published"
        assert api.delete("/v1/crawls/docs").status_code in (200, 202, 204)
        gone = "SELECT (SELECT count(*) FROM url_contexts) + (SELECT count(*) FROM seed_contexts)"
        cluster.wait_until(lambda: cluster.query(gone) == [(0,)], "the contexts of the deleted crawl are removed")


def origin(url: str) -> str:
    return "/".join(url.split("/")[:3])


async def messages(cluster: Cluster) -> list[dict[str, Any]]:
    """Every message of the stream of items."""
    async with cluster.broker.broker(declare=False) as broker:
        state = await broker.items_state()
        reader = await broker.read_items(0)
        try:
            found = await read_all(reader, state.last)
        finally:
            await reader.close()
    return [msgspec.json.decode(each.data) for each in found]


def test_command_shows_and_exports_what_its_seeds_were_given(site: Web, tmp_path: Path) -> None:
    red, blue, plain = site.origins
    spec = write_spec(
        tmp_path / "spec.json",
        {
            "seeds": [
                {"url": f"{red}/", "labels": RED[0], "source": RED[1]},
                {"url": f"{blue}/", "labels": BLUE[0]},
                f"{plain}/",
            ],
            "extract": {"items": ITEMS},
        },
    )
    expected = {red: RED, blue: BLUE, plain: NONE}
    folder = tmp_path / "sites.crawl"
    limits = ("--delay", "0.01", "--allow-net", "127.0.0.0/8", "--no-progress")
    orb("crawl", "--spec", spec, "--out", folder, *limits)
    for kind in ("pages", "items"):
        rows = [json.loads(line) for line in orb("export", kind, folder).splitlines()]
        assert len(rows) == 3 * PAGES
        assert all((row["labels"] or {}, row["source"]) == expected[origin(row["url"])] for row in rows)
    pages = [json.loads(line) for line in orb("export", "pages", folder).splitlines()]
    deepest = max((page for page in pages if origin(page["url"]) == blue), key=lambda page: int(page["depth"]))
    shown = json.loads(orb("show", folder, "--url", deepest["url"], "--json"))
    assert of(shown) == BLUE
    assert "seed's labels  list=2, team=blue" in orb("show", folder, "--url", deepest["url"]).decode()
    assert "seed's" not in orb("show", folder, "--url", f"{plain}/").decode()


def test_flags_of_the_command_label_the_urls_given_with_them(site: Web, tmp_path: Path) -> None:
    folder = tmp_path / "site.crawl"
    limits = ("--delay", "0.01", "--allow-net", "127.0.0.0/8", "--no-progress", "--max-depth", "1")
    given = ("--seed-label", "team=red", "--seed-source", "list-1")
    orb("crawl", f"{site.origins[0]}/", "--out", folder, *limits, *given)
    rows = [json.loads(line) for line in orb("export", "pages", folder).splitlines()]
    assert len(rows) > 1
    assert all(of(row) == RED for row in rows)
    orb("crawl", "--out", folder, "--seed-label", "team=blue", code=2)
