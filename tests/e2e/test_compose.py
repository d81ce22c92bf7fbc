"""The cluster that compose.yaml describes, over mutual TLS on every link, crawls and outlives parts of its engines."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from shared.adapters.nats import StreamSettings
from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.tls import TlsSettings, client_context
from shared.wire.subjects import REPORTS
from tests.support.api.cluster_clients import FIRST_KEY
from tests.support.database.url_rows import URLS
from tests.support.engines.certificates import OPENSSL
from tests.support.engines.postgres import PostgresLook, PostgresServer
from tests.support.processes.cluster import OPEN
from tests.support.processes.cluster import cluster as opened
from tests.support.processes.compose_cluster import Composed, composed
from tests.support.processes.crawl_proof import DELAY_S, spec
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.faults,
    pytest.mark.timeout(400),
    pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates"),
]

STORED = (
    f"SELECT u.url FROM {URLS} u JOIN fetches f USING (crawl_id, host_id, fingerprint) WHERE f.page AND f.status = 200"
)


def first_key(cluster: Composed) -> str:
    said = "".join(cluster.log(master).read_text() for master in ("master-1", "master-2"))
    return said.split(FIRST_KEY)[1].split()[0]


async def keeper(cluster: Composed) -> tuple[str, int]:
    """The NATS server that leads the stream of reports, and on how many it is kept."""
    urls = [f"tls://127.0.0.1:{cluster.port(f'nats-{number}', 4222)}" for number in (1, 2, 3)]
    tls = cluster.files("master-1")
    connection = await NatsConnection.open(urls, name="look", settings=StreamSettings(), tls=tls)
    try:
        info = await demand(connection, f"STREAM.INFO.{REPORTS}", None, 10.0)
    finally:
        await connection.close()
    return info["cluster"]["leader"], info["config"]["num_replicas"]


def test_compose_crawl_survives_death_of_nats_server_and_etcd_member(
    tmp_path: Path, postgres_server: PostgresServer, web: Callable[..., Web]
) -> None:
    served = web(SyntheticSite(pages=400, hosts=8, missing=20, redirects=20))
    url = asyncio.run(postgres_server.database())
    name = url.partition("?")[0].rpartition("/")[2]
    with composed(tmp_path, name, postgres_server.socket, **OPEN) as cluster:
        key = first_key(cluster)
        for service in ("etcd-2", "nats-2", "master-2", "worker-2"):
            cluster.wait_until(lambda service=service: not cluster.check(service), f"{service} is well")  # type: ignore[misc]  # bound now
        with cluster.client("master-1", key) as one, cluster.client("master-2", key) as two:
            served.answer(200)
            # One of the two does not lead, and passes it on over TLS.
            for client, crawl in ((one, "docs"), (two, "other")):
                made = client.post("/v1/crawls", json={"name": crawl, "spec": spec(served), "start": crawl == "docs"})
                assert made.status_code == 201, made.text
            served.wait_served(80)
            leading, replicas = asyncio.run(keeper(cluster))
            assert replicas == 3
            # The one through which reports go, and the one that everybody asks first.
            killed = (leading, "etcd-1")
            for service in killed:
                cluster.kill(service)
                assert cluster.check(service), "nobody takes it for well"
            before = len(served.log())
            served.answer(None)
            cluster.wait_until(lambda: len(served.log()) > before + 80, "it goes on without them")
            for service in killed:
                cluster.start(service)

            def finished() -> bool:
                try:
                    return bool(two.get("/v1/crawls/docs").json().get("state") == "finished")
                except httpx.HTTPError:
                    return False

            cluster.wait_until(finished, "the crawl is finished", 200)
            counters = two.get("/v1/crawls/docs/stats").json()["counters"]
        with pytest.raises(httpx.HTTPError):
            httpx.get(
                f"https://127.0.0.1:{cluster.port('worker-1', 9101)}/metrics",
                verify=client_context(TlsSettings(cluster.files("worker-1").ca)),
            )
    states = ("queued", "leased", "done", "failed", "excluded")
    assert counters["discovered"] == sum(counters[state] for state in states)
    assert counters["accepted"] == sum(counters[result] for result in ("new", "known", "refused"))
    look = PostgresLook(url)
    try:
        pages = [page for (page,) in look(STORED)]
    finally:
        look.close()
    assert sorted(pages) == sorted(served.expected_pages())
    log = served.log()
    assert {host: gap for host in log_judge.hosts(log) if (gap := log_judge.smallest_gap(log, host)) < DELAY_S} == {}


def test_a_master_that_is_to_keep_more_copies_than_nats_can_ends_and_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as alone:
        master = alone.master("m1", ORB_NATS_REPLICAS="3")
        assert master.process.wait(60) == 4
        assert "cannot keep what it is to keep" in alone.said("m1", "master.failed")[-1]["error"]
