"""Masters and workers over mutual TLS: who is answered, by which certificate, and that writes reach the leader."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from api.server.serving import address_of, listening, serving
from cli.ctl.client import Client
from cli.ctl.contexts import Access
from cli.main import main
from cli.terminal.exits import Environment
from shared.domain.errors import Unusable
from shared.domain.ops.access import Role
from shared.tls import ClientTls, ServerTls, TlsSettings, following, server_tls
from tests.support.api.rest_api import SPEC, Api, Follower, api, problem
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed
from workers.metrics_server import exposing

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")

LOOK_S = 0.02


@dataclass(frozen=True)
class Papers:
    """Two authorities, and a certificate of each for everybody."""

    ca: Certificate
    own: Certificate
    other_ca: Certificate
    stranger: Certificate

    @property
    def files(self) -> TlsSettings:
        return TlsSettings(self.ca.cert, self.own.cert, self.own.key)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    ours, theirs = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    ca, other = authority(ours), authority(theirs)
    return Papers(ca, signed(ours, ca, "own"), other, signed(theirs, other, "stranger"))


@asynccontextmanager
async def at_address(us: Api, tls: ServerTls | None) -> AsyncIterator[str]:
    listener = listening("127.0.0.1:0")
    with listener:
        async with serving(us.app, listener, tls):
            yield address_of(listener)


async def status(url: str, files: TlsSettings) -> int:
    """The answer to a connection of its own."""
    async with httpx.AsyncClient(verify=ClientTls(files).context) as client:
        return (await client.get(url)).status_code


async def serial(address: str, files: TlsSettings) -> str:
    """Of the certificate that is shown to a new connection."""
    host, _, port = address.rpartition(":")
    context = ClientTls(files).context
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await reader.read()


def test_only_holders_of_a_certificate_of_the_authority_are_answered(tmp_path: Path, papers: Papers) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as us, at_address(us, ServerTls(papers.files)) as address:
            url = f"https://{address}/livez"
            assert await status(url, papers.files) == 200
            without = TlsSettings(papers.ca.cert)
            stranger = TlsSettings(papers.ca.cert, papers.stranger.cert, papers.stranger.key)
            for files in (without, stranger):
                with pytest.raises(httpx.HTTPError):
                    await status(url, files)
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await status(url, TlsSettings(papers.other_ca.cert, papers.own.cert, papers.own.key))
            with pytest.raises(httpx.HTTPError):
                await status(f"http://{address}/livez", papers.files)

    asyncio.run(story())


def test_write_on_follower_reaches_leader_with_followers_certificate(tmp_path: Path, papers: Papers) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with api(path) as leader, at_address(leader, ServerTls(papers.files)) as address:
            plane = Follower(f"https://{address}")
            verify = ClientTls(papers.files).context
            async with (
                api(path, plane=plane, verify=verify) as follower,
                follower.as_role(Role.OPERATOR) as client,
            ):
                made = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})
                assert made.status_code == 201, made.text
            async with (
                api(path, plane=plane, verify=ClientTls(TlsSettings(papers.ca.cert)).context) as nobody,
                nobody.as_role(Role.OPERATOR) as client,
            ):
                problem(await client.post("/v1/crawls", json={"name": "other", "spec": SPEC}), 503, "no-leader")

    asyncio.run(story())


def test_new_connections_use_current_files_and_open_ones_continue(tmp_path: Path, papers: Papers) -> None:
    own, ca = Certificate(tmp_path / "own.pem", tmp_path / "own.key"), tmp_path / "clients.pem"

    def put(certificate: Certificate) -> None:
        shutil.copy(certificate.cert, own.cert)
        shutil.copy(certificate.key, own.key)

    async def asks(client: httpx.AsyncClient, url: str, over: asyncio.Event) -> None:
        """Again and again: a connection that rests is closed, whatever the files hold."""
        last = False
        while not last:
            last = over.is_set()
            assert (await client.get(url)).status_code == 200
            await asyncio.sleep(LOOK_S)

    async def until(event: str, logs: list[MutableMapping[str, Any]]) -> None:
        while all(line["event"] != event for line in logs):  # noqa: ASYNC110  nothing else tells of it
            await asyncio.sleep(LOOK_S)
        logs.clear()

    async def story() -> None:
        put(papers.own)
        shutil.copy(papers.ca.cert, ca)
        side = ServerTls(TlsSettings(ca, own.cert, own.key))
        async with api(tmp_path / "crawl.db") as us, at_address(us, side) as address:
            keeping = asyncio.create_task(following(side, look_s=LOOK_S))
            async with httpx.AsyncClient(verify=ClientTls(papers.files).context) as early:
                assert (await early.get(f"https://{address}/livez")).status_code == 200
                over = asyncio.Event()
                staying = asyncio.create_task(asks(early, f"https://{address}/livez", over))
                before = await serial(address, papers.files)
                with capture_logs() as logs:
                    own.cert.write_text("half of a certificate")
                    await until("certificate.rejected", logs)
                    assert await serial(address, papers.files) == before, "what is no good changes nothing"
                    put(signed(tmp_path, papers.ca, "renewed"))
                    await until("certificate.reloaded", logs)
                    assert await serial(address, papers.files) != before
                    shutil.copy(papers.other_ca.cert, ca)
                    await until("certificate.reloaded", logs)
                with pytest.raises(httpx.HTTPError):
                    await status(f"https://{address}/livez", papers.files)
                theirs = TlsSettings(papers.ca.cert, papers.stranger.cert, papers.stranger.key)
                assert await status(f"https://{address}/livez", theirs) == 200
                over.set()
                await staying
            keeping.cancel()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_certificate_that_was_renewed_before_anybody_looked_is_taken_up(tmp_path: Path, papers: Papers) -> None:
    """A master that shows the first key may wait for its database as long as a certificate is good for."""
    own = Certificate(tmp_path / "own.pem", tmp_path / "own.key")

    def put(certificate: Certificate) -> None:
        shutil.copy(certificate.cert, own.cert)
        shutil.copy(certificate.key, own.key)

    put(papers.own)
    side = ServerTls(TlsSettings(papers.ca.cert, own.cert, own.key))
    put(signed(tmp_path, papers.ca, "renewed"))

    async def story() -> None:
        with capture_logs() as logs:
            keeping = asyncio.create_task(following(side, look_s=LOOK_S))
            while all(line["event"] != "certificate.reloaded" for line in logs):  # noqa: ASYNC110  nothing else tells of it
                await asyncio.sleep(LOOK_S)
            keeping.cancel()

    asyncio.run(asyncio.wait_for(story(), 30))


def test_who_asks_shows_the_newest_certificate_too(tmp_path: Path, papers: Papers) -> None:
    own = Certificate(tmp_path / "own.pem", tmp_path / "own.key")

    def put(certificate: Certificate) -> None:
        shutil.copy(certificate.cert, own.cert)
        shutil.copy(certificate.key, own.key)

    async def story() -> None:
        put(papers.stranger)
        asking = ClientTls(TlsSettings(papers.ca.cert, own.cert, own.key))
        async with (
            api(tmp_path / "crawl.db") as us,
            at_address(us, ServerTls(papers.files)) as address,
            httpx.AsyncClient(verify=asking.context) as client,
        ):
            with pytest.raises(httpx.HTTPError):
                await client.get(f"https://{address}/livez")
            put(papers.own)
            asking.renew()
            assert (await client.get(f"https://{address}/livez")).status_code == 200

    asyncio.run(story())


def test_a_workers_metrics_are_for_holders_of_a_certificate(papers: Papers) -> None:
    async def story() -> None:
        async with exposing("127.0.0.1:0", REGISTRY, ServerTls(papers.files)) as address:
            assert await status(f"https://{address}/metrics", papers.files) == 200
            with pytest.raises(httpx.HTTPError):
                await status(f"https://{address}/metrics", TlsSettings(papers.ca.cert))

    asyncio.run(story())


def test_ctl_login_keeps_certificate_and_reports_a_missing_one(
    tmp_path: Path, papers: Papers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ORB_SERVER", "ORB_API_KEY", "ORB_CONTEXT", "ORB_TLS_CA", "ORB_TLS_CERT", "ORB_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)

    def without(address: str) -> None:
        access = Access((f"https://{address}",), "k", TlsSettings(papers.ca.cert))
        with Client(access, patience_s=0.1) as client, pytest.raises(Environment, match="--tls-cert"):
            client.get("/v1/cluster")

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as us, at_address(us, ServerTls(papers.files)) as address:
            await us.created("docs")
            files = ("--tls-ca", papers.ca.cert, "--tls-cert", papers.own.cert, "--tls-key", papers.own.key)
            login = ("login", "--server", f"https://{address}", "--key", us.keys[Role.VIEWER], *map(str, files))
            assert await asyncio.to_thread(main, ["ctl", *login, "--unchecked"]) == 0
            assert await asyncio.to_thread(main, ["ctl", "get", "crawls", "-o", "name"]) == 0
            await asyncio.to_thread(without, address)

    asyncio.run(story())
    assert "crawl/docs" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_half_of_what_tls_needs_is_refused(papers: Papers, missing: str) -> None:
    files = {"cert": papers.own.cert, "key": papers.own.key, missing: None}
    with pytest.raises(Unusable):
        server_tls(files["cert"], files["key"], papers.ca.cert)
    assert server_tls(None, None, None) is None


def test_nothing_older_than_tls_1_2_is_spoken(papers: Papers) -> None:
    for context in (ServerTls(papers.files).context, ClientTls(papers.files).context):
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
