"""The life of crawls on the workers of a cluster, declared over the API and judged by what the web saw."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.domain.ids import CrawlId
from tests.support.api.cluster_clients import AnyMaster, client, until_written
from tests.support.database.url_rows import URLS
from tests.support.machine_clock import living
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

DELAY_S = 0.1
SEEN_S = 2.0
"""After a deletion is told to the workers, nothing of the crawl goes on for longer, in time that they live."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def started(cluster: Cluster, *, workers: int = 3, **leaders: str) -> tuple[str, str]:
    """The leader, with settings of its own, and its follower, over some workers."""
    cluster.master("m1", **leaders)
    cluster.wait_until(lambda: cluster.leader() == "m1", "the first one leads")
    cluster.master("m2")
    for number in range(1, workers + 1):
        cluster.worker(f"w{number}")
    cluster.wait_until(lambda: set(cluster.owners()) == {"m1"}, "the leader owns all partitions")
    cluster.wait_working(*(f"w{number}" for number in range(1, workers + 1)))
    return "m1", "m2"


def told(cluster: Cluster, crawl: CrawlId) -> int:
    """When nothing of a deleted crawl may go on any more (time.monotonic_ns), as soon as that has come."""
    cluster.wait_until(lambda: cluster.record(crawl).gone, "the workers are told that it is gone")
    with living() as lived:
        cluster.wait_until(lambda: lived() > SEEN_S, "its time to stop is over")
    return time.monotonic_ns()


def spec(served: Web, site: int = 0, agent: str = "orbweaver-test") -> dict[str, object]:
    return {
        "seeds": [f"{served.origins_of(site)[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": DELAY_S},
        "fetch": {"user_agent": agent},
        "egress": {"allow": ["127.0.0.0/8"]},
    }


def done(someone: AnyMaster, name: str) -> bool:
    answer = someone.ask("GET", f"/v1/crawls/{name}")
    return answer is not None and bool(answer.body["state"] == "finished")


def pages_of(cluster: Cluster, crawl: int) -> list[str]:
    return [
        url
        for (url,) in cluster.query(
            f"SELECT u.url FROM {URLS} u JOIN fetches f USING (crawl_id, host_id, fingerprint)"
            f" WHERE f.page AND f.status = 200 AND u.crawl_id = {crawl}"
        )
    ]


def polite(served: Web) -> None:
    log = served.log()
    too_soon = {host: gap for host in log_judge.hosts(log) if (gap := log_judge.smallest_gap(log, host)) < DELAY_S}
    assert too_soon == {}


def archived(cluster: Cluster, crawl: int) -> dict[str, int]:
    """The crawl's segments on all workers, and their sizes; whether one is still open does not matter."""
    return {
        path.name.removesuffix(".open"): path.stat().st_size for path in cluster.folder.glob(f"w*/archive/{crawl}-*")
    }


def test_crawls_declared_at_a_follower_run_on_all_workers_at_once(cluster: Cluster, web: Callable[..., Web]) -> None:
    sites = SyntheticSite(pages=250, hosts=8), SyntheticSite(pages=250, hosts=8, seed=2)
    served = web(*sites)
    _, follower = started(cluster)
    served.answer(0)
    with client(cluster, follower) as someone:
        made = [
            until_written(someone, cluster, "POST", "/v1/crawls", {"name": name, "spec": spec(served, site)}, name)
            for site, name in enumerate(("one", "two"))
        ]
        served.answer(None)
        cluster.wait_until(lambda: done(someone, "one") and done(someone, "two"), "both crawls are finished")
    times: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for crawl, segment, at_ms in cluster.query("SELECT crawl_id, segment, at_ms FROM fetches WHERE page"):
        times[segment.rsplit("-", 2)[1]][crawl].append(at_ms)
    crawls = [answer.body["id"] for answer in made]
    for number, crawl in enumerate(crawls):
        assert sorted(pages_of(cluster, crawl)) == sorted(sites[number].expected_pages(served.origins_of(number)))
        spans = [(min(times[worker][crawl]), max(times[worker][crawl])) for worker in ("w1", "w2", "w3")]
        assert max(begin for begin, _ in spans) < min(end for _, end in spans), "all three were at it together"
    for worker in ("w1", "w2", "w3"):
        (begun, ended), (others_begun, others_ended) = ((min(t), max(t)) for t in times[worker].values())
        assert max(begun, others_begun) < min(ended, others_ended), "each served both crawls at once"
    polite(served)


