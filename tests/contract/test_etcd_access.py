"""Who is let in: passwords that tokens stand for, TLS, certificates as users, and settings that make no sense."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import etcd3.etcdrpc as rpc
import pytest
from etcd3.etcdrpc import auth_pb2
from structlog.testing import capture_logs

from shared.adapters.etcd import EtcdCoordinator, EtcdServerSettings, EtcdSettings
from shared.adapters.etcd.requests import read
from shared.adapters.etcd.session import open_session
from shared.domain.errors import Transient, Unusable
from shared.runtime.retry import until_answered
from shared.settings import ClusterWorkerSettings
from shared.tls import TlsSettings
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed
from tests.support.engines.etcd import CLOCK, ELECTION_MS, EtcdServer, connected, coordinator, etcd, run, settled
from workers.membership import joined

needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")


async def ask(endpoint: str, name: str, request: Any, **settings: Any) -> Any:
    async with connected(endpoint, attempt_s=10.0, **settings) as connection:
        return await connection.call(f"Auth.{name}", request, repeat=False)


async def demand_passwords(endpoint: str, **settings: Any) -> None:
    """Users `root` and `orb` (who may do everything below /orb/), and nobody else from now on."""
    for user, password in (("root", "root's own"), ("orb", "secret")):
        await ask(endpoint, "UserAdd", rpc.AuthUserAddRequest(name=user, password=password), **settings)
        await ask(endpoint, "RoleAdd", rpc.AuthRoleAddRequest(name=user), **settings)
        await ask(endpoint, "UserGrantRole", rpc.AuthUserGrantRoleRequest(user=user, role=user), **settings)
    below = auth_pb2.Permission(permType=auth_pb2.Permission.READWRITE, key=b"/orb/", range_end=b"/orb0")
    await ask(endpoint, "RoleGrantPermission", rpc.AuthRoleGrantPermissionRequest(name="orb", perm=below), **settings)
    await ask(endpoint, "AuthEnable", rpc.AuthEnableRequest(), **settings)


@asynccontextmanager
async def tls_etcd(folder: Path, ca: Certificate, own: Certificate) -> AsyncIterator[EtcdServer]:
    """A server that listens on a port of this machine and asks everybody for a certificate."""
    for last in (False, False, True):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        endpoint = f"https://127.0.0.1:{port}"
        arguments = (
            # Both: the socket is how the launcher sees that it is up.
            f"--listen-client-urls={endpoint},unix://client.sock:1",
            f"--advertise-client-urls={endpoint}",
            f"--cert-file={own.cert}",
            f"--key-file={own.key}",
            f"--trusted-ca-file={ca.cert}",
            "--client-cert-auth=true",
        )
        settings = EtcdServerSettings(
            heartbeat_ms=ELECTION_MS // 10, election_ms=ELECTION_MS, start_s=30, arguments=arguments
        )
        server = EtcdServer(folder, settings)
        try:
            await server.start()
        except Unusable:  # somebody was quicker to take the port
            if last:
                raise
            continue
        try:
            server.endpoint = endpoint
            yield server
        finally:
            await server.embedded.stop()
        return


def test_forgotten_token_is_renewed_for_calls_keepalives_and_watches(tmp_path: Path) -> None:
    async def story() -> None:
        async with etcd(tmp_path) as server:
            await demand_passwords(server.endpoint)
            async with (
                coordinator(server.endpoint, user="orb", password="secret") as c,
                c.session(9) as session,
                c.watch("/orb/t/k/") as view,
            ):
                leader = await session.campaign("/orb/t/leader", b"")
                await leader.write({"/orb/t/k/a": b"1"})
                for key in ("/orb/t/k/b", "/orb/t/k/c"):
                    seen = view.snapshot
                    server.kill()
                    await server.restart()
                    await until_answered(leader.barrier)
                    await leader.write({key: b"1"})
                    while key not in seen.entries:
                        seen = await view.changed(seen, None)
                until = session.ok_until
                while session.ok_until == until:  # noqa: ASYNC110  nothing tells of a renewal
                    await asyncio.sleep(0.05)
                with pytest.raises(Unusable, match="permission denied"):
                    await leader.write({"/elsewhere": b""})
                await session.register("/orb/t/m/a", b"1")

    run(story)


def test_server_that_starts_demanding_passwords_keeps_those_with_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            etcd(tmp_path) as server,
            coordinator(server.endpoint, user="orb", password="secret") as c,
            c.session(30) as session,
        ):
            leader = await session.campaign("/orb/t/leader", b"")
            await demand_passwords(server.endpoint)
            await leader.write({"/orb/t/k": b"1"})

    run(story)


def test_nobody_waits_for_the_logins_of_all_the_others(tmp_path: Path) -> None:
    """The server stands still: twenty logins, one after the other and each for as long as an attempt takes, would hold
    up the end of a session for as long as all of them."""

    async def story() -> None:
        async with etcd(tmp_path) as server, connected(server.endpoint, user="orb", password="secret") as connection:
            await demand_passwords(server.endpoint)
            async with contextlib.AsyncExitStack() as opened:
                await opened.enter_async_context(open_session(connection, CLOCK, 15))
                with server.stopped():
                    connection.forget_login()
                    asking = [
                        asyncio.create_task(connection.call("KV.Range", read("k"), repeat=False)) for _ in "*" * 20
                    ]
                    await asyncio.sleep(0)
                    async with asyncio.timeout(20):
                        await opened.aclose()
                        told = await asyncio.gather(*asking, return_exceptions=True)
                assert {type(each) for each in told} == {Transient}

    run(story)


@pytest.mark.parametrize(
    ("user", "password"), [("orb", "wrong"), ("nobody", "secret"), (None, None)], ids=["password", "user", "none"]
)
def test_who_is_not_let_in_is_told_so_and_does_not_try_for_ever(
    tmp_path: Path, user: str | None, password: str | None
) -> None:
    async def story() -> None:
        async with etcd(tmp_path) as server:
            await demand_passwords(server.endpoint)
            async with coordinator(server.endpoint, user=user, password=password) as c:
                with pytest.raises(Unusable, match="check user, password"):
                    await c.list("/orb/t/")
                with pytest.raises(Unusable, match="check user, password"):
                    async with c.watch("/orb/t/"):
                        pass

    run(story)


def test_a_watch_that_may_not_watch_ends_its_block(tmp_path: Path) -> None:
    """The role was taken away while it watched, and the stream is opened anew."""

    async def lose_the_role(server: EtcdServer, c: EtcdCoordinator) -> None:
        async with c.watch("/orb/t/") as view:
            revoke = rpc.AuthUserRevokeRoleRequest(name="orb", role="orb")
            await ask(server.endpoint, "UserRevokeRole", revoke, user="root", password="root's own")
            server.kill()
            await server.restart()
            await view.changed(view.snapshot, None)

    async def story() -> None:
        async with etcd(tmp_path) as server:
            await demand_passwords(server.endpoint)
            async with coordinator(server.endpoint, user="orb", password="secret") as c:
                with pytest.raises(Unusable):
                    await lose_the_role(server, c)

    run(story)


@pytest.mark.long
@needs_openssl
def test_a_certificate_is_the_user_and_without_one_there_is_no_answer(tmp_path: Path) -> None:
    async def story() -> None:
        ca = authority(tmp_path)
        own, root, orb = (signed(tmp_path, ca, name) for name in ("server", "root", "orb"))
        async with tls_etcd(tmp_path / "etcd", ca, own) as server:
            await demand_passwords(server.endpoint, tls=TlsSettings(ca.cert, root.cert, root.key))
            async with (
                coordinator(server.endpoint, tls=TlsSettings(ca.cert, orb.cert, orb.key)) as c,
                c.session(9) as session,
                c.watch("/orb/t/k/") as view,
            ):
                leader = await session.campaign("/orb/t/leader", b"")
                server.kill()
                await server.restart()
                await until_answered(leader.barrier)
                revision = await leader.write({"/orb/t/k/a": b"1"})
                await settled(view, lambda snapshot: snapshot.changed >= revision)
                with pytest.raises(Unusable, match="permission denied"):
                    await c.list("/elsewhere/")
            async with coordinator(server.endpoint, tls=TlsSettings(ca.cert), answer_s=0.5) as stranger:
                with pytest.raises(Transient):
                    await stranger.list("/orb/t/")

    run(story)


@pytest.mark.long
@needs_openssl
def test_worker_start_refused_by_tls_logs_the_delay_and_waits(tmp_path: Path) -> None:
    async def story() -> None:
        ca = authority(tmp_path)
        own = signed(tmp_path, ca, "server")
        (tmp_path / "other").mkdir()
        other = authority(tmp_path / "other")
        async with tls_etcd(tmp_path / "etcd", ca, own) as server:
            for trusted in (ca, other):
                settings = ClusterWorkerSettings(
                    id="w1", dir=tmp_path, nats_url="nats://127.0.0.1", etcd=server.endpoint, etcd_ca=trusted.cert
                )
                with capture_logs() as logs, pytest.raises(TimeoutError):
                    async with asyncio.timeout(9), joined(settings, CLOCK):
                        pass
                delays = [line for line in logs if line["event"] == "worker_start.delayed"]
                assert [(line["engine"], line["address"]) for line in delays] == [("etcd", server.endpoint)]

    run(story)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (EtcdSettings(()), "no etcd endpoint"),
        (EtcdSettings(("etcd:2379",)), "no etcd endpoint"),
        (EtcdSettings(("http://etcd",)), "no etcd endpoint"),
        (EtcdSettings(("http://etcd.test:2379",), user="orb", password="secret"), "over TLS only"),
        (EtcdSettings(("http://127.0.0.1:2379",), tls=TlsSettings()), "does not begin with https"),
        (EtcdSettings(("https://127.0.0.1:2379",), tls=TlsSettings(ca=Path("/no/such/file"))), "cannot read"),
        (EtcdSettings(("https://127.0.0.1:2379",), tls=TlsSettings(cert=Path("/a"))), "both"),
    ],
)
def test_settings_that_cannot_work_or_tell_a_secret_are_refused(settings: EtcdSettings, says: str) -> None:
    async def story() -> None:
        with pytest.raises(Unusable, match=says):
            EtcdCoordinator(settings, CLOCK)

    run(story)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(EtcdSettings(("https://etcd:2379",), user="orb", password="secret"))
