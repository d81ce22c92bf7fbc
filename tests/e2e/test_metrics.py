"""Metrics of a cluster at work: what members expose agrees with what the API says, and with each other."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api.cluster_clients import address, asking
from tests.support.engines.postgres import PostgresServer
from tests.support.processes.cluster import PARTITIONS, Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.metrics_scrape import Scrape, faults_found_by, scraped
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = pytest.mark.e2e

PAGES = 200
HOSTS = 8
EXPOSED = {"ORB_METRICS": "127.0.0.1:0"}
FREQUENT = {"ORB_METRICS_S": "0.2"}
IDLE = ("orb_visits_open", "orb_pages_unreported", "orb_links_unreported", "orb_archive_buffered_bytes")
"""Zero of a worker that has nothing in hand."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def on_either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose leader owns everything, and one whose masters share the partitions."""
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = asyncio.run(server.database())
    with opened(tmp_path, url) as made:
        yield made


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus's own judge of metrics; without it the test is skipped, or fails where CI is set."""
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def exposed(cluster: Cluster, name: str) -> str:
    """Where a worker's metrics are, as it said itself."""
    cluster.wait_until(lambda: bool(cluster.said(name, "metrics.exposed")), f"{name} serves its metrics")
    found: str = cluster.said(name, "metrics.exposed")[-1]["address"]
    return found


def body(served: Web) -> dict[str, object]:
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": 0.05},
        "egress": {"allow": ["127.0.0.0/8"]},
        "fetch": {"first_byte_timeout_s": 100},
    }
    return {"name": "docs", "spec": spec}


def stats_of(api: httpx.Client) -> dict[str, Any]:
    """What does not change any more once the crawl is at its end."""
    said = api.get("/v1/crawls/docs/stats").json()
    return {part: said[part] for part in ("counters", "tallies")}


