"""Keys from before 0013 get names that are parts of a path, and unique ones among those that are not revoked."""

from pathlib import Path

from shared.adapters.sql.engine.migrate import upgrade
from shared.adapters.sql.engine.sqlite import sqlite_engine

LONG = "n" * 70
KEYS = [  # id, name, spec, whether it is revoked, expected name
    ("a1", "first admin", None, False, "first-admin-00000000000000a1"),
    ("a2", "first-admin", None, False, "first-admin-00000000000000a2"),
    ("a3", "first-admin", '{"role": "admin"}', False, "first-admin"),
    ("a4", "Zoë's \U0001f577", None, False, "zo-s"),
    ("a5", "\U0001f577/..", None, False, "key-00000000000000a5"),
    ("a6", LONG, None, False, "n" * 63),
    ("a7", LONG + "m", None, False, "n" * 46 + "-00000000000000a7"),
    ("a8", "first admin", None, True, "first admin"),
]


def test_names_of_older_keys_are_made_unique_parts_of_a_path(tmp_path: Path) -> None:
    engine = sqlite_engine(tmp_path / "a.db")
    insert = (
        "INSERT INTO api_keys (key_id, name, role, digest, created_at_ms, created_by, spec, revoked_at_ms)"
        " VALUES (?, ?, 'admin', x'00', 1, 'test', ?, ?)"
    )
    with engine.begin() as connection:
        upgrade(connection, "0011_refresh")
        connection.exec_driver_sql("CREATE TABLE declared_keys (name TEXT)")  # of a development version
        for key_id, name, spec, revoked, _ in KEYS:
            connection.exec_driver_sql(insert, (f"{key_id:0>16}", name, spec, 2 if revoked else None))
        upgrade(connection)
        rows = connection.exec_driver_sql("SELECT key_id, name FROM api_keys ORDER BY key_id").fetchall()
        tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name = 'declared_keys'").fetchall()
    engine.dispose()
    assert [(key_id[-2:], name) for key_id, name in rows] == [(key_id, name) for key_id, *_, name in KEYS]
    assert tables == []
