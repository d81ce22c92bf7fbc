"""Who is told to stop before it is up stops: what it waits for may never come."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.runtime.supervise import dying_with
from shared.settings import ClusterWorkerSettings
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.processes.orb_command import ROOT, command_line
from workers.main import StopRequest, run


@pytest.fixture
def unused() -> Iterator[str]:
    """An address that refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*taken.getsockname())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_master_that_waits_for_an_engine_ends_when_it_is_told_to(unused: str, number: signal.Signals) -> None:
    line = command_line(
        "master", "--id", "m1", "--etcd", f"http://{unused}", "--nats", f"nats://{unused}",
        "--database", f"postgresql://orb@{unused}/orb",
    )  # fmt: skip
    master = subprocess.Popen([*dying_with(os.getpid()), *line], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert master.stderr is not None
        assert any('"master_start.delayed"' in said for said in master.stderr)
        master.send_signal(number)
        _, rest = master.communicate(timeout=30)
        assert master.returncode == 0, rest
        assert '"master.stopped"' in rest
        assert "Traceback" not in rest
    finally:
        master.kill()
        master.wait()


def test_worker_start_without_etcd_logs_the_delay_and_ends_when_told_to(
    tmp_path: Path, server: BrokerServer, unused: str
) -> None:
    settings = ClusterWorkerSettings(
        id="w1",
        dir=tmp_path,
        nats_url=server.endpoint.url,
        nats_user="worker",
        nats_password=server.login("worker").password,
        etcd=f"http://{unused}",
    )

    def delays() -> list[MutableMapping[str, Any]]:
        return [line for line in logs if line["event"] == "worker_start.delayed"]

    async def story() -> None:
        stop = StopRequest()
        async with asyncio.timeout(30):
            running = asyncio.create_task(run(settings, stop))
            while not delays():  # noqa: ASYNC110  a log line sets no event
                await asyncio.sleep(0.05)
            stop.terminate()
            assert await running == 0
        (delay,) = delays()
        assert (delay["log_level"], delay["engine"], delay["address"]) == ("warning", "etcd", f"http://{unused}")
        assert "refused" in delay["error"]

    with capture_logs() as logs:
        asyncio.run(story())
