"""A leader stopped inside a SQLite transaction: its lock does not keep the next one out."""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.machine_clock import living
from tests.support.processes.cluster import TTL_S, Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.takeovers import judged, spec, started
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

TRIES = 2_000
SURE_S = 0.3
BOUND_S = 12.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def served(web: Callable[..., Web]) -> Web:
    return web(SyntheticSite(pages=600, hosts=10, missing=20, flaky=20, redirects=20))


def locked(database: Path) -> bool:
    """Return True if another process holds the write lock."""
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def stop_inside_a_transaction(cluster: Cluster, leader: str) -> None:
    """Stop the leader again and again, until it is stopped with the lock."""
    member = cluster.members[leader]
    for _ in range(TRIES):
        member.signal(signal.SIGSTOP)
        if locked(cluster.database):
            time.sleep(SURE_S)  # a lock of another process is gone by then
            if locked(cluster.database):
                return
        member.signal(signal.SIGCONT)
        time.sleep(0.005)
    raise AssertionError("it was never inside a transaction")


def test_leader_stopped_inside_a_transaction_is_taken_over(cluster: Cluster, served: Web) -> None:
    leader = started(cluster)
    standby = "m2" if leader == "m1" else "m1"
    crawl = cluster.declare(spec(served))
    served.wait_served(50)
    stop_inside_a_transaction(cluster, leader)
    with living() as lived:
        cluster.wait_until(lambda: set(cluster.owners()) == {standby}, "the standby owns all partitions")
        cluster.wait_until(lambda: bool(cluster.said(standby, "database_holder.evicted")), "it ends the holder")
        assert cluster.members[leader].process.wait(10) == -signal.SIGKILL
        assert lived() <= TTL_S + BOUND_S
    assert cluster.finish(crawl).finished_reason == "complete"
    judged(cluster, served)
