"""Masters of one cluster, dying, stopped and cut off: the crawl goes on, whole and polite."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.domain.frontier.states import CrawlState
from tests.support.engines.postgres import PostgresServer
from tests.support.machine_clock import living
from tests.support.processes.cluster import PARTITIONS, TTL_S, Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.crawl_proof import rest
from tests.support.processes.takeovers import judged, spec, started
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

SLACK_S = 2.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def served(web: Callable[..., Web]) -> Web:
    return web(SyntheticSite(pages=600, hosts=10, missing=20, flaky=20, redirects=20))


@pytest.mark.smoke
def test_the_standby_takes_over_from_a_killed_leader_and_the_crawl_is_whole(cluster: Cluster, served: Web) -> None:
    leader = started(cluster)
    standby = "m2" if leader == "m1" else "m1"
    crawl = cluster.declare(spec(served))
    served.wait_served(100)
    with living() as lived:
        cluster.members[leader].end()
        cluster.wait_until(lambda: set(cluster.owners()) == {standby}, "the standby owns all partitions")
        assert lived() <= TTL_S + SLACK_S
    assert cluster.finish(crawl).finished_reason == "complete"
    judged(cluster, served)


@pytest.mark.parametrize("seconds", [0.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_a_leader_that_was_stopped_for_longer_than_its_lease_changes_nothing(
    cluster: Cluster, served: Web, seconds: float
) -> None:
    leader = started(cluster)
    standby = "m2" if leader == "m1" else "m1"
    crawl = cluster.declare(spec(served))
    served.wait_served(50)
    cluster.members[leader].signal(signal.SIGSTOP)
    stopped = time.monotonic()
    cluster.wait_until(lambda: set(cluster.owners()) == {standby}, "the standby owns all partitions")
    terms = cluster.terms()
    rest(cluster, stopped, seconds)
    cluster.members[leader].signal(signal.SIGCONT)
    cluster.wait_until(
        lambda: bool(cluster.said(leader, "leadership.ended")), "the stopped leader knows that it is deposed"
    )
    assert cluster.leader() == standby
    assert cluster.finish(crawl).finished_reason == "complete"
    assert all(after >= before for before, after in zip(terms, cluster.terms(), strict=True))
    judged(cluster, served)


def test_stopping_leader_hands_over_without_waiting_for_its_lease(cluster: Cluster, served: Web) -> None:
    leader = started(cluster)
    standby = "m2" if leader == "m1" else "m1"
    crawl = cluster.declare(spec(served))
    served.wait_served(50)
    cluster.members[leader].signal(signal.SIGTERM)
    assert cluster.members[leader].process.wait(30) == 0
    with living() as lived:
        cluster.wait_until(lambda: set(cluster.owners()) == {standby}, "the standby owns all partitions")
        assert lived() <= SLACK_S
    assert cluster.finish(crawl).finished_reason == "complete"
    judged(cluster, served)


def test_a_page_budget_is_used_up_and_not_exceeded_across_a_takeover(cluster: Cluster, served: Web) -> None:
    leader = started(cluster)
    crawl = cluster.declare({**spec(served), "budget": {"max_pages": 200}})
    served.wait_served(60)
    cluster.members[leader].end()
    assert cluster.finish(crawl).finished_reason == "max_pages"
    pages = cluster.pages()
    assert len(pages) == len(set(pages)) == 200


def test_a_paused_crawl_rests_and_a_deleted_one_is_gone_everywhere(cluster: Cluster, served: Web) -> None:
    started(cluster)
    crawl = cluster.declare(spec(served))
    served.wait_served(30)
    cluster.turn(crawl, CrawlState.PAUSED)
    cluster.wait_until(lambda: cluster.leased(crawl) == 0, "what was out has come back")
    asked = len(served.log())
    other = cluster.declare({**spec(served), "name": "other", "budget": {"max_pages": 5}})
    cluster.finish(other)
    assert len(served.log()) <= asked + 20, "only the other crawl asks, its few pages and a robots.txt for each host"
    cluster.turn(crawl, CrawlState.RUNNING)
    served.wait_served(80)
    cluster.turn(crawl, CrawlState.DELETED)
    cluster.wait_until(lambda: cluster.record(crawl).gone, "the workers are told that it is gone")


def test_a_new_revision_under_way_reaches_every_page_once(cluster: Cluster, served: Web) -> None:
    started(cluster)
    served.answer(200)
    crawl = cluster.declare(spec(served))
    served.wait_served(100)
    assert cluster.declare({**spec(served), "weight": 2}) == crawl
    served.answer(None)
    row = cluster.finish(crawl)
    assert (row.revision, row.finished_reason) == (2, "complete")
    assert cluster.record(crawl).revision == 2
    judged(cluster, served)


def test_crawling_goes_on_while_etcd_is_away(cluster: Cluster, served: Web) -> None:
    started(cluster)
    crawl = cluster.declare(spec(served))
    served.wait_served(50)
    before = cluster.terms()
    cluster.kill_etcd()
    served.wait_until(lambda log: len(log) > 300)
    assert cluster.terms() == before
    cluster.restart_etcd()
    assert cluster.finish(crawl).finished_reason == "complete"
    judged(cluster, served)


def test_an_etcd_that_lost_everything_is_another_epoch_and_the_crawl_goes_on(cluster: Cluster, served: Web) -> None:
    started(cluster)
    crawl = cluster.declare(spec(served))
    served.wait_served(50)
    epoch, terms = cluster.epoch(), cluster.terms()
    cluster.replace_etcd()
    cluster.wait_until(lambda: cluster.epoch() > epoch, "the epoch is raised")
    cluster.wait_until(
        lambda: all(new > old for old, new in zip(terms, cluster.terms(), strict=True)), "new terms are claimed"
    )
    assert len(terms) == PARTITIONS
    assert cluster.finish(crawl).finished_reason == "complete"
    judged(cluster, served)


def test_masters_sharing_partitions_spend_one_budget_exactly(
    web: Callable[..., Web], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """One host has one partition: all of the budget is there for it, and for ten hosts of two masters as well."""
    served, alone = web(SyntheticSite(pages=600, hosts=10)), web(SyntheticSite(pages=100, hosts=1))
    with opened(tmp_path, asyncio.run(postgres_server.database())) as cluster:
        for number in (1, 2):
            cluster.master(f"m{number}")
            cluster.worker(f"w{number}")
        cluster.wait_until(lambda: len(set(cluster.owners())) == 2, "two masters own partitions")
        crawl = cluster.declare({**spec(served), "budget": {"max_pages": 200}})
        small = cluster.declare({**spec(alone), "name": "small", "budget": {"max_pages": 40}})
        assert cluster.finish(crawl).finished_reason == "max_pages"
        assert cluster.finish(small).finished_reason == "max_pages"
        pages = cluster.pages()
        assert len(pages) == len(set(pages)) == 200 + 40
