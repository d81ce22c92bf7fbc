"""`orb migrate`: upgrade a cluster's database before masters of this release start.

Without this command, the masters upgrade the database when they start.
"""

import argparse
import asyncio
import os
from typing import Final

from cli.admin.engines import add_database_flag, database_setting, executing
from cli.admin.key_issue import database_errors, opened_store
from cli.terminal.exits import Exit
from cli.terminal.progress import say
from shared.settings import is_postgresql, sqlite_file

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
    """Return the names of the migrations that the database lacks. If the database does not exist, return all names."""
    from shared.adapters.sql.engine.migrate import current_schema, missing_migrations

    if not is_postgresql(database) and not sqlite_file(database).is_file():
        return missing_migrations(None)
    async with executing(database) as executor:
        return missing_migrations(await executor.read(current_schema))


async def migrated(database: str) -> None:
    """Apply the missing migrations to the database. Create it if it does not exist."""
    await (await opened_store(database)).close()
