"""SQL statements that run for many rows, which are given as tuples.

SQLAlchemy makes a dictionary of parameters per row, which costs more than the driver's own work
(tests/benchmarks/frontier_rows.py). Here a statement is compiled once per dialect, and the driver gets rows in the form
that it takes. Column types convert no values, so callers pass values that the driver accepts.

PostgreSQL takes many rows in one statement, as one array per column. That costs less than a statement per row. COPY of
the new rows of a large batch costs even less.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Table, TextClause, text

from shared.adapters.sql.engine.query import named_row
from shared.domain.errors import Permanent

Row = tuple[Any, ...]

# With an array PostgreSQL's planner uses the primary key, even if its statistics are old.
AMONG: Final = {"sqlite": "fingerprint IN ({})", "postgresql": "fingerprint = ANY(ARRAY({}))"}
"""For each dialect: the SQL condition that a row's fingerprint is in the result of the subquery `{}`."""

COPIED_FROM: Final = 256
"""From this number of new rows on, COPY is faster than arrays on PostgreSQL (docs/benchmarks.md)."""

_Shape = Callable[[Sequence[Row]], Sequence[Any]]


class Bulk:
    """A statement that runs once for each row. `names`: its parameters, in the order of the values in a row."""

    def __init__(self, statement: str, names: Sequence[str]) -> None:
        self._statement = text(statement)
        self._names = tuple(names)
        self._compiled: dict[str, tuple[str, _Shape]] = {}

    def __repr__(self) -> str:
        return f"<Bulk {self._statement.text[:40]!r}>"

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Run the statement once for each row. Do nothing if there is no row."""
        if not rows:
            return
        statement, shaped = self._of(connection)
        connection.exec_driver_sql(statement, shaped(rows))

    def returned(self, connection: Connection, rows: Sequence[Row]) -> list[Any]:
        """Run the statement once for each of `rows`, and return all rows that its RETURNING clause returns.

        Call this method only on SQLite. A returned row has its columns as attributes.
        """
        if not rows:
            return []
        statement, shaped = self._of(connection)
        first, *others = shaped(rows)
        # Only the first run goes through SQLAlchemy, so that its listeners see the statement. The other runs use the
        # driver alone, because SQLAlchemy adds ten times the driver's cost.
        result = connection.exec_driver_sql(statement, first)
        row_of = named_row(tuple(result.keys()))
        results = [row_of(row) for row in result]
        with closing(connection.connection.cursor()) as cursor:
            for other in others:
                results += map(row_of, cursor.execute(statement, other))
        return results

    def _of(self, connection: Connection) -> tuple[str, _Shape]:
        dialect = f"{connection.dialect.name}+{connection.dialect.driver}"
        if dialect not in self._compiled:
            self._compiled[dialect] = self._compile(connection)
        return self._compiled[dialect]

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
    """A statement that PostgreSQL runs once for many rows.

    - `statement`: the SQL text. In this text, `{rows}` stands for a relation `v` that contains the rows.
    - `columns`: the columns of `v`, in the order of the values in a row. After these columns, `v` has a column `i`,
      which numbers the rows from 1.
    - `table`: a table with columns of the same names. The columns of `v` get the types of these columns.

    No two rows may change the same stored row, because all are written at once.
    """

    def __init__(self, statement: str, table: Table, columns: Sequence[str]) -> None:
        self._text, self._table, self._columns = statement, table, tuple(columns)

    def __repr__(self) -> str:
        return f"<Arrays {self._text[:40]!r}>"

    @cached_property
    def _statement(self) -> TextClause:
        """The SQL text, in which an `unnest` of arrays replaces `{rows}`. It is built at the first use."""
        from sqlalchemy.dialects import postgresql

        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # the library declares no types
        types = {name: self._table.c[name].type.compile(dialect) for name in self._columns}
        arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in types.items())
        names = ", ".join(f'"{name}"' for name in self._columns)
        return text(self._text.format(rows=f"unnest({arrays}) WITH ORDINALITY AS v ({names}, i)"))

    def run(self, connection: Connection, rows: Sequence[Row]) -> CursorResult[Any]:
        """Run the statement once for all rows, and return its result. There must be at least one row."""
        columns = map(list, zip(*rows, strict=True))
        return connection.execute(self._statement, dict(zip(self._columns, columns, strict=True)))


def copied(connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert rows into `table` on PostgreSQL by COPY. This must not be the first statement of a transaction.

    SQLAlchemy begins a transaction at the first statement that it executes itself. It does not execute the COPY, so any
    other statement must come before.

    Each row has the values of `columns`. A row that exists already raises the server's error 23505, as with any INSERT.
    Raise Permanent if a value does not fit its column.
    """
    driver: Any = connection.connection.dbapi_connection
    try:
        driver.run_async(lambda raw: raw.copy_records_to_table(table, records=rows, columns=list(columns)))
    except (OverflowError, ValueError) as error:
        raise Permanent(f"a value does not fit its column: {error}") from error


