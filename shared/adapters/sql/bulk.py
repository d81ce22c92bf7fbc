"""A statement for many rows, given as tuples.

SQLAlchemy makes a dictionary of parameters per row before the driver sees them, which costs more than the driver's work
itself (tests/benchmarks/frontier_rows.py). Here a statement is compiled once per dialect, and rows go to the driver in
its own style. Values are therefore what the driver takes: no types of columns convert them.

PostgreSQL takes many rows in one statement as one array a column, which costs it less than a statement a row, and new
rows of a large batch by COPY, which costs it less still.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Table, text
from sqlalchemy.dialects import postgresql

from shared.domain.errors import Permanent

Row = tuple[Any, ...]

AMONG: Final = {"sqlite": "fingerprint IN ({})", "postgresql": "fingerprint = ANY(ARRAY({}))"}
"""URLs of a host that a query of fingerprints finds, by dialect: an array on PostgreSQL, where only the primary key can
then find the rows, whatever it believes of a host's size."""

COPIED_FROM: Final = 256
"""New rows from which COPY costs PostgreSQL less than arrays (docs/benchmarks.md)."""

_Shape = Callable[[Sequence[Row]], Sequence[Any]]


class Bulk:
    """`statement` with named parameters, run for rows whose values stand in the order of `names`."""

    def __init__(self, statement: str, names: Sequence[str]) -> None:
        self._statement = text(statement)
        self._names = tuple(names)
        self._compiled: dict[str, tuple[str, _Shape]] = {}

    def __repr__(self) -> str:
        return f"<Bulk {self._statement.text[:40]!r}>"

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Run it for each row; nothing is sent when there is none."""
        if not rows:
            return
        dialect = f"{connection.dialect.name}+{connection.dialect.driver}"
        if dialect not in self._compiled:
            self._compiled[dialect] = self._compile(connection)
        statement, shaped = self._compiled[dialect]
        connection.exec_driver_sql(statement, shaped(rows))

    def _compile(self, connection: Connection) -> tuple[str, _Shape]:
        compiled = self._statement.compile(dialect=connection.dialect)
        order = compiled.positiontup
        if order is None:
            names = self._names
            return compiled.string, lambda rows: [dict(zip(names, row, strict=True)) for row in rows]
        if tuple(order) == self._names:
            return compiled.string, list
        places = itemgetter(*(self._names.index(name) for name in order))
        return compiled.string, lambda rows: [places(row) for row in rows]


class Arrays:
    """`statement` on PostgreSQL, where `{rows}` is a relation of all rows: it has `columns` of `table`, and `i` from 1.

    No two rows may change the same one: they are all written at once.
    """

    def __init__(self, statement: str, table: Table, columns: Sequence[str]) -> None:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # its library says no types
        arrays = ", ".join(f"CAST(:{name} AS {table.c[name].type.compile(dialect)}[])" for name in columns)
        names = ", ".join(f'"{name}"' for name in columns)
        self._statement = text(statement.format(rows=f"unnest({arrays}) WITH ORDINALITY AS v ({names}, i)"))
        self._columns = tuple(columns)

    def __repr__(self) -> str:
        return f"<Arrays {self._statement.text[:40]!r}>"

    def run(self, connection: Connection, rows: Sequence[Row]) -> CursorResult[Any]:
        """Run it once for all rows, of which there must be one."""
        columns = map(list, zip(*rows, strict=True))
        return connection.execute(self._statement, dict(zip(self._columns, columns, strict=True)))


def copied(connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert rows on PostgreSQL, as fast as it takes them, in a transaction that has begun by a statement.

    A row that is there already is an error of the server's (23505), as with any INSERT; a number that its column cannot
    hold is Permanent.
    """
    driver: Any = connection.connection.dbapi_connection
    try:
        driver.run_async(lambda raw: raw.copy_records_to_table(table, records=rows, columns=list(columns)))
    except (OverflowError, ValueError) as error:
        raise Permanent(f"a value does not fit its column: {error}") from error


class Each:
    """A statement for many rows, each of which it finds or makes by its key; no two rows have the same one.

    SQLite runs `sqlite` once a row. PostgreSQL runs `postgresql`, as `Arrays` would have it, once for all.
    """

    def __init__(self, table: Table, names: Sequence[str], *, sqlite: str, postgresql: str) -> None:
        self._one = Bulk(sqlite, names)
        self.all = Arrays(postgresql, table, names)

    def __repr__(self) -> str:
        return f"<Each {self._one!r}>"

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Run it for all rows; nothing is sent when there is none."""
        if not rows:
            return
        if connection.dialect.name == "postgresql":
            self.all.run(connection, rows).close()
        else:
            self._one.run(connection, rows)


class New(Each):
    """An insert of rows that are not there: the caller has looked, and nobody else inserts such."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        each = inserting(table, columns)
        self._one, self.all = each._one, each.all
        self._table, self.columns = str(table.name), tuple(columns)

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert them all; nothing is sent when there is none."""
        if connection.dialect.name == "postgresql" and len(rows) >= COPIED_FROM:
            copied(connection, self._table, self.columns, rows)
        else:
            super().run(connection, rows)


def inserting(table: Table, names: Sequence[str], conflict: str = "") -> Each:
    """An insert of these columns; `conflict` is its ON CONFLICT clause."""
    columns = ", ".join(f'"{name}"' for name in names)
    into = f"INSERT INTO {table.name} ({columns})"
    values, found = ", ".join(f":{name}" for name in names), ", ".join(f'v."{name}"' for name in names)
    return Each(
        table,
        names,
        sqlite=f"{into} VALUES ({values}) {conflict}",
        postgresql=f"{into} SELECT {found} FROM {{rows}} ORDER BY v.i {conflict}",
    )


def updating(table: Table, keys: Sequence[str], names: Sequence[str], sets: str) -> Each:
    """An update of the rows with these keys. In `sets`, `{t}.` stands before what a row has and `{v}` before a value.

    A row is the values of `names`, then the keys.
    """
    name = table.name

    def said(value: str) -> str:
        return f"SET {sets.format(t=name, v=value)}"

    def where(value: str) -> str:
        return "WHERE " + " AND ".join(f"{name}.{key} = {value}{key}" for key in keys)

    return Each(
        table,
        (*names, *keys),
        sqlite=f"UPDATE {name} {said(':')} {where(':')}",
        postgresql=f"UPDATE {name} {said('v.')} FROM {{rows}} {where('v.')}",
    )
