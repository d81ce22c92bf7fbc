"""Keys made without the API: whoever may write the database may let people in."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from shared.adapters.local.clock import SystemClock
from shared.domain.errors import NoRoom

if TYPE_CHECKING:
    from shared.domain.access import Role
    from shared.ports.catalog import Catalog

DATABASE: Final = "ORB_DATABASE"
_PORT: Final = 5432


async def first_key(database: str) -> str | None:
    """An admin's key where the database has no key yet, to be shown once; None where it has. Makes the tables.

    Unusable and Transient as the database says them.
    """
    from api.security.authentication import issue_first_key

    async with _catalog(database) as catalog:
        return await issue_first_key(catalog, SystemClock().unix_ms())


async def new_key(database: str, name: str, role: "Role") -> tuple[str, str]:
    """A key's id and the key, to be shown once; the audit log says that it was made here, and by whom."""
    from shared.domain import access
    from shared.domain.declared import Actor

    key_id, key = access.new_key()
    by = Actor("", f"orb key create, user {os.getuid()}", "")
    kept = access.ApiKey(key_id, name, role, access.digest_of(key), SystemClock().unix_ms(), by.name)
    async with _catalog(database) as catalog:
        await catalog.add_key(kept, actor=by)
    return key_id, key


def unreached(database: str, error: Exception, by: str | None = None) -> str:
    """What to say and to check where a database, named as it may be shown, refuses or does not answer. `by`: the
    setting that names it."""
    if isinstance(error, NoRoom):
        return f"the disk of the database {database} is full: make room there, and run the same command again."
    said = str(error).rstrip(".")
    if not database.startswith(("postgresql:", "postgres:")):
        return f"{said}."
    named = database if by is None else f"{database} by {by}"
    return (
        f"{said}. The database is {named}: check that PostgreSQL listens at {_place(database)}, and that it lets "
        "this user into this database (a password is best in PGPASSWORD or ~/.pgpass); then run the same command again."
    )


def _place(database: str) -> str:
    """Where a PostgreSQL database is, in words; several servers as they are told."""
    place = urlsplit(database)
    try:
        host, port = place.hostname or "this machine's socket", place.port or _PORT
    except ValueError:
        return place.netloc.rpartition("@")[2]
    return f"{host}, port {port}"


@asynccontextmanager
async def _catalog(database: str) -> "AsyncIterator[Catalog]":
    from shared.adapters.sql.catalog import SqlCatalog
    from shared.adapters.sql.store import SqliteStore, SqlStore

    store: SqlStore
    if database.startswith(("postgresql:", "postgres:")):
        from shared.adapters.sql.postgres import PostgresStore

        store = await PostgresStore.open(database)
    else:
        store = await SqliteStore.open(sqlite_path(database))
    try:
        yield SqlCatalog(store.executor)
    finally:
        await store.close()


def sqlite_path(database: str) -> Path:
    """The file that a path or a `sqlite:` URL names."""
    return Path(re.sub(r"^sqlite:(//(?=/))?", "", database))
