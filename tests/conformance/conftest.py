"""What the simulated cluster's tests share."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from shared.adapters.sql.engine import chunks
from shared.domain.frontier import command_progress
from tests.support.simulation.cluster import Cluster, Site
from tests.support.simulation.manual_worker import ManualWorker, Start
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Owners under test log what they should; a model of thousands of faults would drown in it."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take several chunks of the few URLs there are, the same ones in every run of a test."""
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 2)
    monkeypatch.setattr(command_progress, "HOSTS_A_CHUNK", 2)
    monkeypatch.setattr(chunks, "CHUNK_S", 3600.0)


@pytest.fixture(scope="session")
def database() -> Database:
    """One database in memory; a `Cluster` empties it."""
    return Database()


@pytest.fixture
def start(database: Database) -> Iterator[Start]:
    """`start(n)`: an owner and a crawl of n seeds on one host, no worker but the hand."""
    opened: list[Cluster] = []

    def begin(n: int = 1, **more: Any) -> tuple[Cluster, ManualWorker]:
        site = Site(tuple(Node(0, Kind.PAGE) for _ in range(n)), seeds=tuple(range(n)), **more)
        cluster = Cluster(database, site)
        opened.append(cluster)
        cluster.start_owner()
        cluster.world.run_for(0.2)
        cluster.create_crawl()
        cluster.world.run_for(0.2)
        return cluster, ManualWorker(cluster)

    yield begin
    for cluster in opened:
        cluster.close()
