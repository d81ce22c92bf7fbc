"""`orb migrate`: upgrade a cluster's database before masters of this release start. Without it, they upgrade it at
start.
"""

import argparse
import asyncio
import os
from typing import Final

from cli.admin.engines import add_database_flag, database_setting
from cli.admin.key_issue import database_errors
from cli.terminal.exits import Exit
from cli.terminal.progress import say

_EPILOG: Final = """\
Masters of the previous release can still use the new schema. Exit codes: 0 done, or with --check nothing is missing; 1
with --check, something is missing; 2 wrong command; 4 the database cannot be reached, or is newer than this program."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_database_flag(parser)
    parser.add_argument("--check", action="store_true", help="only list what is missing; do not create a database")


def run(arguments: argparse.Namespace) -> int:
    database, by = database_setting(arguments, os.environ)
    with database_errors(database, by):
        missing = asyncio.run(missing_in(database))
    if arguments.check:
        for each in missing:
            print(each)
        say(f"{len(missing)} migrations are missing" if missing else "nothing is missing")
        return Exit.FAILED if missing else Exit.OK
    with database_errors(database, by):
        asyncio.run(migrated(database))
    say(f"applied {', '.join(missing)}" if missing else "nothing was missing")
    return Exit.OK


async def missing_in(database: str) -> list[str]:
    """Return the names of the migrations that the database lacks; all of them if it does not exist."""
    from shared.adapters.sql.engine.migrate import current_schema, missing_migrations
    from shared.adapters.sql.engine.snapshot import is_postgresql, sqlite_file

    if is_postgresql(database):
        from shared.adapters.sql.engine.postgres import PostgresPool

        pool = PostgresPool(database)
        try:
            return missing_migrations(await pool.read(current_schema))
        finally:
            await pool.close()
    from shared.adapters.sql.engine.sqlite import SqliteThreads

    path = sqlite_file(database)
    if not path.is_file():
        return missing_migrations(None)
    threads = SqliteThreads(path)
    try:
        return missing_migrations(await threads.read(current_schema))
    finally:
        await threads.close()


async def migrated(database: str) -> None:
    """Apply the missing migrations to the database."""
    from shared.adapters.sql.engine.snapshot import is_postgresql, sqlite_file
    from shared.adapters.sql.frontier.store import SqliteStore

    if is_postgresql(database):
        from shared.adapters.sql.engine.postgres import PostgresStore

        await (await PostgresStore.open(database)).close()
    else:
        await (await SqliteStore.open(sqlite_file(database))).close()