def test_deleted_crawl_stops_everywhere_while_its_name_is_reused(cluster: Cluster, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=160, hosts=8, latency_s=(0.0, 0.4))
    served = web(site)
    _, follower = started(cluster)
    with client(cluster, follower) as someone:
        old_one = {"name": "docs", "spec": spec(served, agent="old")}
        made = until_written(someone, cluster, "POST", "/v1/crawls", old_one, "old")
        old = CrawlId(made.body["id"])
        served.wait_served(60)
        deleted = until_written(someone, cluster, "DELETE", "/v1/crawls/docs", None, "gone")
        assert deleted.status == 204
        new_one = {"name": "docs", "spec": spec(served, agent="new")}
        again = until_written(someone, cluster, "POST", "/v1/crawls", new_one, "new")
        new = CrawlId(again.body["id"])
        assert new != old
        quiet_ns = told(cluster, old)
        kept = archived(cluster, old)
        cluster.wait_until(lambda: done(someone, "docs"), "the new one is finished")
    late = [
        exchange
        for exchange in served.log()
        if exchange.user_agent == "old" and max(exchange.ended_ns, exchange.begun_ns) > quiet_ns
    ]
    assert late == []
    assert archived(cluster, old) == kept, "nothing more is archived"
    assert sorted(pages_of(cluster, new)) == sorted(site.expected_pages(served.origins))
    for table in ("urls", "queues", "fetches", "leases"):
        cluster.wait_until(
            lambda table=table: cluster.query(f"SELECT count(*) FROM {table} WHERE crawl_id = {old}") == [(0,)],  # type: ignore[misc]  # bound now
            f"the old one's {table} are collected",
        )
    polite(served)


def test_next_leader_publishes_crawl_stored_by_a_dead_one(cluster: Cluster, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=60, hosts=6)
    served = web(site)
    leader, follower = started(cluster, workers=1, ORB_FAILPOINT="before_spec")
    with client(cluster, follower) as someone:
        body = {"name": "docs", "spec": spec(served)}
        made = until_written(someone, cluster, "POST", "/v1/crawls", body, "mine")
        cluster.members[leader].process.wait(30)
        assert cluster.members[leader].process.returncode == -9, "it died where it was to"
        cluster.wait_until(lambda: done(someone, "docs"), "the crawl is finished")
        again = until_written(someone, cluster, "POST", "/v1/crawls", body, "mine")
        assert again.body["id"] == made.body["id"], "created once"
    assert cluster.query("SELECT count(*) FROM crawls") == [(1,)]
    assert sorted(cluster.pages()) == sorted(site.expected_pages(served.origins))


def test_next_leader_announces_deletion_stored_by_a_dead_one(cluster: Cluster, web: Callable[..., Web]) -> None:
    site = SyntheticSite(pages=600, hosts=6)
    served = web(site)
    leader, follower = started(cluster, workers=1, ORB_FAILPOINT="before_gone")
    with client(cluster, follower) as someone:
        made = until_written(someone, cluster, "POST", "/v1/crawls", {"name": "docs", "spec": spec(served)}, "docs")
        served.wait_served(30)
        someone.ask("DELETE", "/v1/crawls/docs")
        cluster.members[leader].process.wait(30)
        assert cluster.members[leader].process.returncode == -9, "it died where it was to"
        crawl = CrawlId(made.body["id"])
        quiet_ns = told(cluster, crawl)
        cluster.wait_until(
            lambda: cluster.query(f"SELECT count(*) FROM urls WHERE crawl_id = {crawl}") == [(0,)],
            "its rows are collected",
        )
        answer = someone.ask("GET", "/v1/crawls/docs")
        assert answer is not None
        assert answer.status == 404
    assert [exchange for exchange in served.log() if exchange.begun_ns > quiet_ns] == []
