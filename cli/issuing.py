"""Keys made without the API: whoever may write the database may let people in. What is said where it lets nobody."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cli.cluster_folder import without_password
from cli.exits import Environment
from shared.adapters.local.clock import SystemClock
from shared.domain.errors import DiskFull, NoRoom, Transient, Unusable

if TYPE_CHECKING:
    from shared.domain.access import Role
    from shared.ports.catalog import Catalog

DATABASE: Final = "ORB_DATABASE"
_PORT: Final = 5432
_TRIES: Final = 5


async def first_key(database: str) -> str | None:
    """An admin's key where the database has no key yet, to be shown once; None where it has. Makes the tables.

    Unusable and Transient as the database says them; where it may have been kept, it is asked for a few times more.
    """
    from api.security.authentication import first_key as made

    kept, key = made(SystemClock().unix_ms())  # the same at every try: one whose answer was lost is kept
    asked = False
    for left in reversed(range(_TRIES)):
        try:
            async with _catalog(database) as catalog:
                asked = True
                return key if await catalog.add_first_key(kept) else None
        except NoRoom:
            raise
        except Transient as error:
            if not (asked and left):
                raise
            await asyncio.sleep(error.retry_in)
    raise AssertionError("the last try has returned or raised")


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


@contextmanager
def said_of(database: str, by: str | None = None) -> Iterator[None]:
    """What goes wrong in the block is said of this database. `by`: what names it, as `--database`."""
    try:
        yield
    except (Transient, Unusable) as error:
        raise Environment(unreached(database, error, by)) from error


def unreached(database: str, error: Exception, by: str | None = None) -> str:
    """What to say and to do where a database, by path or URL, refuses or does not answer."""
    server = database.startswith(("postgresql:", "postgres:"))
    shown = without_password(database) if server else str(sqlite_path(database).absolute())
    if isinstance(error, DiskFull):
        return f"the disk of the database {shown} is full: make room there, and run the same command again."
    said = str(error).rstrip(".")
    named = f"{said}. The database is {shown}" + (f", as {by} says" if by else "")
    if server and _shut_out(error):
        return (
            f"{named}: check that PostgreSQL listens at {_place(database)}, and that it lets this user into this "
            "database (a password is best in PGPASSWORD or ~/.pgpass); then run the same command again."
        )
    if isinstance(error, Transient):
        return f"{named}: run the same command again."
    return f"{said}." if shown in said else f"{named}."


def _shut_out(error: Exception) -> bool:
    """Whether there was no connection to a server, or it refused the user or the database."""
    if error.__cause__ is None:  # what we say of what we have read there
        return False
    from shared.adapters.sql.postgres import is_shut_out

    return is_shut_out(error.__cause__)


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
