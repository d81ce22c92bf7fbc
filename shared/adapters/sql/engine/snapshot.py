"""Opens a consistent snapshot of a whole database that may be in use, for backups, copies and checks.

SQLite: a read transaction on its own connection. The file's log grows while it is open. PostgreSQL: one REPEATABLE READ
transaction. Old row versions stay on disk until it ends.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.migrate import HEAD, current_schema
from shared.adapters.sql.engine.sqlite import mapped, sqlite_engine
from shared.domain.errors import Unusable
from shared.settings import is_postgresql, sqlite_file

T = TypeVar("T")


class DatabaseSnapshot(Protocol):
    """A database at one point in time, the same for every query."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` on the snapshot, and return its result. Do not call this concurrently."""


def no_database(path: Path) -> str:
    """Return the error message for the SQLite file at `path` that does not exist."""
    return (
        f"there is no database {path.absolute()}: name the one that the masters use, by its path or its "
        "postgresql:// URL; that of `orb up` is cluster.db in its folder"
    )


@asynccontextmanager
async def snapshot(database: str) -> AsyncIterator[DatabaseSnapshot]:
    """Open a snapshot of the whole database for the `with` block. Every query in the block sees the same state of it.

    `database`: a path or URL. Raise Unusable if there is no database, no master has set it up as a cluster yet, or it
    has another schema than this program. The database is never migrated.
    """
    opened = _on_postgresql(database) if is_postgresql(database) else _on_sqlite(sqlite_file(database))
    async with opened as taken:
        await taken.read(_check)
        yield taken


def _check(connection: Connection) -> None:
    current = current_schema(connection)
    if current is None:
        raise Unusable("the database holds no tables of Orbweaver")
    if current != HEAD:
        raise Unusable(
            f"the database's schema is {current} and this program's {HEAD}: run `orb migrate`, or its version"
        )
    if connection.execute(select(schema.cluster.c.id)).first() is None:
        raise Unusable("the database holds no cluster yet")


class _SqliteSnapshot:
    def __init__(self, connection: Connection, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._thread = thread

    async def read(self, query: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, query)

    def _answer(self, query: Callable[[Connection], T]) -> T:
        try:
            return query(self._connection)
        except SQLAlchemyError as error:
            raise mapped(error) from error


def _existing(path: Path) -> Engine:
    if not path.is_file():
        raise Unusable(no_database(path))
    return sqlite_engine(path, read_only=True)


@asynccontextmanager
async def _on_sqlite(path: Path) -> AsyncIterator[DatabaseSnapshot]:
    engine = _existing(path)
    thread = ThreadPoolExecutor(1, thread_name_prefix="sql-snapshot")
    loop = asyncio.get_running_loop()
    try:
        connection = await loop.run_in_executor(thread, engine.connect)
        try:
            await loop.run_in_executor(thread, connection.begin)
            yield _SqliteSnapshot(connection, thread)
        finally:
            await loop.run_in_executor(thread, connection.close)
    except SQLAlchemyError as error:
        raise mapped(error) from error
    finally:
        await loop.run_in_executor(None, thread.shutdown)
        engine.dispose()


@asynccontextmanager
async def _on_postgresql(database: str) -> AsyncIterator[DatabaseSnapshot]:
    from shared.adapters.sql.engine.postgres import patient_engine, patiently  # loads its libraries only if needed

    engine = patient_engine(database, read_only=True)
    try:
        async with patiently(engine) as taken:
            yield taken
    finally:
        await engine.dispose()
