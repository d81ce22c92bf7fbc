"""A whole database as of one moment, beside whoever works on it: what backups, copies and checks read.

SQLite: a read transaction on a connection of its own; the file's log grows as long as it is open. PostgreSQL: one
REPEATABLE READ transaction; what is updated meanwhile stays on disk until it ends.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from shared.adapters.sql import schema
from shared.adapters.sql.engine import mapped, sqlite_engine
from shared.adapters.sql.migrate import HEAD, current_schema
from shared.domain.errors import Unusable

T = TypeVar("T")


class Snapshot(Protocol):
    """Answers every query as of the same moment."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query. One at a time."""
        ...


def is_postgresql(database: str) -> bool:
    """Whether the URL is of a server; else it names a SQLite file."""
    return database.startswith(("postgresql:", "postgres:"))


def sqlite_file(database: str) -> Path:
    """The file that a path or a `sqlite:` URL names."""
    return Path(re.sub(r"^sqlite:(//(?=/))?", "", database))


def no_database(path: Path) -> str:
    """What to say where a command is to look at a file that is not there."""
    return (
        f"there is no database {path.absolute()}: name the one that the masters are told, by its path or its "
        "postgresql:// URL; that of `orb up` is cluster.db in its folder"
    )


@asynccontextmanager
async def snapshot(database: str) -> AsyncIterator[Snapshot]:
    """The database as it is now. Unusable when it is not there, holds no cluster, or its schema is another than ours:
    nothing is migrated for being looked at."""
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
async def _on_sqlite(path: Path) -> AsyncIterator[Snapshot]:
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
async def _on_postgresql(database: str) -> AsyncIterator[Snapshot]:
    from shared.adapters.sql.postgres import patient_engine, patiently  # its libraries are loaded where needed

    engine = patient_engine(database, read_only=True)
    try:
        async with patiently(engine) as taken:
            yield taken
    finally:
        await engine.dispose()
