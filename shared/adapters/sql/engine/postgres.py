"""PostgreSQL: transactions on pooled asyncpg connections, with time limits in the server and in the client.

The transactions are the same plain functions of a Connection that SQLite runs on its thread. Owners of different
partitions write concurrently, since each locks only the row of its partition.

If an owner hangs inside a transaction, its session is ended after about `idle_in_transaction_s` (4 s). This releases
the lock of the owner:

- If the owner hangs between two statements, the server ends the session.
- If the owner hangs inside a statement, another master that waits for the lock ends the session (blockers.py). This
  master waits up to `lock_s` (6 s). So the lock is released before the master gives up.
"""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar
from weakref import WeakSet

import asyncpg
import structlog
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from shared.adapters.sql.engine.blockers import OWNERS, PATIENT, Blockers, end_blockers
from shared.adapters.sql.engine.executor import Executor
from shared.adapters.sql.engine.full_disk import FullDiskRefusals
from shared.adapters.sql.engine.migrate import upgrade
from shared.adapters.sql.engine.point_query import PointQuery
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.errors import DiskFull, Permanent, ResourceFull, Transient, Unusable
from shared.domain.ops.watermarks import FillLevel
from shared.runtime.pressure_monitor import Gauge

T = TypeVar("T")

log = structlog.get_logger(__name__)

_BACK_OFF_S: Final = 0.02
_FAREWELL_S: Final = 2.0

_PLANNING: Final = {"random_page_cost": "1.1", "jit": "off"}
_READ: Final[Any] = {"isolation_level": "REPEATABLE READ", "execution_options": {"postgresql_readonly": True}}
_BY_INDEX: Final = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
"""Settings that make the query planner use an index wherever it can, even if its statistics are old. Masters run only
short queries that an index serves."""


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """The settings of a PostgresPool. Times are in seconds.

    - `writers`, `readers`: the numbers of connections for writes and for reads.
    - `connect_s`: the time limit of a new connection.
    - `idle_in_transaction_s`, `lock_s`, `statement_s`: the server's time limits for a session that is idle in a
      transaction, for a wait for a lock, and for a statement.
    - `answer_s`: how long a reply may take beyond `statement_s` before the connection counts as lost.
    - `tries`: how many times a transaction runs if it conflicts with others.
    """

    writers: int = 8
    readers: int = 4
    connect_s: float = 5.0
    idle_in_transaction_s: float = 4.0
    lock_s: float = 6.0
    statement_s: float = 10.0
    answer_s: float = 5.0
    tries: int = 5

    def __post_init__(self) -> None:
        if not self.idle_in_transaction_s < self.lock_s <= self.statement_s:
            raise ValueError("a takeover needs idle_in_transaction_s < lock_s <= statement_s")


class _Session(asyncpg.Connection):  # type: ignore[misc]  # the library declares no types
    """A connection that waits at most two seconds for the server when it is closed, and then aborts."""

    # asyncpg's default is the statement timeout. With a hung server, each session would wait that long in turn.

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109  the library calls it so
        """Close the session. Does not raise if the server does not reply."""
        try:
            await super().close(timeout=_FAREWELL_S)
        except (TimeoutError, OSError) as error:
            log.debug("postgres_session.aborted", error=repr(error))


