"""A backup of the cluster that compose.yaml describes, taken under load over mutual TLS on every link, and restored
into a fresh one: three NATS servers with every stream on all of them, three members of etcd."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_compose import STORED, first_key, keeper
from tests.support.engines.certificates import OPENSSL
from tests.support.engines.postgres import PostgresLook, PostgresServer
from tests.support.processes.compose_cluster import Composed, composed, engines
from tests.support.processes.crawl_proof import DELAY_S, spec
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates"),
]

SETTINGS = ("--config", "/etc/orb/master.yaml")
WAITS = {"ORB_GRANT_S": "4", "ORB_ACK_WAIT_S": "4"}
"""What was in hand when the backup was taken rests for so long, both together, when it is claimed."""


def database(url: str) -> str:
    """Its name."""
    return url.partition("?")[0].rpartition("/")[2]


def waiting(url: str) -> int:
    """How many URLs of all crawls are queued there."""
    look = PostgresLook(url)
    try:
        return int(look("SELECT sum(queued) FROM crawl_counters")[0][0])
    finally:
        look.close()


def finished(cluster: Composed, key: str) -> bool:
    with cluster.client("master-2", key) as client:
        try:
            return bool(client.get("/v1/crawls/docs").json().get("state") == "finished")
        except httpx.HTTPError:
            return False


def test_backup_under_load_over_tls_resumes_in_new_three_server_cluster(
    tmp_path: Path, postgres_server: PostgresServer, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=500, hosts=8, missing=10, redirects=10))
    first, second = (asyncio.run(postgres_server.database(empty=empty)) for empty in (False, True))
    backup = tmp_path / "backup"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with composed(tmp_path / "a", database(first), postgres_server.socket, **WAITS) as before:
        key = first_key(before)
        served.answer(300)
        with before.client("master-1", key) as client:
            made = client.post("/v1/crawls", json={"name": "docs", "spec": spec(served), "start": True})
            assert made.status_code == 201, made.text
        served.wait_served(60)
        known = len(served.log())
        before.orb("master-1", "backup", *SETTINGS, backup)
        served.answer(None)
        served.wait_served(known + 30)
    with engines(tmp_path / "b", database(second), postgres_server.socket, **WAITS) as after:
        after.orb("master-1", "restore", *SETTINGS, backup)
        after.orb("master-1", "db", "check", *SETTINGS)
        assert waiting(second) > 0, "it was under way"
        shutil.copytree(before.folder / "volumes" / "archive", after.folder / "volumes" / "archive", dirs_exist_ok=True)
        after.start_members()
        assert asyncio.run(keeper(after))[1] == 3
        after.wait_until(lambda: finished(after, key), "the crawl is finished")
        with after.client("master-1", key) as client:
            counters = client.get("/v1/crawls/docs/stats").json()["counters"]
    states = ("queued", "leased", "done", "failed", "excluded")
    assert counters["discovered"] == sum(counters[state] for state in states)
    assert counters["accepted"] == sum(counters[result] for result in ("new", "known", "refused"))
    look = PostgresLook(second)
    try:
        pages = [page for (page,) in look(STORED)]
    finally:
        look.close()
    assert sorted(pages) == sorted(served.expected_pages())
    log = served.log()
    assert {host: gap for host in log_judge.hosts(log) if (gap := log_judge.smallest_gap(log, host)) < DELAY_S} == {}
