"""What the simulated cluster's tests share."""

from collections.abc import Iterator

import pytest
import structlog

from tests.support.simstore import Database


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Owners under test log what they should; a model of thousands of faults would drown in it."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def database() -> Database:
    """One database in memory; a `Cluster` empties it."""
    return Database()
