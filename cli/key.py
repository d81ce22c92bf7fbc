"""`orb key create`: a key made on the database itself, for who has lost the others."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Final

from cli.cluster_folder import DEFAULT, ClusterFolder, database_of
from cli.exits import Exit, Usage
from cli.issuing import DATABASE, new_key, said_of, sqlite_path
from cli.watch import say
from shared.domain.access import Role

_EPILOG: Final = f"""\
The key is the only thing on stdout; it is shown this once and kept nowhere. The cluster may run or not. Others are
listed and revoked over the API (/v1/api-keys). The database may be told as {DATABASE}, which no other user reads."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=["create"], help="make a key")
    parser.add_argument("--dir", type=Path, metavar="DIR", help=f"the folder of `orb up` (default: {DEFAULT})")
    parser.add_argument("--database", metavar="URL", help="or the database of a cluster: what its masters are told")
    parser.add_argument("--role", choices=[*Role], default=Role.ADMIN, help="what it may do (default: admin)")
    parser.add_argument("--name", default="made on the database", help="who or what will use it")


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= len(arguments.name) <= 128:
        raise Usage("--name has from 1 to 128 characters.")
    database, by = _database(arguments)
    with said_of(database, by):
        key_id, key = asyncio.run(new_key(database, arguments.name, Role(arguments.role)))
    print(key, flush=True)
    say(f"key {key_id} of role {arguments.role}, shown this once; send it as `Authorization: Bearer <key>`")
    return Exit.OK


def _database(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """The database, and what names it; None: nothing does, and it is that of the default folder."""
    told: str | None = arguments.database
    by: str | None = "--database"
    if told is None and arguments.dir is None:
        told, by = os.environ.get(DATABASE), DATABASE
    if told is None or arguments.dir is not None:
        folder = ClusterFolder(arguments.dir or DEFAULT)
        if folder.remembered() is None:
            raise Usage(f"{folder.path} is no cluster's folder; say which with --dir, or its database with --database.")
        if told is None:
            by = None if arguments.dir is None else "--dir"
        told = database_of(folder, told)
    if not told.startswith(("postgresql:", "postgres:")) and not sqlite_path(told).is_file():
        from shared.adapters.sql.snapshot import no_database

        raise Usage(f"{no_database(sqlite_path(told))}.")
    return told, by
