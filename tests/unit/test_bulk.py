"""Rows reach the driver in the order and style of its dialect."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import asyncpg, psycopg
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import StaticPool

from shared.adapters.sql.engine.bulk import Bulk

INSERT = Bulk(
    "INSERT INTO t (a, b, c) VALUES (:a, :b, :a) ON CONFLICT (a) DO UPDATE SET b = :b, c = t.c + :a", ("b", "a")
)


class Recorded:
    """What a connection of some dialect would be sent."""

    def __init__(self, dialect: postgresql.base.PGDialect) -> None:
        self.dialect = dialect
        self.sent: list[tuple[str, Any]] = []

    def exec_driver_sql(self, statement: str, parameters: Any) -> None:
        self.sent.append((statement, parameters))


def test_values_may_stand_in_another_order_and_be_used_twice() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL, c INTEGER)")
        INSERT.run(connection, [])
        INSERT.run(connection, [("x", 1), ("y", 2), ("z", 1)])
        assert connection.exec_driver_sql("SELECT * FROM t ORDER BY a").fetchall() == [(1, "z", 2), (2, "y", 2)]
        with pytest.raises(IntegrityError):
            INSERT.run(connection, [(None, 5)])
    engine.dispose()


@pytest.mark.parametrize(
    ("dialect", "placeholder", "row"),
    [
        (psycopg.dialect, "%(a)s", {"b": "x", "a": 1}),
        (asyncpg.dialect, "$", (1, "x")),
    ],
)
def test_the_same_statement_serves_other_dialects(
    dialect: Callable[[], postgresql.base.PGDialect], placeholder: str, row: object
) -> None:
    connection = Recorded(dialect())
    INSERT.run(connection, [("x", 1)])  # type: ignore[arg-type]  # stands for a connection
    ((statement, parameters),) = connection.sent
    assert placeholder in statement
    assert ":a" not in statement
    assert parameters == [row]
