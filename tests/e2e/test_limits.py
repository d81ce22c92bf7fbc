"""A cluster whose storage is nearly full: nothing more is sent out, everybody is told why, and it goes on by itself."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from shared.adapters.nats import NatsBroker
from shared.domain.ids import CrawlId, Partition
from tests.support.api.cluster_clients import asking
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.takeovers import judged, spec, started
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

BOUND = 4 << 20
DELAY_S = 0.05
FOREIGN = Partition(4000)
"""Of no owner: what stands there stays until somebody purges it."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def created(api: httpx.Client, served: Web) -> CrawlId:
    wanted = {**spec(served, DELAY_S), "egress": {"allow": ["127.0.0.0/8"]}}
    made = api.post("/v1/crawls", json={"name": "docs", "spec": wanted})
    assert made.status_code == 201, made.text
    return CrawlId(made.json()["id"])


def shown(api: httpx.Client) -> str | None:
    """Why the crawl is held."""
    held: str | None = api.get("/v1/crawls/docs").json()["blocking_reason"]
    return held


def held(api: httpx.Client) -> list[str]:
    """The masters that say that they send nothing out."""
    masters = api.get("/v1/masters").json()["items"]
    return [master["id"] for master in masters if master["load"] is not None and master["load"]["resource_pressure"]]


def loaded(api: httpx.Client, member: str, what: str) -> object:
    """A part of what the member said last of itself; None while it has not."""
    return (api.get(f"/v1/{member}").json().get("load") or {}).get(what)


def pressure(api: httpx.Client, member: str) -> list[dict[str, str]]:
    """Return the resource pressure that the member reported last."""
    found: list[dict[str, str]] = loaded(api, member, "resource_pressure") or []  # type: ignore[assignment]
    return found


def explained(api: httpx.Client, served: Web) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/v1/crawls/docs/urls/explain", params={"url": f"{served.origins[0]}/"}).json()
    return found


def told(api: httpx.Client, *expected: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    """The events of resource pressure as member, resource and action, until those expected are among them."""
    found: list[tuple[str, str, str]] = []
    with api.stream("GET", "/v1/events", params={"kind": "resource_pressure", "after": 0}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                event = msgspec.json.decode(line.removeprefix("data:"))
                assert event["about"] == event["data"]["member"]
                found.append((event["about"], event["data"]["resource"], event["action"]))
                if set(expected) <= set(found):
                    break
    return found


@pytest.mark.smoke
def test_disk_above_watermark_holds_crawl_until_space_returns(cluster: Cluster, web: Callable[..., Web]) -> None:
    """The disk is as full as it is: the watermark is turned below that, and back."""
    served = web(SyntheticSite(pages=30, hosts=3))
    leader = started(cluster, masters=1, workers=1)
    with asking(cluster, leader) as api:
        full = {"storage": {"high_watermark_ratio": 1e-9, "low_watermark_ratio": 1e-9, "headroom_bytes": 1 << 50}}
        assert api.put("/v1/config", json=full).status_code == 200
        cluster.wait_until(lambda: pressure(api, f"masters/{leader}") != [], "the master is under pressure")
        cluster.wait_until(lambda: pressure(api, "workers/w1") != [], "the worker is under pressure")
        ready = api.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ok"), ready.text
        assert [each["resource"] for each in ready.json()["resource_pressure"]] == ["database"]
        crawl = created(api, served)
        cluster.wait_until(lambda: cluster.row(crawl).state == "running", "the crawl is seeded")
        cluster.wait_until(
            lambda: api.get("/v1/crawls/docs/stats").json()["counters"]["queued"] == 1, "the seed is queued"
        )
        reason = shown(api)
        assert reason is not None
        assert reason.startswith(f"master {leader}: the database has ")
        assert "it goes on when" in reason
        found = explained(api, served)
        assert found["blocking_reason"].startswith("no URL is dispatched under resource pressure")
        refused = api.post("/v1/crawls/docs/seeds", json={"seeds": [f"{served.origins[0]}/more"]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30"), refused.text
        assert refused.json()["accepted"] == 0
        metrics = api.get("/metrics").text
        assert 'orb_resource_pressure{resource="database"} 1.0' in metrics
        assert loaded(api, "workers/w1", "free_visits") == 0
        assert pressure(api, "workers/w1")[0]["resource"] == "archive"
        assert served.log() == [], "nothing was fetched meanwhile"
        refused = api.put("/v1/config", json={"storage": {"high_watermark_ratio": 0.5}})
        assert refused.status_code == 422, "the low mark would be above the high one"
        assert api.put("/v1/config", json={}).status_code == 200
        cluster.finish(crawl)
        cluster.wait_until(lambda: shown(api) is None, "nothing holds it")
        cluster.wait_until(lambda: api.get("/readyz").json()["resource_pressure"] == [], "nor the master")
        places = ((leader, "database"), ("w1", "archive"))
        events = told(api, *((*place, action) for place in places for action in ("started", "ended")))
        assert len(set(events)) == len(events), "each is told once"
    judged(cluster, served, DELAY_S)


def test_full_jetstream_holds_crawl_and_loses_nothing(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=30, hosts=3))
    for name in ("m1", "m2"):
        cluster.master(name, ORB_REPORTS_BYTES=str(BOUND))
    cluster.worker("w1")
    cluster.wait_until(lambda: set(cluster.owners()) == {cluster.leader()}, "the leader owns all partitions")
    follower = "m2" if cluster.leader() == "m1" else "m1"
    with asking(cluster, follower) as api:
        asyncio.run(filled(cluster))
        cluster.wait_until(lambda: held(api) == ["m1", "m2"], "both masters are short of room")
        crawl = created(api, served)
        cluster.wait_until(
            lambda: api.get("/v1/crawls/docs/stats").json()["counters"]["queued"] == 1, "the seed is queued"
        )
        reason = shown(api)
        assert reason is not None
        assert "NATS's storage has " in reason
        assert served.log() == []
        asyncio.run(purged(cluster))
        cluster.finish(crawl)
        cluster.wait_until(lambda: shown(api) is None, "nothing holds it")
    judged(cluster, served, DELAY_S)


async def filled(cluster: Cluster) -> None:
    """Reports that nobody reads, up to just below the bound."""
    async with cluster.broker.broker(declare=False) as broker:
        while (level := await stored(broker)).free > BOUND // 40:
            size = min(1 << 18, level.free - BOUND // 50)
            await broker.publish_report(FOREIGN, "discovery", bytes(size), f"n{level.used}")


async def stored(broker: NatsBroker) -> Any:
    level = await broker.storage()
    assert level is not None
    return level


async def purged(cluster: Cluster) -> None:
    async with cluster.broker.broker(declare=False) as broker:
        await broker.purge_reports(FOREIGN, "discovery", await broker.last_report(FOREIGN, "discovery"))
