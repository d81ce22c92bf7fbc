"""A backup of any earlier schema can be restored: its tables are prepared before they are migrated."""

from pathlib import Path

import pytest

from shared.adapters.sql.admin.load import begin_anew, place_commands
from shared.adapters.sql.engine.migrate import current_schema, upgrade
from shared.adapters.sql.engine.sqlite import sqlite_engine
from tests.support.later_release import revisions


@pytest.mark.parametrize("schema", revisions())
def test_restored_tables_of_every_schema_can_begin_anew(tmp_path: Path, schema: str) -> None:
    engine = sqlite_engine(tmp_path / "a.db")
    with engine.begin() as connection:
        upgrade(connection, schema)
        begin_anew(connection)
        place_commands(connection, {(0, "c-1"): 7})
        upgrade(connection)
        assert current_schema(connection) == revisions()[-1]
    engine.dispose()
