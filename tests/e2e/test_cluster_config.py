"""Hot configuration and drains in a cluster of real processes: asked for at any master, kept to by every member."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import pytest

from shared.adapters.sql.catalog.desired import SqlDesired
from shared.domain.ops.config import HotConfig, MemberRole, WorkerPart
from shared.domain.reads.declared import Actor
from tests.support.api.cluster_clients import asking
from tests.support.engines.postgres import PostgresServer
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.takeovers import judged, spec, started
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

T = TypeVar("T")

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

DELAY_S = 0.05
OPERATOR = Actor("0" * 16, "operator", "r")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def in_sql(cluster: Cluster, work: Callable[[SqlDesired], Awaitable[T]]) -> T:
    """What a leader does in SQL, and dies of before anything else."""

    async def whole() -> T:
        store = await cluster._opened()
        try:
            return await work(SqlDesired(store.executor))
        finally:
            await store.close()

    return asyncio.run(whole())


def told_of(api: httpx.Client) -> dict[str, Any]:
    """What the stream of events tells of the first change of the configuration."""
    with api.stream("GET", "/v1/events", params={"kind": "config", "after": 0}) as stream:
        data = next(line for line in stream.iter_lines() if line.startswith("data:"))
    told: dict[str, Any] = msgspec.json.decode(data.removeprefix("data:"))["data"]
    return told


def worker_of(api: httpx.Client, name: str) -> dict[str, Any]:
    """The worker as it is shown."""
    found: dict[str, Any] = api.get(f"/v1/workers/{name}").json()
    return found


def all_run(cluster: Cluster, api: httpx.Client, revision: int, *, workers: int = 2) -> dict[str, Any]:
    """The cluster as it is shown when every member runs the revision."""
    shown: dict[str, Any] = {}

    def all_do() -> bool:
        shown.update(api.get("/v1/cluster").json())
        found = (shown["config_revision"], shown["outdated_members"], shown["worker_revisions"], len(shown["masters"]))
        return found == (revision, [], {str(revision): workers}, 2)

    cluster.wait_until(all_do, f"every member runs revision {revision}")
    return shown


def shows(cluster: Cluster, api: httpx.Client, name: str, load: Mapping[str, Any], **more: Any) -> None:
    """Wait until the worker is shown so. What it registers and how it is loaded travel apart."""

    def shown() -> bool:
        found = worker_of(api, name)
        return more.items() <= found.items() and load.items() <= (found.get("load") or {}).items()

    cluster.wait_until(shown, f"{name} is shown with {load} and {more}")


def turns(cluster: Cluster, api: httpx.Client, name: str, state: str) -> None:
    """Wait until the worker is in the state."""
    cluster.wait_until(lambda: worker_of(api, name).get("state") == state, f"{name} is {state}")


# --- hot configuration ------------------------------------------------------------------------------------------------


def test_what_is_put_at_a_follower_is_run_by_every_member_without_a_restart(cluster: Cluster) -> None:
    leader = started(cluster)
    follower = "m2" if leader == "m1" else "m1"
    with asking(cluster, follower) as api:
        wanted = {
            "log_level": "debug",
            "worker": {"max_visits": 7},
            "master": {"grant_s": 2.0, "sweep_interval_s": 0.2},
        }
        put = api.put("/v1/config", json=wanted, headers={"If-Match": '"0"'})
        assert put.status_code == 200, put.text
        seen = all_run(cluster, api, 1)
        assert {master["config_revision"] for master in seen["masters"]} == {1}
        for name in ("w1", "w2"):
            shows(cluster, api, name, {"visits": 7}, capacity=7)
        for name in ("m1", "m2", "w1", "w2"):
            (applied,) = cluster.said(name, "config.applied")
            assert applied["revision"] == 1
            assert applied["changes"]["log_level"] == "info -> debug"
        assert told_of(api) == {"revision": 1, "by": put.json()["changed_by"]}
        refused = api.put("/v1/config", json={"master": {"grant_s": 60}})
        assert refused.status_code == 422, "above what the masters were started with"


def test_next_leader_publishes_config_stored_by_a_dead_one(cluster: Cluster) -> None:
    leader = started(cluster)
    other = "m2" if leader == "m1" else "m1"
    with asking(cluster, other) as api:
        cluster.members[leader].end()
        document = HotConfig(worker=WorkerPart(max_visits=3))
        in_sql(cluster, lambda desired: desired.put_config(document, expected=None, actor=OPERATOR, now_ms=1))
        in_sql(cluster, lambda desired: desired.drain(MemberRole.WORKER, "w2", actor=OPERATOR, now_ms=1))
        cluster.wait_until(
            lambda: api.get("/v1/cluster").json()["worker_revisions"] == {"1": 2}, "the workers run the revision"
        )
        shows(cluster, api, "w1", {"visits": 3})
        turns(cluster, api, "w2", "drained")


def test_an_etcd_that_lost_everything_turns_nothing_back_and_is_told_anew(cluster: Cluster) -> None:
    started(cluster)
    with asking(cluster, "m1") as api:
        turns(cluster, api, "w1", "active")  # before that there is no such worker to drain
        api.put("/v1/config", json={"worker": {"max_visits": 5}})
        api.post("/v1/workers/w1/drain")
        turns(cluster, api, "w1", "drained")
        cluster.replace_etcd()
        cluster.wait_until(lambda: cluster.epoch() > 2, "the epoch is raised")
        cluster.wait_until(
            lambda: api.get("/v1/cluster").json()["worker_revisions"] == {"1": 2}, "the workers are registered again"
        )
        turns(cluster, api, "w1", "drained")
        assert len(cluster.said("w1", "config.applied")) == 1, "nothing was turned to and fro"
        cluster.worker("w3")
        cluster.wait_until(
            lambda: worker_of(api, "w3").get("config_revision") == 1, "one that joins now runs the same revision"
        )


# --- drains -----------------------------------------------------------------------------------------------------------


def test_worker_drained_under_load_loses_nothing_and_resumes(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=2000, hosts=10, missing=10, flaky=10, redirects=10))
    leader = started(cluster)
    follower = "m2" if leader == "m1" else "m1"
    served.answer(1000)
    crawl = cluster.declare(spec(served, DELAY_S))
    served.wait_served(60)
    with asking(cluster, follower) as api:
        turns(cluster, api, "w1", "active")
        assert api.post("/v1/workers/w1/drain").json()["draining"] is True
        turns(cluster, api, "w1", "drained")
        shows(cluster, api, "w1", {"active_visits": 0, "free_visits": 0}, draining=True)
        # The leader's death and its own restart change nothing about it.
        cluster.members[leader].end()
        cluster.members["w1"].signal(signal.SIGTERM)
        assert cluster.members["w1"].process.wait(30) == 0
        cluster.worker("w1")
        served.answer(None)
        seen = len(served.log())
        served.wait_until(lambda log: len(log) > seen + 60)
        turns(cluster, api, "w1", "drained")
        shows(cluster, api, "w1", {"pages": 0})  # it fetched nothing since it was started anew
        cluster.wait_until(lambda: api.post("/v1/workers/w1/undrain").status_code == 202, "a leader takes writes")
        turns(cluster, api, "w1", "active")
        cluster.wait_until(
            lambda: (
                (worker_of(api, "w1").get("load") or {}).get("pages", 0) > 0 or cluster.row(crawl).state == "finished"
            ),
            "it fetches",
        )
    assert cluster.finish(crawl).finished_reason == "complete"
    judged(cluster, served, DELAY_S)


def test_a_drained_master_hands_over_what_it_owns_and_the_lead(
    tmp_path: Path, postgres_server: PostgresServer, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=300, hosts=10))
    url = asyncio.run(postgres_server.database())
    with opened(tmp_path, url) as cluster:
        for name in ("m1", "m2"):
            cluster.master(name)
        for name in ("w1", "w2"):
            cluster.worker(name)
        cluster.wait_until(lambda: set(cluster.owners()) == {"m1", "m2"}, "both own partitions")
        leader = cluster.leader()
        assert leader is not None
        other = "m2" if leader == "m1" else "m1"
        crawl = cluster.declare(spec(served, DELAY_S))
        served.wait_served(40)
        with asking(cluster, leader) as api:
            assert api.post(f"/v1/masters/{leader}/drain").status_code == 202
            cluster.wait_until(lambda: api.get(f"/v1/masters/{leader}").json()["state"] == "drained", "it is drained")
            cluster.wait_until(lambda: cluster.leader() == other, "the other one leads")
            assert set(cluster.owners()) == {other}
            assert api.get("/readyz").status_code == 200, "it answers as before"
        assert cluster.finish(crawl).finished_reason == "complete"
        judged(cluster, served, DELAY_S)


def test_drained_master_stays_drained_over_restart_and_leads_if_alone(cluster: Cluster) -> None:
    leader = started(cluster, workers=0)
    other = "m2" if leader == "m1" else "m1"
    with asking(cluster, leader) as api:
        assert api.post(f"/v1/masters/{leader}/drain").status_code == 202
        cluster.wait_until(lambda: set(cluster.owners()) == {other}, "the other one owns everything")
        cluster.members[leader].signal(signal.SIGTERM)
        assert cluster.members[leader].process.wait(30) == 0
        cluster.master(leader)
        cluster.wait_until(lambda: len(cluster.said(leader, "master.started")) == 2, "it is back")
    with asking(cluster, leader) as api:
        cluster.wait_until(lambda: api.get(f"/v1/masters/{leader}").json().get("state") == "drained", "it is drained")
        assert cluster.leader() == other
        cluster.members[other].end()
        cluster.wait_until(lambda: cluster.leader() == leader, "a drained master leads rather than nobody")
        cluster.wait_until(lambda: api.post(f"/v1/masters/{leader}/undrain").status_code == 202, "it is undrained")
        cluster.wait_until(lambda: set(cluster.owners()) == {leader}, "it owns everything again")