class Each:
    """A statement for many rows, which runs once per row on SQLite, and once for all rows on PostgreSQL.

    - `names`: the columns of `table` whose values a row has, in order.
    - `sqlite`: the SQL text for SQLite. It has the values of a row as parameters, such as `:url` for the column `url`.
    - `postgresql`: the SQL text for PostgreSQL. In this text, `{rows}` stands for a relation `v` with all rows.

    No two of the rows may have the same key.
    """

    def __init__(self, table: Table, names: Sequence[str], *, sqlite: str, postgresql: str) -> None:
        self._one = Bulk(sqlite, names)
        self.all = Arrays(postgresql, table, names)

    def __repr__(self) -> str:
        return f"<Each {self._one!r}>"

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Run the statement for all rows. Do nothing if there is no row."""
        if not rows:
            return
        if connection.dialect.name == "postgresql":
            self.all.run(connection, rows).close()
        else:
            self._one.run(connection, rows)


class New(Each):
    """An INSERT of rows that certainly do not exist yet. A large batch uses COPY on PostgreSQL.

    The caller must ensure that the rows are missing, and that no other process inserts them.
    """

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        each = inserting(table, columns)
        self._one, self.all = each._one, each.all
        self._table, self.columns = str(table.name), tuple(columns)

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert all rows. On PostgreSQL, use COPY for COPIED_FROM rows or more. Do nothing if there is no row."""
        if connection.dialect.name == "postgresql" and len(rows) >= COPIED_FROM:
            copied(connection, self._table, self.columns, rows)
        else:
            super().run(connection, rows)


def inserting(table: Table, names: Sequence[str], conflict: str = "") -> Each:
    """Return an INSERT of rows with the values of the columns `names`. `conflict`: an ON CONFLICT clause, or ""."""
    columns = ", ".join(f'"{name}"' for name in names)
    into = f"INSERT INTO {table.name} ({columns})"
    values, selected = ", ".join(f":{name}" for name in names), ", ".join(f'v."{name}"' for name in names)
    return Each(
        table,
        names,
        sqlite=f"{into} VALUES ({values}) {conflict}",
        postgresql=f"{into} SELECT {selected} FROM {{rows}} ORDER BY v.i {conflict}",
    )


def updating(table: Table, keys: Sequence[str], names: Sequence[str], sets: str) -> Each:
    """Return an UPDATE statement for `table`, which changes one stored row for each input row.

    - `keys`: the columns that select the stored row.
    - `names`: the columns with new values. An input row has the values of `names`, then the values of `keys`.
    - `sets`: the SET clause without the word SET. In this text, `{v}n` stands for the input value of a column `n`, and
      `{t}.n` for its stored value. For example, `n = {t}.n + {v}n` adds the input value to the stored value.
    """
    name = table.name

    def assignments(value: str) -> str:
        return f"SET {sets.format(t=name, v=value)}"

    def where(value: str) -> str:
        return "WHERE " + " AND ".join(f"{name}.{key} = {value}{key}" for key in keys)

    return Each(
        table,
        (*names, *keys),
        sqlite=f"UPDATE {name} {assignments(':')} {where(':')}",
        postgresql=f"UPDATE {name} {assignments('v.')} FROM {{rows}} {where('v.')}",
    )
