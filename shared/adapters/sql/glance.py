"""Statements that find a few rows by their keys, for reads that are asked for all the time."""

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


class Glance:
    """One statement; its rows have its columns as attributes, of the types that the driver gives.

    SQLite's driver is given it as text, compiled once: the way through SQLAlchemy takes five times what SQLite does.
    """

    def __init__(self, statement: Select[Any]) -> None:
        self.statement = statement

    def __repr__(self) -> str:
        return f"<Glance of {', '.join(self.statement.selected_columns.keys())}>"

    def sqlite(self, keys: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The text for SQLite and its parameters."""
        text, names = self._compiled
        return text, [keys[name] for name in names]

    @cached_property
    def row(self) -> Callable[[Any], Any]:
        """Makes a row of the driver's tuple."""
        kind: Any = namedtuple("kind", self.statement.selected_columns.keys())  # type: ignore[misc]  # columns are data
        made: Callable[[Any], Any] = kind._make
        return made

    @cached_property
    def _compiled(self) -> tuple[str, tuple[str, ...]]:
        compiled = self.statement.compile(dialect=SQLiteDialect_pysqlite(paramstyle="qmark"))
        return str(compiled), tuple(compiled.positiontup or ())
