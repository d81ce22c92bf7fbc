"""A broker of three servers over mutual TLS: who is let in, who is told nothing, and what the death of one costs."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from shared.adapters.nats import NatsBroker, NatsLogin, StreamSettings
from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.domain.errors import Transient, Unusable
from shared.domain.ids import Partition
from shared.tls import TlsSettings
from shared.wire import subjects
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed
from tests.support.engines.nats_cluster import NatsCluster, nats_cluster
from tests.support.engines.nats_server import POOL, persist

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")

P = Partition(7)
HASTY = StreamSettings(connect_s=1.0, reconnect_s=0.05)
STREAMS = (subjects.REPORTS, subjects.visits_stream(POOL), f"KV_{subjects.ROBOTS_BUCKET}", "EVENTS")


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with nats_cluster(tmp_path_factory.mktemp("nats")) as cluster:
        yield cluster


@asynccontextmanager
async def broker(nats: NatsCluster, tls: TlsSettings | None = None, replicas: int = 3) -> AsyncIterator[NatsBroker]:
    settings = StreamSettings(replicas=replicas, reconnect_s=0.05, answer_s=10.0, connect_s=30.0)
    opened = await NatsBroker.connect(nats.urls, name="test", settings=settings, tls=tls or nats.tls)
    try:
        yield opened
    finally:
        await opened.close()


async def declare(broker: NatsBroker) -> None:
    await persist(lambda: broker.declare([POOL]))
    await persist(broker.events.declare)


async def look(nats: NatsCluster, stream: str) -> dict[str, Any]:
    """What the servers say of a stream, as soon as one leads it."""
    connection = await NatsConnection.open(nats.urls, name="look", settings=StreamSettings(), tls=nats.tls)
    try:
        return await persist(lambda: demand(connection, f"STREAM.INFO.{stream}", None, 10.0))
    finally:
        await connection.close()


async def replicas(nats: NatsCluster) -> set[int]:
    """On how many servers the streams are kept."""
    return {(await look(nats, stream))["config"]["num_replicas"] for stream in STREAMS}


async def refused(urls: Sequence[str], tls: TlsSettings | None) -> str:
    """Why there is no connection: whoever was told nothing within a second waits for longer."""
    for connect_s in (1.0, 10.0):
        hasty = replace(HASTY, connect_s=connect_s)
        with pytest.raises(Transient) as caught:
            await NatsBroker.connect(urls, login=NatsLogin(token="secret"), name="test", settings=hasty, tls=tls)
        if not str(caught.value).endswith("no answer"):
            break
    return str(caught.value)


def test_servers_advertise_names_in_their_certificates(tmp_path: Path) -> None:
    """By the addresses that connections come from they would try each other for ever, forty times a second."""
    with nats_cluster(tmp_path, told=1) as nats:
        nats.wait_until_acquainted()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_end_of_a_connection_is_no_warning(
    nats: NatsCluster, caplog: pytest.LogCaptureFixture, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """A stream that was never told of its connection keeps it open half-way, as no TLS can, and reads without bound."""

    async def story() -> None:
        async with broker(nats):
            pass

    run(story())
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.long
def test_replicas_are_raised_on_streams_that_have_messages_and_never_lowered(nats: NatsCluster) -> None:
    async def run() -> None:
        async with broker(nats, replicas=1) as alone:
            await declare(alone)
            await persist(lambda: alone.publish_report(P, "outcome", b"1", "a"))
            assert await replicas(nats) == {1}
        async with broker(nats) as raised:
            await declare(raised)
            assert await replicas(nats) == {3}
        async with broker(nats, replicas=1) as untold:
            await declare(untold)
            assert await replicas(nats) == {3}
            assert await persist(untold.pending_reports) == 1

    asyncio.run(asyncio.wait_for(run(), 60))


def test_who_has_no_certificate_of_the_authority_is_not_let_in(nats: NatsCluster, tmp_path: Path) -> None:
    stranger = signed(tmp_path, authority(tmp_path), "stranger")

    async def run() -> None:
        await refused(nats.urls, TlsSettings(nats.ca.cert))
        await refused(nats.urls, TlsSettings(nats.ca.cert, stranger.cert, stranger.key))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_certificate_of_no_user_is_unusable(nats: NatsCluster, tmp_path: Path) -> None:
    """As that of Prometheus or an operator, which the same authority has signed."""
    stranger = signed(tmp_path, nats.ca, "prometheus", "DNS:prometheus,DNS:localhost")

    async def run() -> None:
        with pytest.raises(Unusable, match="check nats_user and nats_password, or nats_token"):
            async with broker(nats, TlsSettings(nats.ca.cert, stranger.cert, stranger.key)):
                pass

    asyncio.run(asyncio.wait_for(run(), 60))


async def until_there(worker: NatsBroker) -> bytes | None:
    """Return the entry `x` of the robots bucket, for which a replica that is behind may answer at first."""
    for _ in range(200):
        if (found := await worker.get_robots("x")) is not None:
            return found
        await asyncio.sleep(0.05)
    return None


def test_certificate_of_worker_has_rights_of_worker_alone(nats: NatsCluster, tmp_path: Path) -> None:
    """Over any of three servers, as in compose.yaml, and for no other worker."""
    own = signed(tmp_path, nats.ca, "w", "DNS:worker-1,DNS:localhost,IP:127.0.0.1")
    files = TlsSettings(nats.ca.cert, own.cert, own.key)

    async def run() -> None:
        async with broker(nats) as master:
            await declare(master)
            for number, url in enumerate(nats.urls):
                worker = await NatsBroker.connect([url], name="worker-1", settings=StreamSettings(), tls=files)
                await persist(partial(master.publish_shard, POOL, P, number, 0, b"shard"))
                (visit,) = await worker.pull_visits(POOL, 1, 30.0)
                await visit.ack()
                await worker.put_robots("x", b"1")
                assert await until_there(worker) == b"1"
                with pytest.raises(
                    Transient, match=r"does not permit this process to publish on \$JS\.API\.STREAM\.INFO"
                ):
                    await worker.reports_state()
                await worker.close()
                other = await NatsBroker.connect([url], name="worker-2", settings=StreamSettings(), tls=files)
                with pytest.raises(Unusable, match="permits no answers to worker-2"):
                    await other.get_robots("x")
                await other.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_server_of_another_authority_or_name_is_not_spoken_to(nats: NatsCluster, tmp_path: Path) -> None:
    other = authority(tmp_path)

    async def run() -> None:
        strange = TlsSettings(other.cert, nats.client.cert, nats.client.key)
        assert "certificate verify failed" in await refused(nats.urls, strange)
        other_name = f"tls://localhost:{nats.servers[0].port}"
        assert "certificate verify failed" in await refused([other_name], nats.tls)

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("tls", [True, False], ids=["files", "system's authorities"])
def test_a_server_that_demands_no_tls_is_told_nothing_at_all(nats: NatsCluster, tls: bool) -> None:
    """Somebody in its place may have left the demand out of the greeting, which comes in the clear."""
    heard = bytearray()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","auth_required":true,"max_payload":1048576}\r\n')
        heard.extend(await reader.read())
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            said = await refused([f"tls://127.0.0.1:{port}"], nats.tls if tls else None)
            assert "does not demand TLS" in said

    asyncio.run(asyncio.wait_for(run(), 60))
    assert bytes(heard) == b""


@pytest.mark.long
def test_next_connection_shows_certificate_currently_in_files(nats: NatsCluster, tmp_path: Path) -> None:
    own = Certificate(tmp_path / "own.pem", tmp_path / "own.key")

    def renew(by: Certificate) -> None:
        shutil.copy(by.cert, own.cert)
        shutil.copy(by.key, own.key)

    async def run() -> None:
        renew(nats.client)
        async with broker(nats, TlsSettings(nats.ca.cert, own.cert, own.key)) as held:
            await declare(held)
            await persist(lambda: held.publish_report(P, "outcome", b"1", "before"))
            own.cert.write_text("half of a certificate")
            for server in nats.servers:
                server.kill()
            for server in nats.servers:
                server.start()
            nats.wait_until_healthy()
            with pytest.raises(TimeoutError):
                await persist(lambda: held.publish_report(P, "outcome", b"2", "broken"), patience_s=0.5)
            renew(signed(tmp_path, nats.ca, "renewed", "DNS:master-1"))
            await persist(lambda: held.publish_report(P, "outcome", b"3", "renewed"))

    asyncio.run(asyncio.wait_for(run(), 90))


@pytest.mark.long
def test_killed_stream_leader_loses_nothing_acknowledged(nats: NatsCluster) -> None:
    async def run() -> None:
        async with broker(nats) as held:
            await declare(held)
            before = await persist(held.pending_reports)
            for number in range(40):
                await persist(partial(held.publish_report, P, "outcome", b"x", f"r{number}"), 60)
                if number == 20:
                    info = await look(nats, subjects.REPORTS)
                    leading = next(each for each in nats.servers if each.folder.name == info["cluster"]["leader"])
                    leading.kill()
            assert await persist(held.pending_reports) == before + 40
            leading.start()

    asyncio.run(asyncio.wait_for(run(), 180))


@pytest.mark.parametrize(
    ("urls", "tls", "says"),
    [
        (["tls://a:1", "nats://token@b:2"], None, "endpoint b:2 does not begin with tls://"),
        (["nats://a:1"], TlsSettings(Path("ca.pem")), "endpoint a:1 does not begin with tls://"),
        (["tls://a:1"], TlsSettings(ca=Path("/no/such/file")), "cannot read the CA /no/such/file"),
        (["tls://a:1"], TlsSettings(cert=Path("/a")), "both"),
        (["tls://a:1"], TlsSettings(cert=Path("/a"), key=Path("/b")), "cannot use the certificate"),
    ],
)
def test_settings_that_would_speak_in_the_clear_or_cannot_work_are_refused(
    urls: list[str], tls: TlsSettings | None, says: str
) -> None:
    async def run() -> None:
        with pytest.raises(Unusable, match=says):
            await NatsBroker.connect(urls, name="test", settings=HASTY, tls=tls)

    asyncio.run(run())
