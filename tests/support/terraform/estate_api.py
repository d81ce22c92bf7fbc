"""Fixtures for tests of the provider: the real API over a database and a broker, and providers that use it."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from shared.domain.ops.access import Role
from tests.support.api.api_server import Served, served
from tests.support.engines.nats_server import BrokerServer
from tests.support.terraform.core import Failed, Plugin, Resource, plugin


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the API. No partition has an owner, so commands are accepted and not applied."""
    folder = tmp_path_factory.mktemp("api")
    broker = BrokerServer(folder / "broker")
    try:
        with served(folder, broker) as running:
            yield running
    finally:
        asyncio.run(broker.embedded.stop())


@pytest.fixture(scope="module")
def provider(api: Served, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """Start a provider with a key of the role that the test module names as ROLE, by default an operator's."""
    role = getattr(request.module, "ROLE", Role.OPERATOR)
    with plugin(tmp_path_factory.mktemp("plugin"), api.environ(role), retry_s=5) as running:
        yield running


def client_of(api: Served, role: Role) -> httpx.Client:
    """Return a client of the API with a key of this role."""
    return httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {api.keys[role]}"})


def refused(resource: Resource, **config: object) -> list[tuple[str, str]]:
    """Plan what must be refused. Return the path and the summary of each error."""
    with pytest.raises(Failed) as failed:
        resource.plan(**config)
    return [(each.path, each.summary) for each in failed.value.diagnostics]
