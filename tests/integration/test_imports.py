"""What each command and role imports, by name and number: at its start, half of a process's time is imports.

A library that a row must not have is imported where it is used. A number is a bound with some room: raise it for what a
process needs at every start, and for nothing else.
"""

import json
import os
import subprocess
import sys
from typing import Final

import pytest

from tests.support.processes.orb_command import ROOT

DRAWING: Final = {"rich", "pygments"}
EXPORTING: Final = {"pyarrow"}
HTTP: Final = {"fastapi", "pydantic", "starlette", "uvicorn", "httpx", "prometheus_client"}
CLUSTER: Final = {"grpc", "etcd3", "asyncpg"}
SQL: Final = {"sqlalchemy", "sqlite3"}
RARE: Final = {"alembic", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql", "yaml", "workers.parse.css"}
OPERATED: Final = {"shared.domain.ops.config", "shared.domain.schedules"}
"""What only a cluster has."""

UNREAD: Final = {"asyncio", "structlog", "ssl", "email", "nats", "uvloop", "pycurl", "api", "workers"}
"""What no command needs that reads a folder."""

ROWS: Final = {
    "help": ("import cli.main", 100, {"asyncio", "structlog", "msgspec", "logging", "ctypes", *SQL}),
    "crawl": (
        "import cli.local.crawl; from cli.local.fork_server import preload; preload(cli.local.crawl.IMPORTED)",
        740,
        DRAWING | EXPORTING | HTTP | CLUSTER | OPERATED | RARE,
    ),
    "show": (
        "import cli.data.show",
        265,
        DRAWING | EXPORTING | HTTP | CLUSTER | RARE | UNREAD | {"sqlalchemy", "shared.domain.frontier.store_model"},
    ),
    "show of a URL": (
        "import cli.data.show, cli.data.unknown_url, cli.data.warc",
        300,
        DRAWING | EXPORTING | HTTP | CLUSTER | RARE | UNREAD | {"sqlalchemy"},
    ),
    "worker": ("import workers.main", 500, DRAWING | EXPORTING | HTTP | CLUSTER | OPERATED | RARE | SQL | {"api"}),
    "cluster worker": (
        "import workers.main, workers.membership",
        595,
        DRAWING | EXPORTING | HTTP | RARE | SQL | {"api"},
    ),
    "up": (
        "import cli.local.up",
        470,
        DRAWING | EXPORTING | (HTTP - {"httpx"}) | CLUSTER | RARE | SQL | {"api", "workers"},
    ),
    "cluster": (
        "import cli.local.up; from cli.local.fork_server import preload; preload(cli.local.up.IMPORTED)",
        1390,
        DRAWING | EXPORTING | {"alembic", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql", "asyncpg"},
    ),
}
"""Code, the most modules, and modules that it must not import."""


@pytest.mark.parametrize("role", ROWS)
def test_role_imports_no_more_than_it_needs(role: str) -> None:
    code, max_count, never = ROWS[role]
    # As `orb` begins: these two would import rich.
    undrawn = {
        "help": (),
        "show": (),
        "show of a URL": (),
        "up": ("structlog", "httpx"),
        "cluster": ("structlog", "httpx"),
    }.get(role, ("structlog",))
    first = f"import cli.main; cli.main._load_undrawn(*{undrawn})"
    script = f"import sys, json; {first}; {code}; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONSAFEPATH": "1"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    imported = set(json.loads(ended.stdout))
    assert imported & never == set()
    assert len(imported) <= max_count, f"{len(imported)} modules"
