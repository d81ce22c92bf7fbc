"""`orb key create`: create an API key directly in the database, if all other keys are lost."""

import argparse
import asyncio
import os
import re
from pathlib import Path
from typing import Final

from cli.admin.key_issue import DATABASE, database_errors, new_key
from cli.local.cluster_folder import DEFAULT, ClusterFolder, database_of
from cli.terminal.exits import Exit, Usage
from cli.terminal.progress import say
from shared.domain.crawl.spec import LABEL, LABEL_WORDS
from shared.domain.ops.access import Role
from shared.settings import is_postgresql, sqlite_file

_EPILOG: Final = f"""\
The key is the only output on stdout; it is shown only once and stored nowhere. The cluster may run or not. List and
revoke other keys over the API (/v1/api-keys). The database can be set as {DATABASE}, which other users cannot read."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=["create"], help="create a key")
    parser.add_argument("--dir", type=Path, metavar="DIR", help=f"the folder of `orb up` (default: {DEFAULT})")
    parser.add_argument("--database", metavar="URL", help="or the database of a cluster, as its masters use it")
    parser.add_argument("--role", choices=[*Role], default=Role.ADMIN, help="rights of the key (default: admin)")
    parser.add_argument("--name", help=f"name of the key: {LABEL_WORDS} (default: a new one)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is not None and re.fullmatch(LABEL, arguments.name) is None:
        raise Usage(f"--name {arguments.name!r} is no name of a key: expected {LABEL_WORDS}.")
    database, by = _database(arguments)
    with database_errors(database, by):
        name, key = asyncio.run(new_key(database, arguments.name, Role(arguments.role)))
    print(key, flush=True)
    say(f"key {name} of role {arguments.role}, shown only once; send it as `Authorization: Bearer <key>`")
    return Exit.OK


def _database(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """Return the database's path or URL, and the flag or variable that names it.

    The second value is None if no flag or variable was given. The database is then that of the default folder. Raise
    Usage if the folder has no cluster, or if a SQLite file does not exist.
    """
    database: str | None = arguments.database
    by: str | None = "--database"
    if database is None and arguments.dir is None:
        database, by = os.environ.get(DATABASE), DATABASE
    if database is None or arguments.dir is not None:
        folder = ClusterFolder(arguments.dir or DEFAULT)
        if folder.remembered() is None:
            raise Usage(f"{folder.path} is not the folder of a cluster: set --dir, or --database.")
        if database is None:
            by = None if arguments.dir is None else "--dir"
        database = database_of(folder, database)
    if not is_postgresql(database) and not sqlite_file(database).is_file():
        from shared.adapters.sql.engine.snapshot import no_database

        raise Usage(f"{no_database(sqlite_file(database))}.")
    return database, by
