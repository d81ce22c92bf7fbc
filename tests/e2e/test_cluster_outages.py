"""A cluster without one of its engines, for a while: what goes on, what is refused, and that nothing is lost."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.api.cluster_clients import client, reading
from tests.support.engines.postgres import PostgresServer
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.crawl_proof import declared, rest, spec, started, whole
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

A_MINUTE = pytest.param(60.0, marks=pytest.mark.slow)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


def served(web: Callable[..., Web], seconds: float) -> Web:
    """A site that a polite crawl takes longer for."""
    return web(SyntheticSite(pages=400 + round(seconds * 90), hosts=10, missing=20, flaky=20, redirects=20))


def wait_leaderless(cluster: Cluster, *masters: str) -> None:
    """Until the leader has resigned, and nobody takes its place: whoever still thinks itself fit would for a moment."""
    for name in masters:
        cluster.wait_until(lambda name=name: bool(cluster.said(name, "health.degraded")), f"{name} is unfit to lead")  # type: ignore[misc]  # bound now
    cluster.wait_until(lambda: cluster.leader() is None, "nobody leads")


@pytest.mark.parametrize("seconds", [0.0, A_MINUTE])
def test_without_etcd_crawls_and_reads_continue_and_writes_are_refused(
    cluster: Cluster, web: Callable[..., Web], seconds: float
) -> None:
    site = served(web, seconds)
    leader, follower = started(cluster)
    site.answer(250)
    crawl = declared(cluster, site, follower)
    site.wait_served(50)
    terms = cluster.terms()
    with reading(cluster, leader, follower) as reader, client(cluster, leader, follower) as writer:
        cluster.kill_etcd()
        away = time.monotonic()
        number = 0

        def refused() -> bool:
            nonlocal number
            number += 1
            return writer.ask("POST", "/v1/crawls", {"name": f"n-{number}", "spec": spec(site), "start": False}) is None

        cluster.wait_until(refused, "the leader stops acting")
        site.answer(None)
        site.wait_served(len(site.log()) + 100)
        rest(cluster, away, seconds)
        seeded = writer.ask("POST", "/v1/crawls/docs/seeds", {"seeds": [f"{site.origins[0]}/"]})
        assert seeded is not None
        assert (seeded.status, seeded.body["accepted"]) == (200, 1), "any master takes seeds"
        assert refused()
        _, said = writer.history.unanswered[-1]
        assert all("503" in each and "no-leader" in each for each in said.values()), said
        assert cluster.terms() == terms, "owners go on under their terms"
        cluster.restart_etcd()
        cluster.wait_until(lambda: not refused(), "writes are carried out again")
        assert writer.history.answers[-1].status == 201
        whole(cluster, site, crawl)
    assert reader.history.failed() == []


@pytest.mark.parametrize("seconds", [0.0, A_MINUTE])
def test_without_nats_no_master_leads_reads_continue_and_crawl_resumes(
    cluster: Cluster, web: Callable[..., Web], seconds: float
) -> None:
    site = served(web, 0.0)
    leader, follower = started(cluster)
    crawl = declared(cluster, site, follower)
    site.wait_served(50)
    with reading(cluster, leader, follower) as reader:
        cluster.broker.kill()
        away = time.monotonic()
        wait_leaderless(cluster, leader, follower)
        rest(cluster, away, seconds)
        assert cluster.leader() is None
        asyncio.run(cluster.broker.restart())
        cluster.wait_until(lambda: cluster.leader() is not None, "somebody leads again")
        whole(cluster, site, crawl)
    assert reader.history.failed() == []
    assert cluster.said(leader, "leader.resigned")[0]["reason"].startswith("nats is silent")


def test_without_its_database_a_cluster_rests_and_goes_on_when_it_is_back(
    tmp_path: Path, web: Callable[..., Web], postgres_server: PostgresServer
) -> None:
    site = served(web, 0.0)
    with opened(tmp_path, asyncio.run(postgres_server.database())) as cluster:
        leader, follower = started(cluster)
        crawl = declared(cluster, site, follower)
        site.wait_served(50)
        postgres_server.kill()
        try:
            wait_leaderless(cluster, leader, follower)
        finally:
            postgres_server.start()
        cluster.wait_until(lambda: cluster.leader() is not None, "somebody leads again")
        whole(cluster, site, crawl)
        assert cluster.said(leader, "leader.resigned")[0]["reason"].startswith("database is silent")
