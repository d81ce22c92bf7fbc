"""How the engine finds the rows of every statement that a frontier's transactions send, as it says itself."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, event, text

from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.ids import CrawlId, Term
from tests.support.api.standby_master import STEPS, Standby
from tests.support.database.scaled_frontier import PARTITIONS, GrowingFrontier

_SQLITE: Final = re.compile(
    r"(SCAN|SEARCH) (\w+)(?: USING ((?:COVERING )?INDEX \w+|PRIMARY KEY|INTEGER PRIMARY KEY))?(.*)"
)
_BY_INDEX: Final = {"Index Scan", "Index Only Scan", "Bitmap Index Scan"}
_ALIASES: Final = {"u": "urls", "h": "hosts", "q": "queues", "l": "leases", "f": "fetches"}
_OF_CRAWLS: Final = {"urls", "fetches", "queues"}
_SMALL: Final = {"report_holds"}
_WITHOUT_TABLE: Final = ("CONSTANT", "k")
"""What SQLite scans that is no table of a frontier: nothing, and the keys of a batch."""


@dataclass(frozen=True, slots=True)
class Access:
    """A table, and the conditions by which an index finds its rows; None: every row is looked at."""

    table: str
    index: str
    condition: str | None

    @property
    def one_by_one(self) -> bool:
        """Whether the number of rows looked at grows with the table, or with all that is known of a crawl."""
        if self.condition is None:
            return self.table not in _SMALL
        one_host = "host_id" in self.condition
        return not (
            one_host or self.table not in _OF_CRAWLS or (self.table == "queues" and "partition" in self.condition)
        )


@contextmanager
def recorded() -> Iterator[dict[str, Any]]:
    """The statements that are sent meanwhile, by whatever engine, with one set of parameters of each."""
    sent: dict[str, Any] = {}

    def listen(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if statement.lstrip().split(" ", 1)[0] in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}:
            sent.setdefault(statement, parameters[0] if many else parameters)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


async def worked(store: SqlStore, crawl_id: CrawlId, urls: int) -> None:
    """Fill a frontier, and do everything with it that an owner does for ever: ingest, claim, sweep, lease, settle."""
    growing = GrowingFrontier(store, crawl_id, hosts=4)
    await growing.claim(Term(1))
    which = 0
    while growing.rows < urls:
        await growing.batch(which)
        which += 1
    standby = Standby(store, crawl_id, shards=8)
    await standby.claim(Term(2))
    for _ in range(2):
        standby.turn()
        for partition in range(PARTITIONS):
            for name in STEPS:
                await standby.step(partition, name)()


async def analyze(store: SqlStore) -> None:
    """Tell the engine how its tables are filled."""
    await store.executor.write(lambda c: c.execute(text("ANALYZE")).close())


async def accesses(store: SqlStore, statements: dict[str, Any]) -> dict[str, list[Access]]:
    """How each statement would find its rows, planned as an owner's transactions are."""

    def plans(connection: Connection) -> dict[str, list[Access]]:
        read = _sqlite if connection.dialect.name == "sqlite" else _postgresql
        return {statement: read(connection, statement, given) for statement, given in statements.items()}

    return await store.executor.write(plans)


def _sqlite(connection: Connection, statement: str, parameters: Any) -> list[Access]:
    found = []
    for *_, detail in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
        told = _SQLITE.match(detail)
        if told is not None and told[2] not in _WITHOUT_TABLE:
            condition = told[4].strip() if told[1] == "SEARCH" else None
            found.append(Access(_ALIASES.get(told[2], told[2]), told[3] or "", condition or None))
    return found


def _postgresql(connection: Connection, statement: str, parameters: Any) -> list[Access]:
    told = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar()
    plan: Any = json.loads(told) if isinstance(told, str) else told
    return list(_nodes(plan[0]["Plan"]))


def _nodes(node: dict[str, Any], above: str = "") -> Iterator[Access]:
    kind, table = node["Node Type"], node.get("Relation Name", "")
    if kind in _BY_INDEX:
        yield Access(table or above, node["Index Name"], node.get("Index Cond"))
    elif kind == "Seq Scan":
        yield Access(table, "", None)
    for inner in node.get("Plans", ()):
        yield from _nodes(inner, table)