class PostgresPool:
    """Runs transactions on PostgreSQL: writes at READ COMMITTED behind their fences, each read on its own snapshot."""

    def __init__(self, url: str, settings: PostgresSettings | None = None) -> None:
        """Create the pools of connections. They connect at the first transaction.

        `url`: postgresql://..., with libpq's host, TLS and password options.
        """
        self._url = url
        self._settings = settings or PostgresSettings()
        self._sessions: WeakSet[_Session] = WeakSet()
        self._taken: list[tuple[str, float]] = []
        self._refusals = FullDiskRefusals()
        self._answered_at = time.monotonic()
        self._writer = _engine(
            url, self._settings, self._settings.writers, planning=_BY_INDEX, opened=self._sessions.add
        )
        self._reader = _engine(
            url,
            self._settings,
            self._settings.readers,
            planning=_BY_INDEX,
            opened=self._sessions.add,
            **_READ,
        )
        limit_s = self._settings.idle_in_transaction_s
        self._blockers = Blockers(lambda: self.read(lambda c: end_blockers(c, limit_s)), limit_s)

    def __repr__(self) -> str:
        return f"<PostgresPool of {self._settings.writers} writers and {self._settings.readers} readers>"

    def disk_full(self) -> bool:
        """Return True if the server refused a transaction within the last five seconds because its disk is full.

        Callers then start no new work. They continue required writes, which show if the disk is still full.
        """
        return self._refusals.lately(asyncio.get_running_loop().time())

    async def data_version(self) -> int | None:
        """Return None: PostgreSQL has no cheap number that changes with every commit. Callers then always read anew."""
        return None

    def silent_s(self) -> float:
        """Return the number of seconds since the server last answered a transaction or query, or refused one."""
        return time.monotonic() - self._answered_at

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        """Run and commit `transaction`, and return its result.

        Raise ResourceFull if the disk is full. After Transient, the transaction may have been committed. After any
        other exception, nothing was written. After a conflict (deadlock, serialisation failure, the same row inserted
        twice) the whole transaction runs again, at most `tries` times.
        """
        with self._blockers.watched():
            return await self._transact(self._writer, transaction)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` on one snapshot of the database, and return its result.

        The snapshot has everything that was committed before this call.
        """
        return await self._transact(self._reader, query)

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]:
        """Return the rows that `query` finds by these keys. It sees everything that was committed before this call."""
        return await self.read(lambda c: c.execute(query.statement, keys).all())

    async def migrate(self, upgrade: Callable[[Connection], None]) -> None:
        """Run `upgrade`, which migrates the tables to the newest schema, on a connection with long time limits."""
        engine = _engine(self._url, _patient(self._settings), 1, name=PATIENT)
        try:
            await self._transact(engine, upgrade)
        finally:
            await engine.dispose()

    async def close(self) -> None:
        """Close the connections within two seconds. The caller makes sure that no transaction is running."""
        await self._blockers.close()
        await asyncio.gather(*(session.close() for session in self._sessions))
        await self._writer.dispose()
        await self._reader.dispose()

    async def _transact(self, engine: AsyncEngine, transaction: Callable[[Connection], T]) -> T:
        now = asyncio.get_running_loop().time
        for left in reversed(range(self._settings.tries)):
            try:
                async with engine.begin() as connection, self._taking(transaction):
                    result = await connection.run_sync(transaction)
            except PoolTimeout as error:
                raise Transient(self._exhausted()) from error
            except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                if sqlstate(error) is not None:
                    self._answered_at = time.monotonic()
                if sqlstate(error) == _DISK_FULL:
                    full = mapped(error)
                    self._refusals.refused(transaction, now(), full)
                    raise (full if engine is self._reader else ResourceFull(str(full))) from error
                if not left or sqlstate(error) not in _AGAIN:
                    raise mapped(error) from error
            else:
                self._answered_at = time.monotonic()
                self._refusals.taken(transaction, now())
                return result
            await asyncio.sleep(random.uniform(0, _BACK_OFF_S * (self._settings.tries - left)))
        raise AssertionError("the last try returned or raised")

    @asynccontextmanager
    async def _taking(self, transaction: Callable[[Connection], object]) -> AsyncIterator[None]:
        """Record, for the duration of the `with` block, that `transaction` uses a connection, and since when."""
        taken = (_location(transaction), asyncio.get_running_loop().time())
        self._taken.append(taken)
        try:
            yield
        finally:
            self._taken.remove(taken)

    def _exhausted(self) -> str:
        """Return the message for an exhausted pool. It lists the transactions that use the connections."""
        now = asyncio.get_running_loop().time()
        users = ", ".join(f"{where} for {now - since:.1f} s" for where, since in sorted(self._taken, key=itemgetter(1)))
        return (
            f"no connection to the database became free within {self._settings.statement_s:g} s; taken by"
            f" {users or 'no running transaction'}. See in pg_stat_activity what these wait for, allow each master more"
            " connections (database_writers, database_readers), or run more masters so that each owns fewer partitions"
        )


def patient_engine(url: str, *, read_only: bool = False) -> AsyncEngine:
    """Return an SQLAlchemy engine with one connection, on which a statement or transaction may take five hours.

    `read_only`: every transaction only reads, on one snapshot.
    """
    patient = PostgresSettings(idle_in_transaction_s=20_000.0, lock_s=20_001.0, statement_s=20_001.0)
    return _engine(url, patient, 1, name=PATIENT, **(_READ if read_only else {}))


class LongTransaction:
    """One open PostgreSQL transaction, in which several functions of a Connection run one after the other."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` in this transaction, and return its result."""
        return await self.write(query)

    async def write(self, statements: Callable[[Connection], T]) -> T:
        """Run `statements`, which read or write, in this transaction, and return their result."""
        try:
            return await self._connection.run_sync(statements)
        except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, OverflowError) as error:
            raise mapped(error) from error

    async def migrate_and_sync(self) -> None:
        """Do nothing. Callers fill SQLite and PostgreSQL databases with the same calls. Only SQLite needs this call."""


@asynccontextmanager
async def patiently(engine: AsyncEngine) -> AsyncIterator[LongTransaction]:
    """Open a transaction that may take hours. `engine`: an engine from `patient_engine`, which has long time limits.

    The transaction commits at the end of the `with` block. It rolls back if the `with` block raises.
    """
    try:
        async with engine.begin() as connection:
            # The transaction begins with the first statement. COPY goes to the driver directly, so it does not count
            # as one: it would commit by itself.
            await connection.execute(text("SELECT 1"))
            yield LongTransaction(connection)
    except (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise mapped(error) from error


def _engine(
    url: str,
    settings: PostgresSettings,
    size: int,
    *,
    name: str = OWNERS,
    planning: Mapping[str, str] = MappingProxyType({}),
    opened: Callable[[_Session], None] = lambda session: None,
    **options: Any,
) -> AsyncEngine:
    """Return an SQLAlchemy engine with a pool of `size` connections and the time limits of `settings`.

    - `name`: the application name that the server shows for the sessions.
    - `planning`: more server settings, for the query planner.
    - `opened` is called with every new session. `options` are those of `create_async_engine`.
    """

    async def connect() -> _Session:
        try:
            session: _Session = await asyncpg.connect(
                url,
                connection_class=_Session,
                timeout=settings.connect_s,
                command_timeout=settings.statement_s + settings.answer_s,
                server_settings={
                    "application_name": name,
                    "idle_in_transaction_session_timeout": _ms(settings.idle_in_transaction_s),
                    "lock_timeout": _ms(settings.lock_s),
                    "statement_timeout": _ms(settings.statement_s),
                    **_PLANNING,
                    **planning,
                },
            )
        except (OSError, asyncpg.InterfaceError):  # some are also a ValueError, such as a certificate's
            raise
        except (ValueError, OverflowError):  # their text may have a part of the password
            raise Unusable(_UNREADABLE) from None
        opened(session)
        return session

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=size,
        max_overflow=0,
        pool_timeout=settings.statement_s,
        pool_pre_ping=True,
        **options,
    )


def _location(transaction: Callable[[Connection], object]) -> str:
    """Return the file, line and name of the function of a transaction, for messages."""
    code = getattr(transaction, "__code__", None)
    if code is None:
        return repr(transaction)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} ({transaction.__qualname__})"


def _patient(settings: PostgresSettings) -> PostgresSettings:
    """Return `settings` with longer limits, for a migration, which may rewrite a table while other masters wait."""
    return replace(settings, idle_in_transaction_s=60.0, lock_s=300.0, statement_s=600.0)


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))


_AGAIN: Final = {
    "40001",  # serialisation failure
    "40P01",  # deadlock
    "23505",  # another transaction inserted this row meanwhile; the next try finds it
    "0A000",  # a migration changed a table under a prepared statement
}

_UNREADABLE: Final = (
    "the database's URL cannot be read: write special characters of the password as %2F (/), %3F (?), %23 (#) or %40"
    " (@), and the port as a number up to 65535"
)

_TRANSIENT: Final = ("08", "25006", "25P03", "25P04", "40", "53", "55", "57")
"""An error is Transient if its code begins with one of these: connection lost, server read-only (now a standby),
session timed out, conflict, resources exhausted, locked, stopped."""

_UNUSABLE: Final = ("0P", "28", "3D", "3F", "42501", "42P01", "42703", "58", "F0", "XX001", "XX002")
"""An error is Unusable if its code begins with one of these: wrong role, password, database or schema; no such
privilege, table or column; files broken."""

_SHUT_OUT: Final = ("08", "28", "3D")
"""An error whose code begins with one of these means that no session was opened: no connection, user refused, no such
database."""

_DISK_FULL: Final = "53100"


def sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's error code of five characters, or None if the error did not come from the server."""
    origin = getattr(error, "orig", None) or error
    code = getattr(origin, "sqlstate", None)
    return code if isinstance(code, str) else getattr(origin.__cause__, "sqlstate", None)


