"""The real API over a database and a broker, as the provider's tests use it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.api.api_server import Served, served
from tests.support.engines.nats_server import BrokerServer


@contextmanager
def estate_api(folder: Path) -> Iterator[Served]:
    """Serve the API until the block ends. No partition has an owner, so commands are accepted and not applied."""
    broker = BrokerServer(folder / "broker")
    try:
        with served(folder, broker) as running:
            yield running
    finally:
        asyncio.run(broker.embedded.stop())
