"""A class for SELECTs that run with or without SQLAlchemy.

- Masters run a query on a connection of SQLAlchemy.
- Commands that read a crawl's folder run the same query on a connection of Python's `sqlite3`. These commands do not
  import SQLAlchemy, because the import would take longer than all their reads.
"""

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection, TextClause

    ReadConnection = Connection | sqlite3.Connection


class Query:
    """A SELECT with parameters such as `:crawl_id`. A row has the columns as attributes, with the driver's types.

    A selected expression without an alias has no attribute, only its index in the row.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql

    def __repr__(self) -> str:
        return f"<Query {self.sql[:60]}>"

    def rows(self, connection: "ReadConnection", /, **values: Any) -> Sequence[Any]:
        """Run the query with `values` as its parameters, and return all its rows."""
        if isinstance(connection, sqlite3.Connection):
            cursor = connection.execute(self.sql, values)
            return list(map(named_row(tuple(column[0] for column in cursor.description)), cursor))
        return connection.execute(self.clause, values).all()

    def first(self, connection: "ReadConnection", /, **values: Any) -> Any | None:
        """Run the query with `values` as its parameters. Return its first row, or None if there is none."""
        return next(iter(self.rows(connection, **values)), None)

    @cached_property
    def clause(self) -> "TextClause":
        """The query as an SQLAlchemy clause. SQLAlchemy is imported at the first use."""
        from sqlalchemy import text

        return text(self.sql)


@lru_cache(256)
def named_row(columns: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return the function that makes a row with these columns from the driver's tuple."""
    kind: Any = namedtuple("kind", columns, rename=True)  # type: ignore[misc]  # columns are data
    made: Callable[[Any], Any] = kind._make
    return made
