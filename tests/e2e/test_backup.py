"""A backup taken of a cluster at work, restored into a fresh one: nothing that was accepted before it is missing."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.adapters.sql.admin.load import SKIPPED
from shared.domain.ids import CrawlId
from tests.support.database.store_tables import books
from tests.support.engines.postgres import PostgresServer
from tests.support.processes.cluster import KEYS, Cluster
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.crawl_proof import declared, started, whole
from tests.support.processes.orb_command import ROOT, command_line, orb
from tests.support.processes.up_process import upped
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

HELD = 300
"""Pages that a site answers until the backup is there: a crawl that had ended by then would prove nothing."""

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.long]


def orb_on(cluster: Cluster, command: str, *arguments: str | Path, code: int = 0) -> str:
    """Run a command that is told of the cluster's engines; what it said."""
    told = {
        "ORB_DATABASE": cluster.url or str(cluster.database),
        "ORB_NATS_URL": cluster.broker.endpoint.url,
        **cluster.broker.login("master").environment,
        "ORB_ETCD": cluster.etcd.endpoint,
        "ORB_CLUSTER": KEYS.cluster,
    }
    ended = subprocess.run(
        command_line(*command.split(), *arguments),
        cwd=ROOT,
        env={**os.environ, **told},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == code, said
    return said


def ended_all(cluster: Cluster) -> None:
    """The machines of the cluster are gone, all at once."""
    for member in cluster.members.values():
        member.signal(signal.SIGKILL)
    for member in cluster.members.values():
        member.end()
    cluster.kill_etcd()
    cluster.broker.kill()


def counted(cluster: Cluster, crawl: CrawlId, name: str) -> int:
    return int(cluster.query(f"SELECT coalesce(sum({name}), 0) FROM crawl_counters WHERE crawl_id = {crawl}")[0][0])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("sqlite", "postgresql"),
        ("postgresql", "sqlite"),
        pytest.param("sqlite", "sqlite", marks=pytest.mark.slow),
        pytest.param("postgresql", "postgresql", marks=pytest.mark.slow),
    ],
)
def test_backup_under_load_restored_finishes_with_exactly_the_pages(
    tmp_path: Path, web: Callable[..., Web], postgres_server: PostgresServer, first: str, second: str
) -> None:
    """The second cluster has etcd, NATS and database of its own, and members that know nothing of before. Two pairs,
    by which each engine is backed up and restored into, are tried every time."""
    site = web(SyntheticSite(pages=1600, hosts=10, missing=20, flaky=20, redirects=20))
    backup = tmp_path / "backup"

    def url(engine: str, *, empty: bool = False) -> str | None:
        return asyncio.run(postgres_server.database(empty=empty)) if engine == "postgresql" else None

    (tmp_path / "a").mkdir()
    with opened(tmp_path / "a", url(first)) as before:
        leader, _ = started(before)
        site.answer(HELD)
        crawl = declared(before, site, leader)
        site.wait_served(150)
        assert before.leased(crawl) > 0, "there is something in hand"
        said = orb_on(before, "backup", backup)
        assert said.startswith("orb: backup ")
        assert said.count("\n") == 1, said
        site.answer(None)
        before.wait_until(lambda: counted(before, crawl, "done") > HELD, "it goes on, beyond what the backup knows")
        epoch, terms = before.epoch(), before.terms()
        done = counted(before, crawl, "done")
        ended_all(before)
    assert oct(backup.stat().st_mode & 0o777) == "0o700"
    assert "is complete" in orb_check(backup)
    (tmp_path / "b").mkdir()
    with opened(tmp_path / "b", url(second, empty=True)) as after:
        orb_on(after, "restore", backup)
        assert after.epoch() == epoch + 1
        assert 0 < counted(after, crawl, "done") < done
        assert set(after.query("SELECT outcome_seq, discovery_seq, stream_created_ns FROM partitions")) == {(0, 0, 0)}
        assert after.query("SELECT min(next_lease) FROM partitions")[0][0] > SKIPPED
        assert counted(after, crawl, "queued") > 0, "it was under way, however long the command took to end"
        assert counted(after, crawl, "leased") > 0, "what was in hand is taken for in hand"
        orb_on(after, "db check")
        after.master("m1")
        after.worker("w1")
        after.worker("w2")
        whole(after, site, crawl)
        assert all(new > old for new, old in zip(after.terms(), terms, strict=True))
        assert not any(after.said("m1", "report_stream.replaced")), (
            "its reports are read from their start, as they should"
        )
        orb_on(after, "db check")
        assert books(after.database if after.url is None else lambda sql, *_: after.query(sql)) == []


def orb_check(backup: Path) -> str:
    """What a look at a backup alone says."""
    line = command_line("restore", "--check", backup)
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stderr.decode()


def test_a_cluster_of_one_machine_goes_on_in_a_new_folder_from_its_backup(
    web: Callable[..., Web], tmp_path: Path
) -> None:
    site = web(SyntheticSite(pages=120, hosts=4))
    small = ("--masters", "1", "--workers", "1")
    waits = {"ORB_GRANT_S": "2", "ORB_ACK_WAIT_S": "2"}  # what was in hand rests for both
    first, second, backup = tmp_path / "first", tmp_path / "second", tmp_path / "backup"
    with upped(first, *small, settings=waits) as up:
        key = up.key
        spec = {
            "seeds": [f"{site.origins[0]}/"],
            "scope": {"mode": "any"},
            "politeness": {"delay_s": 0.1},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        assert up.ask("POST", "/v1/crawls", {"name": "docs", "spec": spec}).status_code == 201
        site.wait_served(20)
        orb("backup", "--dir", first, backup)
        orb("db", "check", "--dir", first)
        up.killed()
    orb("restore", "--dir", second, backup)
    orb("restore", "--dir", second, backup, code=2)
    with upped(second, *small, settings=waits) as up:
        assert up.key is None, "the keys are those of before"
        up.key = key
        up.until(lambda: up.ask("GET", "/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished")
        counters = up.ask("GET", "/v1/crawls/docs/stats").json()["counters"]
        assert counters["pages"] == len(site.expected_pages())
        orb("db", "check", "--dir", second)
