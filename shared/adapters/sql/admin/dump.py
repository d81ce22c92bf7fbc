"""Reads whole tables as plain rows from one database and writes them to another, each SQLite or PostgreSQL.

A table is read in lists of rows by primary key, so memory is bounded by one list. A row is a tuple of ints, texts,
bytes, booleans and None, in the order of its columns.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Table, literal, select, text, tuple_

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.access_schema import metadata
from shared.adapters.sql.engine.bulk import copied
from shared.adapters.sql.engine.snapshot import DatabaseSnapshot
from shared.adapters.sql.frontier.apply import storable

Rows = Sequence[tuple[Any, ...]]

TABLES: Final[Mapping[str, Table]] = {
    str(table.name): table
    for table in (
        schema.cluster,  # first: its row locks the database for the process that fills it
        *sorted(
            (table for table in metadata.tables.values() if table not in (schema.cluster, schema.report_holds)),
            key=lambda table: table.name,
        ),
    )
}
"""The tables of a cluster, in the order in which a copy writes them. `report_holds` is only for a running cluster."""

_PAGE: Final = 5_000
_LARGE_ROWS: Final = {
    "cluster": 1,
    "crawl_revisions": 20,
    "config_revisions": 20,
    "dead_letters": 8,
    "audit_log": 100,
    "idempotency": 100,
    "items": 100,
    "seed_sets": 4,
    "seed_set_commands": 4,
}
"""For each table whose rows may be large: how many rows the function `pages` yields at once, at most.

For all other tables this number is _PAGE."""

_NUMBERED: Final = {
    "crawls": "crawl_id",
    "dead_letters": "id",
    "audit_log": "id",
    "exclusions": "id",
    "schedules": "schedule_id",
    "host_policy_commands": "revision",
    "seed_sets": "set_id",
    "seed_set_commands": "revision",
}
"""The tables whose ids the database generates, each with the column of its ids. An id is never generated twice."""


def columns_of(table: str) -> tuple[str, ...]:
    """Return the names of the table's columns, in the order of the values of a row."""
    return tuple(map(str, TABLES[table].columns.keys()))


async def pages(snapshot: DatabaseSnapshot, table: str) -> AsyncIterator[Rows]:
    """Yield the table's rows in lists of bounded length, ordered by primary key."""
    after: tuple[Any, ...] | None = None
    known = TABLES[table]
    keys = [known.columns.keys().index(column.key) for column in known.primary_key.columns]
    max_count = _LARGE_ROWS.get(table, _PAGE)
    while True:
        rows = await snapshot.read(partial(_page, table=known, after=after, max_count=max_count))
        if rows:
            yield rows
            after = tuple(rows[-1][key] for key in keys)
        if len(rows) < max_count:
            return


def numbers(connection: Connection) -> dict[str, int]:
    """Return the greatest id that the database has generated so far for each table of _NUMBERED. 0: none yet."""
    given = {}
    for table, column in _NUMBERED.items():
        if connection.dialect.name == "postgresql":
            sequence = connection.execute(text(f"SELECT pg_get_serial_sequence('{table}', '{column}')")).scalar_one()
            last = connection.execute(text(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}"))
        else:
            last = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = :table"), {"table": table})
        given[table] = int(last.scalar() or 0)
    return given


def give_beyond(connection: Connection, given: Mapping[str, int]) -> None:
    """Set the target database to generate only ids that the source database has never generated.

    - `connection`: a connection to the target, the new copy of the source.
    - `given`: the greatest generated id of each table of the source (the result of `numbers`). If `given` has 7 for a
      table, the next generated id in the target is 8. A table with 0 is not changed.
    """
    for table, number in given.items():
        if not number:
            continue
        if connection.dialect.name == "postgresql":
            statement = f"SELECT setval(pg_get_serial_sequence('{table}', '{_NUMBERED[table]}'), :number)"
            connection.execute(text(statement), {"number": number})
        else:
            keys = {"table": table, "number": number}
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :table"), keys)
            connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :number)"), keys)


def put(connection: Connection, table: str, columns: Sequence[str], rows: Rows) -> None:
    """Insert rows into a table. Each row has the values of `columns`, in this order. On PostgreSQL this is a COPY."""
    if connection.dialect.name == "postgresql":
        copied(connection, table, columns, [tuple(map(storable, row)) for row in rows])
        return
    named = ", ".join(f'"{column}"' for column in columns)
    places = ", ".join("?" * len(columns))
    connection.exec_driver_sql(f"INSERT INTO {table} ({named}) VALUES ({places})", [tuple(row) for row in rows])


def count(connection: Connection, table: str) -> int:
    """Return the number of the table's rows."""
    return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def version(connection: Connection) -> tuple[tuple[int, ...], ...]:
    """Return numbers that show if masters write to the database during a copy. Call this before and after the copy.

    If the two results are equal, the copy is complete. If they differ, a master wrote something during the copy.

    Some writes need not change the numbers, because a copy is correct without these writes:

    - Retention and the cleanup after a deleted crawl. Masters on the copy delete the same rows again.
    - The record of the last use of a key. The copy has an earlier time.
    - A leader's term and epoch, a new shared secret, and the mark that a command was published. Masters on the copy
      write these again, and owners apply each command once.
    """
    numbers = (
        "SELECT partition, owner_term, version FROM partitions ORDER BY partition",
        "SELECT coalesce(sum(version), 0), coalesce(sum(active_ms), 0), coalesce(max(change), 0), count(*) FROM crawls",
        "SELECT coalesce(sum(ms), 0) FROM pool_clocks",
        "SELECT coalesce(sum(version), 0) FROM item_writer",
        "SELECT coalesce(max(id), 0) FROM audit_log",
        "SELECT coalesce(sum(last_ms), 0) FROM schedules",
    )
    return tuple(tuple(map(int, row)) for query in numbers for row in connection.execute(text(query)))


def _page(connection: Connection, table: Table, after: tuple[Any, ...] | None, max_count: int) -> list[tuple[Any, ...]]:
    keys = list(table.primary_key.columns)
    query = select(table).order_by(*keys).limit(max_count)
    if after is not None:
        values = (literal(value, key.type) for value, key in zip(after, keys, strict=True))
        query = query.where(tuple_(*keys) > tuple_(*values))
    return [tuple(row) for row in connection.execute(query)]
