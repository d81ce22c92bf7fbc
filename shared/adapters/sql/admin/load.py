"""Fills a new database with all tables of a cluster. Other processes see the complete database, or none."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, bindparam, select, update
from sqlalchemy.exc import SQLAlchemyError

from shared.adapters.sql.engine import page_schema, schema
from shared.adapters.sql.engine.migrate import HEAD, current_schema, upgrade
from shared.adapters.sql.engine.schema_version import refuse_unreleased
from shared.adapters.sql.engine.sqlite import mapped, sqlite_engine
from shared.domain.errors import Unusable
from shared.settings import is_postgresql, sqlite_file

T = TypeVar("T")

SKIPPED: Final = 1 << 32
"""How many host ids, and how many lease ids, each partition skips after a restore. A partition has 2**51 ids of each
kind."""

SKIPPED_CRAWLS: Final = 1_000


class DatabaseLoad(Protocol):
    """A new database that one process fills. No other process uses it yet."""

    async def write(self, statements: Callable[[Connection], T]) -> T:
        """Run `statements`, a function that writes, and return its result. Do not call this concurrently."""

    async def migrate_and_sync(self) -> None:
        """Migrate a SQLite database to the newest schema and sync it to disk. The caller must not write afterwards.

        Do nothing on PostgreSQL. The call is optional: without it, this is done at the end of `filling`.
        """


@asynccontextmanager
async def filling(database: str, schema_of: str = HEAD) -> AsyncIterator[DatabaseLoad]:
    """Create a database with the tables of the migration `schema_of`, and open it for the `with` block to fill.

    At the end the tables are migrated to the newest schema. Other processes see the database only after the `with`
    block has succeeded. A `with` block that fails leaves nothing behind.

    Raise Unusable if the database exists already, or if `schema_of` is from a development version.
    """
    # On SQLite, rows go to a file beside the final path. On PostgreSQL, one transaction writes the tables and rows, and
    # a second one migrates them.
    refuse_unreleased("backup", schema_of)
    opened = _on_postgresql(database, schema_of) if is_postgresql(database) else _on_sqlite(database, schema_of)
    async with opened as fresh:
        yield fresh


def begin_anew(connection: Connection) -> None:
    """Prepare a database restored from a backup, so that late writes and reports from before have no effect.

    - Raise the epoch, so that all earlier terms of owners and leaders are outdated.
    - Reset the positions up to which reports and items are applied. The restored cluster reads new streams.
    - Place the commands in progress before all reports of the new stream. See also `place_commands`.
    - Skip the ids of leases and hosts that the cluster may have used after the backup. Late reports with such an id
      then have no effect.
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
    connection.execute(update(schema.commands_in_progress).values(sequence=0))
    # A backup of an earlier release has no times of items. No stream was made at 0, so such times are not used.
    connection.execute(update(page_schema.item_writer).values(stream_created_ns=0, sequence=0))


def place_commands(connection: Connection, places: Mapping[tuple[int, str], int]) -> None:
    """Store the sequences that the commands in progress have in the stream of the restored cluster.

    `places`: sequences by partition and id of a command. Commands that are not in progress are ignored.
    """
    if places:
        table = schema.commands_in_progress.c
        of_command = update(schema.commands_in_progress).where(
            table.partition == bindparam("of_partition"), table.id == bindparam("of_id")
        )
        connection.execute(
            of_command.values(sequence=bindparam("place")),
            [{"of_partition": partition, "of_id": id_, "place": place} for (partition, id_), place in places.items()],
        )


# --- SQLite -----------------------------------------------------------------------------------------------------------


class _SqliteFilling:
    def __init__(self, engine: Engine, thread: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._thread = thread
        self._migrated = False

    async def write(self, statements: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, statements)

    async def migrate_and_sync(self) -> None:
        if self._migrated:
            return
        self._migrated = True
        await self.write(upgrade)
        await asyncio.get_running_loop().run_in_executor(self._thread, _sync, self._engine)

    def _transact(self, statements: Callable[[Connection], T]) -> T:
        try:
            with self._engine.begin() as connection:
                return statements(connection)
        except SQLAlchemyError as error:
            raise mapped(error) from error


@asynccontextmanager
async def _on_sqlite(database: str, schema_of: str) -> AsyncIterator[DatabaseLoad]:
    path = sqlite_file(database)
    if path.exists():
        raise Unusable(f"{path} exists already: name a file that does not exist")
    part = path.with_name(f"{path.name}.part")
    _remove(part)
    engine = sqlite_engine(part)
    thread = ThreadPoolExecutor(1, thread_name_prefix="sql-fill")
    fresh = _SqliteFilling(engine, thread)
    try:
        await fresh.write(lambda connection: upgrade(connection, schema_of))
        yield fresh
        await fresh.migrate_and_sync()
        os.link(part, path)  # unlike a rename, this never replaces another file
    except FileExistsError:
        raise Unusable(f"{path} was made meanwhile, so it was not replaced") from None
    finally:
        await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)
        engine.dispose()
        _remove(part)


def _sync(engine: Engine) -> None:
    """Move all data from the write-ahead log into the SQLite file, and sync the file to disk."""
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
async def _on_postgresql(database: str, schema_of: str) -> AsyncIterator[DatabaseLoad]:
    from shared.adapters.sql.engine.postgres import patient_engine, patiently  # loads its libraries only if needed

    engine = patient_engine(database)
    try:
        async with patiently(engine) as fresh:
            await fresh.write(partial(_made_empty, schema_of=schema_of))
            yield fresh
        async with patiently(engine) as migrating:
            await migrating.write(upgrade)
    finally:
        await engine.dispose()


def _made_empty(connection: Connection, schema_of: str) -> None:
    """Create the tables of the schema version `schema_of`, without rows.

    Raise Unusable if the database has a cluster, or tables of another schema version.
    """
    current = current_schema(connection)
    if current is not None and connection.execute(select(schema.cluster.c.id)).first() is not None:
        raise Unusable("the database holds a cluster already: name an empty one")
    if current not in (None, schema_of):
        raise Unusable(f"the database is empty, and its schema {current} is not {schema_of}: name one without tables")
    upgrade(connection, schema_of)
