"""Code of the release before works on each newer schema: what it reads is there, and what it writes is enough.

Masters are exchanged one by one. The first new one migrates, the others go on with the statements that they know: so
of what a migration finds nothing goes, nothing gets stricter, and whatever it adds to a row has a value by itself.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Inspector, inspect

from shared.adapters.sql.engine.migrate import HEAD, upgrade
from shared.adapters.sql.engine.sqlite import sqlite_engine

Schema = dict[str, dict[str, Any]]
HEADS = [f"{number:04}" for number in range(1, int(HEAD) + 1)]


def unique(inspector: Inspector, table: str) -> set[tuple[Any, ...]]:
    """What may be in a table once only: the targets of `ON CONFLICT`."""
    found = {tuple(index["column_names"]) for index in inspector.get_indexes(table) if index["unique"]}
    return found | {tuple(each["column_names"]) for each in inspector.get_unique_constraints(table)}


def schema(connection: Connection) -> Schema:
    """Every table: its columns with type, whether they may be null and their default, and its rules."""
    inspector = inspect(connection)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            },
            "key": tuple(inspector.get_pk_constraint(table)["constrained_columns"]),
            "unique": unique(inspector, table),
            "rules": sorted(str(check["sqltext"]) for check in inspector.get_check_constraints(table)),
            "foreign": [key["constrained_columns"] for key in inspector.get_foreign_keys(table)],
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def stops_old_code(before: Schema, after: Schema) -> list[str]:
    """What in the newer schema would stop code that knows the older one."""
    found = [f"the table {table} is gone" for table in before if table not in after]
    for table in before.keys() & after.keys():
        was, now = before[table], after[table]
        for name, column in was["columns"].items():
            if now["columns"].get(name) != column:
                found.append(f"{table}.{name} was {column} and is {now['columns'].get(name)}")
        for name in now["columns"].keys() - was["columns"].keys():
            _, nullable, default = now["columns"][name]
            if not nullable and default is None:
                found.append(f"{table}.{name} has to be said")
        found += [
            f"the {rule} of {table} differs" for rule in ("key", "unique", "rules", "foreign") if was[rule] != now[rule]
        ]
    return sorted(found)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> list[Schema]:
    """As each migration leaves it."""
    engine = sqlite_engine(tmp_path_factory.mktemp("heads") / "a.db")
    made = []
    for head in HEADS:
        with engine.begin() as connection:
            upgrade(connection, head)
            made.append(schema(connection))
    engine.dispose()
    return made


def test_no_migration_stops_code_that_knows_the_schema_before_it(schemas: list[Schema]) -> None:
    assert len(schemas) > 8
    found = {after: stops_old_code(*pair) for after, pair in zip(HEADS[1:], pairwise(schemas), strict=True)}
    assert {head: wrong for head, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE drains", "the table drains is gone"),
        ("ALTER TABLE audit_log RENAME COLUMN actor TO who", "audit_log.actor was"),
        ("ALTER TABLE drains ADD COLUMN until_ms BIGINT NOT NULL DEFAULT 0", None),
        ("CREATE UNIQUE INDEX once ON audit_log (actor)", "the unique of audit_log differs"),
    ],
)
def test_a_change_that_would_stop_it_is_noticed(tmp_path: Path, change: str, said: str | None) -> None:
    engine = sqlite_engine(tmp_path / "a.db")
    with engine.begin() as connection:
        upgrade(connection)
        before = schema(connection)
        connection.exec_driver_sql(change)
        wrong = stops_old_code(before, schema(connection))
    engine.dispose()
    assert [said] == [each[: len(said)] for each in wrong[:1]] if said else wrong == []