def is_shut_out(error: BaseException) -> bool:
    """Return True if no connection could be made, or the server refused the user or the database.

    `error` must be the original error, not the result of `mapped`. For a wrong schema, a lock or a standby return
    False.
    """
    code = sqlstate(error)
    if code is not None:
        return code.startswith(_SHUT_OUT)
    origin = getattr(error, "orig", None) or error
    if isinstance(origin.__cause__ or origin, asyncpg.ClientConfigurationError):
        return False
    return isinstance(error, (SQLAlchemyError, asyncpg.InterfaceError, OSError))


def mapped(error: Exception) -> Exception:
    """Return the exception to raise in place of a database error: DiskFull, Unusable, Transient or Permanent."""
    origin = getattr(error, "orig", None) or error
    code = sqlstate(error)
    text = f"{origin} ({code})" if code else str(origin) or type(origin).__name__
    if code is not None:
        if code == _DISK_FULL:
            return DiskFull(f"the database's disk is full: make room where PostgreSQL runs, and all goes on ({text})")
        if code.startswith(_UNUSABLE):
            return Unusable(f"the database cannot be used: {text}")
        if code.startswith(_TRANSIENT):
            return Transient(f"the database did not carry it out: {text}")
        return Permanent(f"the database refused it: {text}")
    cause = origin.__cause__ or origin
    if isinstance(cause, asyncpg.ClientConfigurationError):
        return Unusable(f"the database's address cannot be used: {cause}")
    if isinstance(cause, ssl.SSLError):  # before ValueError: a certificate that fails verification is both
        return Transient(f"the database could not be reached over TLS: {text}")
    if isinstance(cause, ValueError):
        return Permanent(f"a value does not fit its column: {text}")
    if isinstance(error, (OSError, PoolTimeout, asyncpg.InterfaceError)):
        return Transient(f"the database could not be reached: {text}")
    if isinstance(error, DBAPIError) and (
        error.connection_invalidated or isinstance(cause, (OSError, asyncpg.InterfaceError))
    ):
        return Transient(f"the database was lost: {text}")
    return Permanent(f"the database refused it: {text}")


