"""Creates API keys directly in the database, without the API, and converts database errors to messages for the user."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cli.terminal.exits import Environment, Usage
from shared.adapters.local.clock import SystemClock
from shared.domain.errors import DiskFull, ResourceFull, Transient, Unusable
from shared.settings import is_postgresql, sqlite_file, without_password

if TYPE_CHECKING:
    from shared.adapters.sql.frontier.store import SqlStore
    from shared.domain.ops.access import Role
    from shared.ports.catalog import Catalog

DATABASE: Final = "ORB_DATABASE"
_PORT: Final = 5432
_TRIES: Final = 5


async def first_key(database: str) -> str | None:
    """Create an admin key and return it. Return None if the database has a key already. Create missing tables.

    The database stores only a digest of the key, so the caller must show the key. If the database fails, retry a few
    times with the same key. Raise the database's Unusable and Transient errors.
    """
    from api.http.authentication import first_key as made

    kept, key = made(SystemClock().unix_ms())  # the same in every attempt: an earlier one may have stored it
    asked = False
    for left in reversed(range(_TRIES)):
        try:
            async with _catalog(database) as catalog:
                asked = True
                return key if await catalog.add_first_key(kept) else None
        except ResourceFull:
            raise
        except Transient as error:
            if not (asked and left):
                raise
            await asyncio.sleep(error.retry_in)
    raise AssertionError("the last try has returned or raised")


async def new_key(database: str, name: str | None, role: "Role") -> tuple[str, str]:
    """Create an API key. Return its name and the key itself.

    The database stores only a digest of the key, so the caller must show the key. If `name` is None, a unique name is
    generated. The entry in the audit log names the command and the system user. Raise Usage if another key has the
    name.
    """
    from shared.domain.ops import access
    from shared.domain.reads.declared import Actor
    from shared.ports.catalog import Exists

    key_id, key = access.new_key()
    by = Actor("", f"orb key create, user {os.getuid()}", "")
    kept = access.ApiKey(
        key_id, name or f"created-{key_id}", role, access.digest_of(key), SystemClock().unix_ms(), by.name
    )
    async with _catalog(database) as catalog:
        try:
            await catalog.add_key(kept, actor=by)
        except Exists as error:
            raise Usage(f"{error}: choose another --name.") from error
    return kept.name, key


@contextmanager
def database_errors(database: str, by: str | None = None) -> Iterator[None]:
    """Convert the database's Transient and Unusable errors in the `with` block to Environment.

    The message says what the user can do. It names `by`, the flag or variable that set the database, such as
    `--database`. None: the message names neither.
    """
    try:
        yield
    except (Transient, Unusable) as error:
        raise Environment(unreached(database, error, by)) from error


def unreached(database: str, error: Exception, by: str | None = None) -> str:
    """Return a message for the user after an error of the database. It has the reason, and usually what to do.

    - `database`: the path or URL of the database.
    - `error`: why the database cannot be reached or used.
    - `by`: the flag or variable that set `database`, None if neither did.
    """
    server = is_postgresql(database)
    shown = without_password(database) if server else str(sqlite_file(database).absolute())
    if isinstance(error, DiskFull):
        return f"the disk of the database {shown} is full: make room there, and run the same command again."
    reason = str(error).rstrip(".")
    named = f"{reason}. The database is {shown}" + (f", from {by}" if by else "")
    if server and _shut_out(error):
        return (
            f"{named}: check that PostgreSQL listens at {_place(database)}, and that it accepts this user for "
            "this database (a password is safest in PGPASSWORD or ~/.pgpass); then run the same command again."
        )
    if isinstance(error, Transient):
        return f"{named}: run the same command again."
    return f"{reason}." if shown in reason else f"{named}."


def _shut_out(error: Exception) -> bool:
    """Return True if the error means that PostgreSQL cannot be reached, or that it refused the user or the database."""
    if error.__cause__ is None:  # our own verdict on the contents
        return False
    from shared.adapters.sql.engine.postgres import is_shut_out

    return is_shut_out(error.__cause__)


def _place(database: str) -> str:
    """Return where the server of a PostgreSQL URL listens, for messages, such as `db.example.com, port 5432`.

    If the URL names several servers, return its list of hosts and ports unchanged.
    """
    address = without_password(database).partition("://")[2].rpartition("@")[2]
    try:
        place = urlsplit(f"//{address}")
        host, port = place.hostname or "this machine's socket", place.port or _PORT
    except ValueError:
        return address.partition("/")[0]
    return f"{host}, port {port}"


@asynccontextmanager
async def _catalog(database: str) -> "AsyncIterator[Catalog]":
    from shared.adapters.sql.catalog.catalog import SqlCatalog

    store = await opened_store(database)
    try:
        yield SqlCatalog(store.executor)
    finally:
        await store.close()


async def opened_store(database: str) -> "SqlStore":
    """Open the database at this path or URL, apply the migrations that it lacks, and return its store."""
    if is_postgresql(database):
        from shared.adapters.sql.engine.postgres import PostgresStore

        return await PostgresStore.open(database)
    from shared.adapters.sql.frontier.store import SqliteStore

    return await SqliteStore.open(sqlite_file(database))
