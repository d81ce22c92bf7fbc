"""Migrates a database to the newest schema with Alembic. A wheel has the migrations in shared/_migrations."""

import logging
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from shared.adapters.sql.engine.schema_version import refuse_unreleased
from shared.adapters.sql.engine.sqlite import mapped
from shared.domain.errors import Unusable

HEAD: Final = "0015_items_of_unchanged"
"""The newest migration; a test compares it with the scripts."""

TABLES_FILE: Final = Path(__file__).with_name("sqlite_tables.sql")
"""The path of an SQL file. Its statements create the tables and indexes of `access_schema.metadata` on SQLite.

`python -m tests.support.database.sqlite_tables` writes the file.
"""

END: Final = ";\n\n"
"""The separator of the statements in the file TABLES_FILE."""

_ROOT = Path(__file__).parents[4]
_LOCK = int.from_bytes(b"orbweave")  # the advisory lock that a migration takes on PostgreSQL


_VERSION = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""
"""The statement that creates Alembic's table `alembic_version`. The only row of this table holds the name of the newest
applied migration, such as `0013_key_names`."""


def migrations_folder() -> Path:
    """Return the folder of Alembic's migrations. Raise Unusable if it is missing.

    It is beside the packages in a clone, and inside `shared` in a wheel.
    """
    for folder in (_ROOT / "shared" / "_migrations", _ROOT / "alembic"):
        if (folder / "env.py").is_file():
            return folder
    raise Unusable(f"the database migrations are missing below {_ROOT}: install Orbweaver again")


def upgrade_sqlite(engine: Engine) -> None:
    """Apply the missing migrations to a SQLite file in one transaction. Raise Unusable if its schema is unknown."""
    try:
        with engine.begin() as connection:
            upgrade(connection)
    except SQLAlchemyError as error:
        raise mapped(error) from error


def upgrade(connection: Connection, to: str = HEAD) -> None:
    """Apply the missing migrations up to `to`, on this connection and in its transaction.

    If several processes call this at once, one applies the migrations and the others wait. A caller that will load a
    dump with an older schema passes the last migration of that schema as `to`. Raise Unusable if the present schema is
    unknown.
    """
    current = current_schema(connection)
    if current == to:
        return
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        current = current_schema(connection)
    elif current is None and to == HEAD and not inspect(connection).get_table_names():
        return _make(connection)
    if current != to:
        _migrate(connection, current, to)


def _make(connection: Connection) -> None:
    """Create the tables of an empty SQLite file, with the same result as the migrations. A test compares both.

    It imports neither Alembic nor its scripts, so a new crawl starts a third of a second sooner.
    """
    # The statements are stored as text, because to compile them from the metadata takes longer than to run them.
    for statement in TABLES_FILE.read_text("utf-8").split(END):
        connection.exec_driver_sql(statement)
    connection.execute(text(_VERSION))
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def current_schema(connection: Connection) -> str | None:
    """Return the name of the newest applied migration, or None if the database has no tables of Orbweaver.

    Raise Unusable if a development version made the database.
    """
    if not inspect(connection).has_table("alembic_version"):
        return None
    current: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    refuse_unreleased("database", current)
    return current


def missing_migrations(current: str | None) -> list[str]:
    """Return the migrations after `current` that `upgrade` would apply, in order, each as its name and title.

    `current`: the result of `current_schema`. Raise Unusable if this program does not know it.
    """
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    try:
        scripts = list(ScriptDirectory(str(migrations_folder())).iterate_revisions("head", current or "base"))
    except CommandError as error:
        raise _unknown(current, error) from error
    return [f"{script.revision} {(script.doc or '').splitlines()[0]}" for script in reversed(scripts)]


def _migrate(connection: Connection, current: str | None, to: str) -> None:
    # Alembic is imported only here: a process whose schema is up to date starts a quarter second sooner.
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        command.upgrade(config, to)
    except CommandError as error:
        raise _unknown(current, error) from error


def _unknown(current: str | None, error: Exception) -> Unusable:
    return Unusable(f"the database's schema is {current}, unknown here ({error}): use a newer Orbweaver")