def database_gauge(pool: Executor, max_bytes: int) -> Gauge:
    """Return a gauge of the database's size: an async function that returns a FillLevel.

    `max_bytes`: the size at which the database counts as full (0: no limit). The FillLevel also shows if a write was
    refused lately because the disk is full. Without a limit, the size is queried only after such a write.
    """
    if not isinstance(pool, PostgresPool):
        raise TypeError(f"{pool!r} is not a pool of a PostgreSQL server")
    size = text("SELECT pg_database_size(current_database())")

    async def gauge() -> FillLevel:
        refused = pool.disk_full()
        if not refused and not max_bytes:
            return FillLevel(0, 0)
        return FillLevel(await pool.read(lambda c: int(c.execute(size).scalar_one())), max_bytes, refused=refused)

    return gauge


class PostgresStore(SqlStore):
    """The frontier's tables in a PostgreSQL database (`shared.ports.store.Store`)."""

    @classmethod
    async def open(cls, url: str, settings: PostgresSettings | None = None) -> "PostgresStore":
        """Open the database and migrate it to the newest schema if needed.

        Raise Transient if the server cannot be reached, Unusable if it refuses the user or its schema is unknown.
        """
        pool = PostgresPool(url, settings)
        try:
            await pool.migrate(upgrade)
        except BaseException:
            await pool.close()
            raise
        return cls(pool)
