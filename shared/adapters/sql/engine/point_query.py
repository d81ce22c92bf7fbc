"""A SELECT of a few rows by their keys, for very frequent reads."""

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


class PointQuery:
    """A SELECT of a few rows by their keys. A row has the columns as attributes, with the driver's types.

    On SQLite it is compiled to text once, and the driver runs the text directly. To run it through SQLAlchemy would
    take five times as long as SQLite needs.
    """

    def __init__(self, statement: Select[Any]) -> None:
        self.statement = statement

    def __repr__(self) -> str:
        return f"<PointQuery of {', '.join(self.statement.selected_columns.keys())}>"

    def sqlite(self, keys: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Return the SQL text for SQLite's driver, and the values of `keys` in the order of its parameters."""
        text, names = self._compiled
        return text, [keys[name] for name in names]

    @cached_property
    def row(self) -> Callable[[Any], Any]:
        """The function that makes a row with named columns from the driver's tuple."""
        kind: Any = namedtuple("kind", self.statement.selected_columns.keys())  # type: ignore[misc]  # columns are data
        made: Callable[[Any], Any] = kind._make
        return made

    @cached_property
    def _compiled(self) -> tuple[str, tuple[str, ...]]:
        compiled = self.statement.compile(dialect=SQLiteDialect_pysqlite(paramstyle="qmark"))
        return str(compiled), tuple(compiled.positiontup or ())
