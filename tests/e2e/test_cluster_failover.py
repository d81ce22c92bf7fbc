"""A cluster whose members die, stop and are exchanged while clients read and write: what they see, and what is left."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import fields

from shared.adapters.sql.engine.postgres import PostgresSettings
from shared.domain.ids import CrawlId
from shared.settings import ClusterMasterSettings
from tests.support.api.cluster_clients import Background, client, reading
from tests.support.database.frozen_owner import writes_held
from tests.support.engines.etcd import leader_of
from tests.support.engines.postgres import PostgresServer
from tests.support.machine_clock import living
from tests.support.processes.cluster import PARTITIONS, TTL_S, Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.crawl_proof import (
    BEGUN,
    TAKEOVER_S,
    declared,
    never_back,
    rest,
    spec,
    started,
    watched_terms,
    whole,
)
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

AGAIN = {"Idempotency-Key": "again"}

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def shared(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Cluster]:
    """On PostgreSQL, where masters share the partitions."""
    with opened(tmp_path, asyncio.run(postgres_server.database())) as made:
        yield made


@pytest.fixture
def served(web: Callable[..., Web]) -> Web:
    return web(SyntheticSite(pages=600, hosts=10, missing=20, flaky=20, redirects=20))


def test_leader_death_restores_writes_in_time_and_reads_never_stop(cluster: Cluster, served: Web) -> None:
    leader, follower = started(cluster)
    crawl = declared(cluster, served, follower)
    served.wait_served(100)
    with reading(cluster, follower) as reader, client(cluster, follower) as writer, living() as lived:
        cluster.members[leader].end()
        died, dead = time.monotonic(), lived()
        body = {"name": "again", "spec": spec(served), "start": False}
        cluster.wait_until(
            lambda: writer.ask("POST", "/v1/crawls", body, **AGAIN) is not None, "a write is carried out again"
        )
        assert lived() - dead <= TAKEOVER_S
        written = writer.history.answers[-1]
    assert written.status == 201
    assert len(writer.history.unanswered) > 0, "there was a time without a leader"
    assert all("503" in said[follower] for _, said in writer.history.unanswered), "which was said, at once"
    assert reader.history.failed() == []
    assert [answer for answer in reader.history.answers if died < answer.asked < written.answered]
    whole(cluster, served, crawl)


def written_again(cluster: Cluster, served: Web, master: str) -> float:
    """After how many seconds a write was answered there again, from now on tried without a pause."""
    with client(cluster, master) as writer, living() as lived:
        body = {"name": "again", "spec": spec(served), "start": False}
        cluster.wait_until(
            lambda: writer.ask("POST", "/v1/crawls", body, **AGAIN) is not None, "a write is carried out again"
        )
        took_s = lived()
    assert writer.history.answers[-1].status == 201
    return took_s


def test_death_of_both_leaders_restores_writes_within_two_lifetimes(tmp_path: Path, served: Web) -> None:
    """A new leader of etcd gives every lease its whole time again, that of our dead leader, too."""
    with opened(tmp_path, election_ms=500) as cluster:
        leader, follower = started(cluster)
        crawl = declared(cluster, served, follower)
        served.wait_served(100)
        with reading(cluster, follower) as reader:
            first = asyncio.run(leader_of(cluster.etcds))
            first.kill()
            cluster.members[leader].end()
            assert written_again(cluster, served, follower) <= TTL_S + TAKEOVER_S
        assert reader.history.failed() == []
        asyncio.run(first.restart())
        whole(cluster, served, crawl)


@pytest.mark.slow
def test_the_bound_holds_for_the_lifetime_that_members_have_unless_told(
    cluster: Cluster, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=2_000, hosts=10))
    (lifetime_s,) = (each.default for each in fields(ClusterMasterSettings) if each.name == "member_ttl_s")
    for name in ("m1", "m2"):
        cluster.master(name, ORB_MEMBER_TTL_S=str(lifetime_s))
        cluster.wait_until(lambda: cluster.leader() == "m1", "the first one leads")
    for name in ("w1", "w2"):
        cluster.worker(name, ORB_MEMBER_TTL_S=str(lifetime_s))
    crawl = declared(cluster, served, "m2")
    served.wait_served(100)
    with reading(cluster, "m2") as reader:
        cluster.members["m1"].end()
        took_s = written_again(cluster, served, "m2")
    assert took_s <= lifetime_s + 2.0
    assert reader.history.failed() == []
    whole(cluster, served, crawl)


@pytest.mark.smoke
def test_death_of_owner_of_half_leaves_all_partitions_to_the_other(shared: Cluster, served: Web) -> None:
    leader, owner = started(shared)
    crawl = declared(shared, served, leader)
    served.wait_served(100)
    with reading(shared, leader) as reader, watched_terms(shared) as terms, living() as lived:
        shared.members[owner].end()
        dead = lived()
        shared.wait_until(lambda: shared.owners() == Counter({leader: PARTITIONS}), "the leader owns all partitions")
        assert lived() - dead <= TAKEOVER_S
        whole(shared, served, crawl)
    assert reader.history.failed() == []
    never_back(terms)


def test_what_killed_workers_had_in_hand_is_done_by_others(cluster: Cluster, served: Web) -> None:
    _, follower = started(cluster)
    served.answer(300)
    crawl = declared(cluster, served, follower)
    served.wait_served(80)
    for number, victim in enumerate(("w1", "w2"), start=4):
        assert cluster.leased(crawl) > 0
        cluster.members[victim].end()
        served.wait_served(80 * number // 2)
        cluster.worker(f"w{number}")
    served.answer(None)
    whole(cluster, served, crawl)


@pytest.mark.parametrize("seconds", [0.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_owner_stopped_in_transaction_delays_no_other_and_changes_nothing(
    shared: Cluster, web: Callable[..., Web], seconds: float
) -> None:
    """The database's server ends the session that holds the partition's row; then the next owner's claim goes through,
    and what the stopped one still wanted to write is refused."""
    served = web(SyntheticSite(pages=900, hosts=10, missing=20, flaky=20, redirects=20))
    leader, owner = started(shared)
    assert shared.url is not None
    crawl = declared(shared, served, leader)
    served.wait_served(100)
    with watched_terms(shared) as terms, reading(shared, leader) as reader, living() as lived:
        its_own = [partition for partition, name in shared.assigned().items() if name == owner]
        before = shared.terms()
        with writes_held(shared.url, more_than=PARTITIONS - len(its_own)) as held:
            shared.members[owner].signal(signal.SIGSTOP)
            stopped, still = time.monotonic(), lived()
            held.release()
            held.wait_idle_in_transaction()
        shared.wait_until(
            lambda: bool(now := shared.terms()) and all(now[partition] > before[partition] for partition in its_own),
            "the other one has claimed its partitions",
        )
        assert lived() - still <= TAKEOVER_S + PostgresSettings().idle_in_transaction_s
        assert set(shared.assigned().values()) == {leader}
        rest(shared, stopped, seconds)
        shared.members[owner].signal(signal.SIGCONT)
        shared.wait_until(
            lambda: any(change["stopped"] == len(its_own) for change in shared.said(owner, "partition_owners.changed")),
            "the stopped one knows that it is deposed",
        )
        whole(shared, served, crawl)
    assert reader.history.failed() == []
    never_back(terms)


def test_rolling_replacement_under_load_loses_no_request_and_no_page(cluster: Cluster, web: Callable[..., Web]) -> None:
    served = web(SyntheticSite(pages=240, hosts=10, missing=20, flaky=20, redirects=20))
    leader, follower = started(cluster)
    acknowledged: list[str] = []
    crawls: list[CrawlId] = []
    with reading(cluster, leader, follower) as reader, client(cluster, follower, leader) as writer:

        def write() -> None:
            name = f"n-{len(acknowledged)}"
            body = {"name": name, "spec": spec(served), "start": False}
            answer = writer.ask("POST", "/v1/crawls", body, **{"Idempotency-Key": name})
            if answer is not None:
                assert answer.status == 201, answer
                acknowledged.append(name)

        with Background(write, 0.05):
            for name in (leader, follower, "w1", "w2", "w3"):
                for earlier in crawls[-1:]:
                    cluster.finish(earlier)
                served.answer(150)  # an earlier crawl would use them up, and this one has more pages
                crawls.append(declared(cluster, served, leader, follower, name=f"under-{name}"))
                cluster.wait_until(lambda: cluster.query(BEGUN.format(crawls[-1])) != [], "its crawl has begun")
                assert cluster.row(crawls[-1]).state in ("seeding", "running")
                served.answer(None)
                restarted(cluster, name)
                reader.refresh()
                writer.refresh()
        assert reader.history.failed() == []
        assert len(reader.history.answers) > 50
        assert len(acknowledged) > 20
        for crawl in crawls:
            whole(cluster, served, crawl)
    stored = Counter(name for (name,) in cluster.query("SELECT name FROM crawls"))
    assert set(acknowledged) <= set(stored)
    assert set(stored.values()) == {1}


def restarted(cluster: Cluster, name: str) -> None:
    """A member ended in good order, and begun anew under its name."""
    role = "worker" if name.startswith("w") else "master"
    begun = len(cluster.said(name, f"{role}.started"))
    cluster.members[name].signal(signal.SIGTERM)
    assert cluster.members[name].process.wait(30) == 0
    _ = cluster.worker(name) if role == "worker" else cluster.master(name)
    cluster.wait_until(lambda: len(cluster.said(name, f"{role}.started")) > begun, f"{name} has started again")
