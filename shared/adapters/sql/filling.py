"""A new database being filled with a whole cluster's tables: there as a whole at the end, or not at all."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, inspect, select, update
from sqlalchemy.exc import SQLAlchemyError

from shared.adapters.sql import schema
from shared.adapters.sql.engine import mapped, sqlite_engine
from shared.adapters.sql.migrate import HEAD, current_schema, upgrade
from shared.adapters.sql.snapshot import is_postgresql, sqlite_file
from shared.domain.errors import Unusable

T = TypeVar("T")

SKIPPED: Final = 1 << 32
"""So many numbers of hosts and leases of every partition are never given after a restore (they have 51 bits)."""

SKIPPED_CRAWLS: Final = 1_000


class Filling(Protocol):
    """A database that nobody else uses yet."""

    async def write(self, statements: Callable[[Connection], T]) -> T:
        """Run what writes. One at a time."""
        ...

    async def settle(self) -> None:
        """Do everything but make the database visible, which is left to the end of the block. Nothing is written
        afterwards."""
        ...


@asynccontextmanager
async def filling(database: str, schema_of: str = HEAD) -> AsyncIterator[Filling]:
    """A new database with the tables as of the migration `schema_of`, brought to the newest at the end.

    Until the block has ended well nothing of it can be seen: SQLite is written to a file beside its place, PostgreSQL
    in one transaction. Unusable when there is something already.
    """
    opened = _on_postgresql(database, schema_of) if is_postgresql(database) else _on_sqlite(database, schema_of)
    async with opened as fresh:
        yield fresh


def begin_anew(connection: Connection) -> None:
    """Make a cluster as of a backup begin a history of its own.

    Its epoch is raised, so that every term of before is older. Positions are those before all: the reports and items
    that came behind the snapshot stand in new streams. No number of a lease, host or crawl is given that the cluster
    may have given after the snapshot: late reports among these that name one must find nothing under it.
    """
    connection.execute(update(schema.cluster).values(epoch=schema.cluster.c.epoch + 1))
    connection.execute(
        update(schema.partitions).values(
            stream_created_ns=0,
            outcome_seq=0,
            outcome_ns=0,
            discovery_seq=0,
            discovery_ns=0,
            next_host=schema.partitions.c.next_host + SKIPPED,
            next_lease=schema.partitions.c.next_lease + SKIPPED,
        )
    )
    if inspect(connection).has_table(schema.item_writer.name):  # a backup may be older than the table
        connection.execute(update(schema.item_writer).values(stream_created_ns=0, sequence=0))


# --- SQLite -----------------------------------------------------------------------------------------------------------


class _SqliteFilling:
    def __init__(self, engine: Engine, thread: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._thread = thread
        self._settled = False

    async def write(self, statements: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, statements)

    async def settle(self) -> None:
        if self._settled:
            return
        self._settled = True
        await self.write(upgrade)
        await asyncio.get_running_loop().run_in_executor(self._thread, _settle, self._engine)

    def _transact(self, statements: Callable[[Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return statements(connection)
        except SQLAlchemyError as error:
            raise mapped(error) from error


@asynccontextmanager
async def _on_sqlite(database: str, schema_of: str) -> AsyncIterator[Filling]:
    path = sqlite_file(database)
    if path.exists():
        raise Unusable(f"{path} is there already: name a file that is not")
    part = path.with_name(f"{path.name}.part")
    _remove(part)
    engine = sqlite_engine(part)
    thread = ThreadPoolExecutor(1, thread_name_prefix="sql-fill")
    fresh = _SqliteFilling(engine, thread)
    try:
        await fresh.write(lambda connection: upgrade(connection, schema_of))
        yield fresh
        await fresh.settle()
        os.link(part, path)  # unlike a renaming, never over another's file
    except FileExistsError:
        raise Unusable(f"{path} came to be meanwhile: nothing was put in its place") from None
    finally:
        await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
        engine.dispose()
        _remove(part)


def _settle(engine: Engine) -> None:
    """Everything in the one file, and on the disk."""
    try:
        with engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.connection.cursor().execute("PRAGMA journal_mode = DELETE")
    except SQLAlchemyError as error:
        raise mapped(error) from error
    engine.dispose()
    with Path(str(engine.url.database)).open("rb") as file:
        os.fsync(file.fileno())


def _remove(part: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _on_postgresql(database: str, schema_of: str) -> AsyncIterator[Filling]:
    from shared.adapters.sql.postgres import patient_engine, patiently  # its libraries are loaded where needed

    engine = patient_engine(database)
    try:
        async with patiently(engine) as migrating:
            await migrating.write(partial(_made_empty, schema_of=schema_of))
        async with patiently(engine) as fresh:
            yield fresh
        async with patiently(engine) as migrating:
            await migrating.write(upgrade)
    finally:
        await engine.dispose()


def _made_empty(connection: Connection, schema_of: str) -> None:
    """The tables of that time, without rows. Unusable when there is a cluster in them, or they are of another time."""
    found = current_schema(connection)
    if found is not None and connection.execute(select(schema.cluster.c.id)).first() is not None:
        raise Unusable("the database holds a cluster already: name an empty one")
    if found not in (None, schema_of):
        raise Unusable(f"the database is empty, and its schema {found} is not {schema_of}: name one without tables")
    upgrade(connection, schema_of)
