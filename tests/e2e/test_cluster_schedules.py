"""Schedules in a cluster whose leaders are struck around due times: each due time has one line and one effect.

The judge of 1,000 drawn faults is `tests/contract/test_schedule_faults.py`, which simulates masters in one process.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

from tests.support.api.cluster_clients import asking
from tests.support.faults import member_controls
from tests.support.faults.member_controls import MemberControls
from tests.support.processes.cluster import Cluster
from tests.support.processes.cluster import cluster as opened

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

COUNT = 60
SPACED_MS = 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as made:
        for name in ("m1", "m2"):
            made.master(name)
        yield made


def declare(cluster: Cluster) -> None:
    """Declare schedules that reset crawls which were never started, so that each firing is visible in the audit log."""
    with asking(cluster, "m1") as api:
        for number in range(COUNT):
            crawl = {"name": f"c{number}", "spec": {"seeds": ["https://example.org/"]}, "start": False}
            assert api.post("/v1/crawls", json=crawl).status_code == 201
            spec = {"crawl": f"c{number}", "verb": "reset", "every_s": 86_400, "late_s": 600}
            assert api.put(f"/v1/schedules/s{number}", json=spec).status_code == 201


def make_due(database: Path, begin_ms: int) -> dict[int, int]:
    """Give each schedule a due time, one after the other. Return them by the schedule's id."""
    due = {number + 1: begin_ms + number * SPACED_MS for number in range(COUNT)}
    with closing(connect(database, timeout=30)) as connection, connection:
        change = "UPDATE schedules SET due_ms = ?, fires_ms = ? WHERE schedule_id = ?"
        connection.executemany(change, [(at, at, schedule) for schedule, at in due.items()])
    return due


def fired(cluster: Cluster) -> list[tuple[int, int, str]]:
    """Schedule, due time and outcome of each line of the history."""
    lines = cluster.query("SELECT schedule_id, due_ms, outcome FROM schedule_firings ORDER BY schedule_id, due_ms")
    return [(int(schedule), int(due), str(outcome)) for schedule, due, outcome in lines]


def wait_fired(cluster: Cluster, count: int) -> None:
    cluster.wait_until(lambda: len(fired(cluster)) >= count, f"{count} due times are handled", 150.0)


def leading(cluster: Cluster, *, but: str | None = None) -> str:
    """Wait until a master leads, another one than `but`. Return its name."""
    cluster.wait_until(lambda: cluster.leader() not in (None, but), "there is a leader")
    leader = cluster.leader()
    assert leader is not None
    return leader


def assert_fired_once(cluster: Cluster, due: dict[int, int]) -> None:
    """Check the history, the audit log and the ids of the crawls: each schedule has fired once, at its due time."""
    assert fired(cluster) == [(schedule, at, "fired") for schedule, at in sorted(due.items())]
    requests = cluster.query("SELECT request FROM audit_log WHERE action = 'crawl.reset' AND actor LIKE 'schedule %'")
    assert Counter(str(request) for (request,) in requests) == Counter(f"{key}-{at}" for key, at in due.items())
    resets = cluster.query("SELECT name FROM crawls WHERE state = 'deleted'")
    assert len(resets) == COUNT, "each crawl was reset once"


def test_each_due_time_fires_once_when_leaders_are_killed(cluster: Cluster) -> None:
    declare(cluster)
    leading(cluster)
    due = make_due(cluster.database, time.time_ns() // 1_000_000 + 1_000)
    for share in (3, 2):  # kill the leader amid the firings, twice
        wait_fired(cluster, COUNT // share)
        leader = leading(cluster)
        cluster.members[leader].end()
        cluster.master(leader)
        leading(cluster)
    wait_fired(cluster, COUNT)
    assert_fired_once(cluster, due)
    with asking(cluster, "m2") as api:
        history = api.get("/v1/schedules/s0/history").json()["items"]
        assert [each["outcome"] for each in history] == ["fired"]


def test_each_due_time_fires_once_over_stops_clocks_and_empty_etcd(tmp_path: Path) -> None:
    controls = {name: MemberControls(tmp_path / f"{name}.dials") for name in ("m1", "m2")}
    with opened(tmp_path) as cluster:
        cluster.entry = member_controls.ENTRY
        for name in controls:
            cluster.master(name, **{member_controls.VARIABLE: str(tmp_path / f"{name}.dials")})
        declare(cluster)
        leading(cluster)
        due = make_due(cluster.database, time.time_ns() // 1_000_000 + 1_000)
        wait_fired(cluster, COUNT // 6)
        stopped = leading(cluster)
        cluster.members[stopped].signal(signal.SIGSTOP)
        leading(cluster, but=stopped)
        cluster.members[stopped].signal(signal.SIGCONT)
        wait_fired(cluster, COUNT // 3)
        cluster.replace_etcd()
        leading(cluster)
        wait_fired(cluster, COUNT // 2)
        late = leading(cluster)
        controls[late].turn(clock_s=-60.0)
        cluster.members[late].end()  # the next leader's clock is a minute ahead of what this one wrote
        cluster.master(late, **{member_controls.VARIABLE: str(tmp_path / f"{late}.dials")})
        leader = leading(cluster)
        wait_fired(cluster, COUNT * 2 // 3)
        controls[leading(cluster)].turn(clock_s=60.0)
        wait_fired(cluster, COUNT)
        controls[leader].turn(clock_s=0.0)
        assert_fired_once(cluster, due)
