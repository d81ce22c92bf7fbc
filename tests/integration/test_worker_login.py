"""A worker whose user, password or token is wrong ends with exit code 4 and one sentence that names the setting."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.adapters.nats import NatsUser
from tests.support.api.scripted_owner import settings_for
from tests.support.engines.nats_server import POOL, BrokerServer
from workers.main import StopRequest, run

PASSWORD = "s3cr3t-of-none"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    """A broker with a shared user of workers and one of the worker w2."""
    users = [NatsUser("worker", POOL), NatsUser("w2", POOL, "w2")]
    running = BrokerServer(tmp_path_factory.mktemp("login") / "broker", workers=users)
    yield running
    asyncio.run(running.embedded.stop())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"nats_password": PASSWORD}, "check nats_user and nats_password, or nats_token"),
        ({"nats_user": "none"}, "check nats_user and nats_password, or nats_token"),
        ({"nats_user": None, "nats_password": None, "nats_token": PASSWORD}, "check nats_user and nats_password"),
        ({"nats_user": None, "nats_password": None}, "check nats_user and nats_password, or nats_token"),
        ({"nats_password": None}, "nats_user and nats_password belong together: set both or neither"),
        ({"nats_token": PASSWORD}, "nats_user and nats_token exclude each other: set one of them"),
        ({"nats_user": "w2"}, "the broker permits no answers to w1: is nats_user that of another process?"),
    ],
)
def test_wrong_login_ends_worker_with_one_sentence(
    server: BrokerServer, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    given = {"nats_password": server.login("w2").password, **changes} if changes == {"nats_user": "w2"} else changes
    settings = settings_for(server, tmp_path, **given)
    with capture_logs() as logged:
        assert asyncio.run(asyncio.wait_for(run(settings, StopRequest()), 60)) == 4
    (line,) = [line for line in logged if line["event"] == "worker.failed"]
    assert sentence in line["error"]
    assert ";" not in line["error"].replace("; check", ""), "one sentence"
    assert PASSWORD not in repr(logged) + repr(settings)