def test_members_expose_what_the_api_says_of_a_crawl(
    on_either: Cluster, web: Callable[..., Web], promtool: str
) -> None:
    cluster = on_either
    served = web(SyntheticSite(pages=PAGES, hosts=HOSTS))
    for name in ("m1", "m2"):
        cluster.master(name, **FREQUENT)
    for name in ("w1", "w2"):
        cluster.worker(name, **EXPOSED)
    cluster.wait_until(
        lambda: set(cluster.owners()) == ({"m1", "m2"} if cluster.url else {cluster.leader()}),
        "both masters own partitions, or the leader all of them",
    )
    masters = [address(cluster, name).removeprefix("http://") for name in ("m1", "m2")]
    cluster.wait_until(lambda: scraped(*masters).sum("orb_partitions_owned") == PARTITIONS, "all are loaded")
    workers = [exposed(cluster, name) for name in ("w1", "w2")]
    served.answer(PAGES // 2)
    with asking(cluster, "m1") as api:
        assert api.post("/v1/crawls", json=body(served)).status_code == 201

        def under_way() -> bool:
            now = scraped(*masters)
            assert now.sum("orb_conservation_drift") == 0
            return (
                now.sum("orb_shards", state="in_flight") > 0 and now.sum("orb_urls", crawl="docs", state="leased") > 0
            )

        cluster.wait_until(under_way, "a scrape sees shards in flight and URLs leased")
        cluster.wait_until(lambda: scraped(*workers).sum("orb_visits_open") > 0, "a scrape sees open visits")
        served.answer(None)
        cluster.wait_until(lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished")
        stats = stats_of(api)

        def caught_up() -> bool:
            now = scraped(*masters)
            return now.sum("orb_urls", crawl="docs", state="done") == stats["counters"]["done"] and (
                now.sum("orb_shards") == now.sum("orb_reports_pending") == 0
            )

        cluster.wait_until(caught_up, "the metrics have caught up")
        cluster.wait_until(
            lambda: (now := scraped(*workers)).sum("orb_worker_pulling") == 2 and not any(map(now.sum, IDLE)),
            "the workers rest",
        )
        assert stats_of(api) == stats

    control, work = scraped(*masters), scraped(*workers)
    for text in (*control.texts, *work.texts):
        assert faults_found_by(promtool, text) == ""
    agrees_with_stats(control, stats)
    the_place_of_each(control)
    what_was_fetched(work, stats, served)
    assert "docs" not in control.by("handler", "orb_http_requests_total")
    assert control.sum("orb_http_requests_total", handler="/v1/crawls/{name}/stats", status="200") == 2


def agrees_with_stats(control: Scrape, stats: dict[str, Any]) -> None:
    counters = stats["counters"]
    states = {state: counters[state] for state in ("queued", "leased", "done", "failed", "excluded") if counters[state]}
    assert control.by("state", "orb_urls", crawl="docs") == states
    assert sum(states.values()) == counters["discovered"] > PAGES / 2
    assert control.sum("orb_crawl_pages", crawl="docs") == counters["pages"]
    assert control.sum("orb_crawl_bytes", crawl="docs") == counters["bytes"]
    assert {labels["identity"] for labels in control.labels("orb_conservation_drift")} == {"urls", "links"}
    assert control.sum("orb_conservation_drift") == 0
    assert control.sum("orb_outcomes_total", crawl="docs") == sum(stats["tallies"]["status"].values())
    assert control.sum("orb_outcomes_total", crawl="docs", status="2xx") == stats["tallies"]["status"]["200"]
    links = control.by("result", "orb_links_total")
    assert {name: links.get(name, 0) for name in ("new", "known", "refused")} == {
        name: counters[name] for name in ("new", "known", "refused")
    }
    dispatched, taken = control.sum("orb_urls_dispatched_total"), control.sum("orb_shards_dispatched_total")
    assert dispatched >= counters["fetches"]
    assert dispatched >= taken >= HOSTS
    assert control.sum("orb_grant_answers_total", answer="go") >= taken
    assert control.sum("orb_report_lag_seconds_count", kind="outcome") >= taken
    for work in ("outcomes", "discoveries", "dispatch", "grant"):
        assert control.sum("orb_transaction_duration_seconds_count", work=work) > 0, work
    for nothing in ("dead_letters", "report_gaps", "report_streams_replaced", "outcomes_stale"):
        assert control.sum(f"orb_{nothing}_total") == 0, nothing


def the_place_of_each(control: Scrape) -> None:
    assert control.sum("orb_leader") == 1
    assert len(control.labels("orb_leader_term")) == 1
    assert control.sum("orb_partitions_owned") == PARTITIONS
    assert control.by("role", "orb_members") == {"master": 2 * 2, "worker": 2 * 2}, "both see all four"
    assert control.sum("orb_pool_workers", pool="default") == 2 * 2
    assert control.sum("orb_member_lease_seconds") > 0
    assert control.sum("orb_member_sessions_lost_total") == 0


def what_was_fetched(work: Scrape, stats: dict[str, Any], served: Web) -> None:
    assert work.sum("orb_fetches_total", crawl="docs") == stats["counters"]["fetches"]
    assert work.sum("orb_fetches_total", crawl="docs", status="2xx") == stats["tallies"]["status"]["200"]
    assert work.sum("orb_fetch_duration_seconds_count") == stats["counters"]["fetches"]
    assert work.sum("orb_urls_denied_total", reason="robots") == stats["tallies"].get("excluded", {}).get("robots", 0)
    assert work.sum("orb_archive_pages_total") == sum(stats["tallies"]["status"].values())
    assert work.sum("orb_archive_bytes_total") > 0
    assert work.sum("orb_archive_commit_duration_seconds_count") > 0
    assert work.sum("orb_politeness_wait_seconds_count") == len(served.log()), (
        "every request waited its turn, robots' too"
    )
    assert work.sum("orb_links_published_total") >= stats["counters"]["new"] - 1, "all but the seed were found"
    for idle in IDLE:
        assert work.sum(idle) == 0, idle
    assert work.sum("orb_visits_total", result="settled") > 0
    assert work.sum("orb_worker_pulling") == 2
    assert len(work.labels("orb_nats_storage_failing")) == 2
    assert work.sum("orb_nats_storage_failing") == 0


def test_the_metrics_follow_the_lead_to_another_master(cluster: Cluster) -> None:
    for name in ("m1", "m2"):
        cluster.master(name, **FREQUENT)
    cluster.wait_until(lambda: set(cluster.owners()) == {cluster.leader()}, "the leader owns all partitions")
    leader = cluster.leader()
    assert leader is not None
    other = address(cluster, "m2" if leader == "m1" else "m1").removeprefix("http://")
    before = scraped(address(cluster, leader).removeprefix("http://"))
    cluster.wait_until(lambda: scraped(other).sum("orb_members", role="master") == 2, "both are registered")
    assert (before.sum("orb_leader"), scraped(other).sum("orb_leader")) == (1, 0)
    cluster.members[leader].end()
    cluster.wait_until(lambda: scraped(other).sum("orb_leader") == 1, "the other one leads")
    cluster.wait_until(lambda: scraped(other).sum("orb_partitions_owned") == PARTITIONS, "and owns everything")
    cluster.wait_until(lambda: scraped(other).sum("orb_members", role="master") == 1, "and is alone")
    assert scraped(other).sum("orb_leader_term") > before.sum("orb_leader_term")


def test_numbers_that_cannot_be_read_any_more_are_seen_to_be_old(cluster: Cluster) -> None:
    cluster.master("m1", **FREQUENT)
    master = address(cluster, "m1").removeprefix("http://")
    cluster.wait_until(lambda: scraped(master).sum("orb_partitions_owned") == PARTITIONS, "it owns everything")
    cluster.wait_until(lambda: scraped(master).sum("orb_stats_age_seconds") < 1, "they are fresh")
    cluster.broker.kill()
    cluster.wait_until(lambda: scraped(master).sum("orb_stats_age_seconds") > 3, "they grow old")


def test_a_database_that_takes_no_writes_is_seen_in_the_age_of_reports(
    cluster: Cluster, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=PAGES, hosts=HOSTS))
    cluster.master("m1", **FREQUENT)
    cluster.worker("w1")
    master = address(cluster, "m1").removeprefix("http://")
    cluster.wait_until(lambda: scraped(master).sum("orb_partitions_owned") == PARTITIONS, "it owns everything")
    served.answer(PAGES // 2)
    with asking(cluster, "m1") as api:
        assert api.post("/v1/crawls", json=body(served)).status_code == 201
        cluster.wait_until(lambda: scraped(master).sum("orb_shards", state="in_flight") > 0, "shards are in flight")
        with closing(sqlite3.connect(cluster.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            # A report to be seen: workers may have none, since their grants are written, too. Seeds need no write.
            seeds = {"seeds": [f"{served.origins[0]}/late"]}
            assert api.post("/v1/crawls/docs/seeds", json=seeds).status_code < 300
            cluster.wait_until(lambda: scraped(master).sum("orb_report_oldest_age_seconds") > 2, "a report grows old")
            other.execute("ROLLBACK")
        served.answer(None)
        cluster.wait_until(lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished")
    cluster.wait_until(lambda: scraped(master).sum("orb_report_oldest_age_seconds") == 0, "no report waits")
    assert scraped(master).sum("orb_conservation_drift") == 0
