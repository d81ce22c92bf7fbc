"""The SQL adapters bind functions of a connection. Each has the parameters, names included, of its port's method."""

import inspect
from typing import Any

import pytest

from shared.adapters.sql.admin.retention import SqlRetained
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.frontier.store import SqlStore
from shared.ports.catalog import Catalog
from shared.ports.desired import Desired
from shared.ports.items import ItemTable
from shared.ports.overview import Overview
from shared.ports.retained import Retained
from shared.ports.store import Store

PORTS = [
    (Store, SqlStore),
    (Catalog, SqlCatalog),
    (Desired, SqlDesired),
    (ItemTable, SqlItems),
    (Overview, SqlOverview),
    (Retained, SqlRetained),
]


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    """Return name, kind and default of the parameters behind the first (self, or the connection)."""
    return [(p.name, p.kind, p.default) for p in list(inspect.signature(method).parameters.values())[1:]]


@pytest.mark.parametrize(("port", "adapter"), PORTS)
def test_sql_adapter_takes_the_parameters_of_its_port(port: type, adapter: type) -> None:
    methods = [name for name, member in vars(port).items() if inspect.isfunction(member) and not name.startswith("_")]
    assert methods
    for name in methods:
        assert parameters(getattr(adapter, name)) == parameters(getattr(port, name)), name
