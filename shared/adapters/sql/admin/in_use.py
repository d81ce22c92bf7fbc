"""Finds a process that uses a database: by PostgreSQL's list of sessions, or by the locks on a SQLite file."""

import asyncio

from sqlalchemy import Connection, text

from shared.adapters.sql.engine.blockers import OWNERS
from shared.adapters.sql.engine.lock_holder import opener
from shared.adapters.sql.engine.snapshot import snapshot
from shared.settings import is_postgresql, sqlite_file

_SESSIONS = text(
    "SELECT pid, host(client_addr) AS address FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = :owners AND pid <> pg_backend_pid()"
    " ORDER BY backend_start LIMIT 1"
)


async def user_of(database: str) -> str | None:
    """Return a text that describes a process that has the database open, or None if there is none.

    On PostgreSQL only masters count. On SQLite any process counts that has the file open, even if it only reads. So
    this process must not have the file open.
    """
    if is_postgresql(database):
        async with snapshot(database) as taken:
            return await taken.read(_session)
    return await asyncio.get_running_loop().run_in_executor(None, _process, database)


def _session(connection: Connection) -> str | None:
    row = connection.execute(_SESSIONS, {"owners": OWNERS}).first()
    if row is None:
        return None
    place = "" if row.address is None else f" from {row.address}"
    return f"a master is connected to it{place} (session {row.pid} in pg_stat_activity)"


def _process(database: str) -> str | None:
    holder = opener(sqlite_file(database))
    if holder is None:
        return None
    if holder.note is not None:
        return f"master {holder.note.member} (process {holder.pid}) has it open"
    return f"process {holder.pid} has it open" if holder.pid else "a process of another container has it open"
