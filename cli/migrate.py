"""`orb migrate`: the newest schema for a cluster's database, before masters of this release start. They do it, too."""

import argparse
import asyncio
import os
from typing import Final

from cli.engines import add_database_flag, told_database
from cli.exits import Exit
from cli.issuing import said_of
from cli.watch import say

_EPILOG: Final = """\
Masters of the release before go on working on the new schema. Exit codes: 0 done, or with --check nothing is missing;
1 with --check, something is; 2 wrong command; 4 the database cannot be reached, or is newer than this program."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_database_flag(parser)
    parser.add_argument("--check", action="store_true", help="only say what is missing; a new database is not made")


def run(arguments: argparse.Namespace) -> int:
    database, by = told_database(arguments, os.environ)
    with said_of(database, by):
        missing = asyncio.run(missing_in(database))
    if arguments.check:
        for each in missing:
            print(each)
        say(f"{len(missing)} migrations are missing" if missing else "nothing is missing")
        return Exit.FAILED if missing else Exit.OK
    with said_of(database, by):
        asyncio.run(migrated(database))
    say(f"applied {', '.join(missing)}" if missing else "nothing was missing")
    return Exit.OK


async def missing_in(database: str) -> list[str]:
    """The migrations that the database lacks; all of them where there is none."""
    from shared.adapters.sql.migrate import current_schema, missing_migrations
    from shared.adapters.sql.snapshot import is_postgresql, sqlite_file

    if is_postgresql(database):
        from shared.adapters.sql.postgres import PostgresPool

        pool = PostgresPool(database)
        try:
            return missing_migrations(await pool.read(current_schema))
        finally:
            await pool.close()
    from shared.adapters.sql.engine import SqliteThreads

    path = sqlite_file(database)
    if not path.is_file():
        return missing_migrations(None)
    threads = SqliteThreads(path)
    try:
        return missing_migrations(await threads.read(current_schema))
    finally:
        await threads.close()


async def migrated(database: str) -> None:
    """Apply what is missing."""
    from shared.adapters.sql.snapshot import is_postgresql, sqlite_file
    from shared.adapters.sql.store import SqliteStore

    if is_postgresql(database):
        from shared.adapters.sql.postgres import PostgresStore

        await (await PostgresStore.open(database)).close()
    else:
        await (await SqliteStore.open(sqlite_file(database))).close()
