"""shared/adapters/sql/engine/sqlite_tables.sql has the statements that make the tables of a new SQLite file.

    .venv/bin/python -m tests.support.database.sqlite_tables

writes it anew from the metadata.
"""

from itertools import groupby
from typing import Any

from sqlalchemy import create_mock_engine

from shared.adapters.sql.engine.access_schema import metadata
from shared.adapters.sql.engine.migrate import END, TABLES_FILE


def script() -> str:
    """Return the statements for the metadata of today. The indexes of a table, which are a set, are sorted."""
    statements: list[str] = []

    def note(statement: Any, *_: Any, **__: Any) -> None:
        lines = str(statement.compile(dialect=engine.dialect)).strip().splitlines()
        statements.append("\n".join(line.rstrip() for line in lines if line.strip()))

    engine = create_mock_engine("sqlite://", note)
    metadata.create_all(engine, checkfirst=False)
    parts = groupby(statements, lambda statement: statement.startswith("CREATE TABLE"))
    return END.join([each for tables, part in parts for each in (part if tables else sorted(part))]) + "\n"


if __name__ == "__main__":
    TABLES_FILE.write_text(script(), "utf-8")
