"""Runs transactions on a SQLite file: one writer thread and several readers.

A transaction is a plain function of a Connection. It runs on the writer's thread from BEGIN IMMEDIATE to COMMIT, so
nothing can await inside it. The same functions run over an asynchronous driver through `run_sync`.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from shared.adapters.sql.engine.full_disk import FullDiskRefusals
from shared.adapters.sql.engine.point_query import PointQuery
from shared.adapters.sql.engine.read_only import CACHE_KIB, configure_reader
from shared.adapters.sql.engine.sqlite_errors import mapped_sqlite
from shared.domain.errors import DiskFull, Permanent, ResourceFull

T = TypeVar("T")

Synchronous = Literal["NORMAL", "FULL"]

_CHECKPOINT_PAGES = 64_000


def sqlite_engine(
    path: Path,
    *,
    synchronous: Synchronous = "NORMAL",
    read_only: bool = False,
    connect: Callable[[], sqlite3.Connection] | None = None,
) -> Engine:
    """Return an SQLAlchemy engine on one SQLite file.

    - `synchronous`: with NORMAL, commits survive the end of processes. With FULL they also survive a power failure.
    - `read_only`: the engine has several connections, which refuse writes.
    - `connect`: opens the file in place of the default.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=QueuePool if read_only else StaticPool,
        connect_args={"isolation_level": None, "timeout": 10.0, "check_same_thread": False, "cached_statements": 512},
        **({} if connect is None else {"creator": connect}),
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        if read_only:
            configure_reader(connection)
            return
        for pragma in (
            "busy_timeout = 10000",
            "journal_mode = WAL",
            f"synchronous = {synchronous}",
            f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
            "journal_size_limit = 268435456",
            "temp_store = MEMORY",
            f"cache_size = -{CACHE_KIB}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


class SqliteThreads:
    """Runs transactions on a SQLite file: writes one after the other on one thread, reads on a few others.

    Point queries run on the thread of the event loop.
    """

    def __init__(self, path: Path, *, synchronous: Synchronous = "NORMAL", readers: int = 2) -> None:
        self._path = path
        self._writer = sqlite_engine(path, synchronous=synchronous)
        self._reader = sqlite_engine(path, read_only=True)
        self._glancing: sqlite3.Connection | None = None
        self._opening = asyncio.Lock()
        self._refusals = FullDiskRefusals()
        self._write_began: float | None = None
        self._answered_at = time.monotonic()
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="sql-write")
        self._read_threads = ThreadPoolExecutor(readers, thread_name_prefix="sql-read")

    def __repr__(self) -> str:
        return f"<SqliteThreads {self._path}>"

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        """Run and commit `transaction`, and return its result. Raise ResourceFull if the disk is full.

        Cancelling the caller does not stop a running transaction: its thread finishes it, and its result is lost.
        """
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._write_thread, self._write, transaction)
        except ResourceFull as error:
            self._refusals.refused(transaction, loop.time(), error)
            raise
        self._answered_at = time.monotonic()
        self._refusals.taken(transaction, loop.time())
        return result

    def _write(self, transaction: Callable[[Connection], T]) -> T:
        self._write_began = time.monotonic()
        try:
            return _transact(self._writer, transaction)
        finally:
            self._write_began = None

    def write_waits_s(self) -> float:
        """Return for how many seconds the writer thread has been busy with a write transaction. 0: there is none.

        This time includes a wait for the write lock of the file.
        """
        began = self._write_began
        return 0.0 if began is None else time.monotonic() - began

    def silent_s(self) -> float:
        """Return the number of seconds since a transaction or query last ended without an error."""
        return time.monotonic() - self._answered_at

    def disk_full(self) -> bool:
        """Return True if a transaction was refused within the last five seconds because the disk is full.

        Callers then start no new work. They continue required writes, which show if the disk is still full.
        """
        return self._refusals.lately(asyncio.get_running_loop().time())

    async def migrate(self, upgrade: Callable[[Engine], None]) -> None:
        """Run `upgrade`, which migrates the tables to the newest schema, on the writer's thread."""
        await asyncio.get_running_loop().run_in_executor(self._write_thread, upgrade, self._writer)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` on one snapshot of the database, and return its result. Raise DiskFull if the disk is full.

        The snapshot has everything that was committed before this call.
        """
        try:
            result = await asyncio.get_running_loop().run_in_executor(
                self._read_threads, _transact, self._reader, query
            )
        except ResourceFull as error:  # SQLite needs a temporary file to sort
            # ResourceFull would say that nothing was written. But `query` may check if an earlier write was applied.
            raise DiskFull(str(error), retry_in=error.retry_in) from error
        self._answered_at = time.monotonic()
        return result

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]:
        """Return the rows that `query` finds by these keys. The query runs on the calling thread, without a wait.

        If the file is locked, the query runs as a `read` instead.
        """
        # On another thread it would take seven times as long: Python switches threads around every call of SQLite.
        try:
            return [query.row(row) for row in (await self._glances()).execute(*query.sqlite(keys))]
        except sqlite3.Error:  # an error other than a lock occurs in `read`, too, which maps it
            return await self.read(lambda c: c.execute(query.statement, keys).all())

    async def data_version(self) -> int | None:
        """Return a number that changes with every commit to the file, by any process. None if it cannot be read now."""
        # SQLite counts only the commits of other connections. So this is a connection that never writes.
        try:
            (version,) = (await self._glances()).execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return None
        return int(version)

    async def _glances(self) -> sqlite3.Connection:
        """Return the read-only connection for queries on the event loop's thread. The first call opens it."""
        if self._glancing is None:
            async with self._opening:
                if self._glancing is None:
                    open_now = asyncio.get_running_loop().run_in_executor(self._read_threads, _glancing, self._path)
                    self._glancing = await open_now
        return self._glancing

    async def close(self) -> None:
        """Wait for the running transactions, then close the SQLite file."""
        loop = asyncio.get_running_loop()
        if self._glancing is not None:
            self._glancing.close()
        await loop.run_in_executor(None, self._write_thread.shutdown)
        await loop.run_in_executor(None, self._read_threads.shutdown)
        self._writer.dispose()
        self._reader.dispose()


def _glancing(path: Path) -> sqlite3.Connection:
    """Return a new read-only connection that raises an error, instead of waiting, if the file is locked.

    Each statement reads its own snapshot.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    configure_reader(connection)
    connection.execute("PRAGMA busy_timeout = 0")
    return connection


def _transact(engine: Engine, transaction: Callable[[Connection], T]) -> T:
    try:
        with engine.begin() as connection:
            return transaction(connection)
    except SQLAlchemyError as error:
        raise mapped(error) from error
    except sqlite3.Error as error:  # of a statement that went to the driver alone (`Bulk.returned`)
        raise mapped_sqlite(error) from error
    except OverflowError as error:
        raise Permanent(f"a number does not fit its column: {error}") from error


def mapped(error: SQLAlchemyError) -> Exception:
    """Return the exception to raise in place of `error`: ResourceFull, DiskFull, Unusable, Transient or Permanent."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return mapped_sqlite(cause) if isinstance(cause, sqlite3.Error) else Permanent(str(error))
