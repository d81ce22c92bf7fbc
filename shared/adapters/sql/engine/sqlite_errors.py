"""Converts errors of SQLite's driver to the exceptions that callers of the store handle."""

import sqlite3

from shared.domain.errors import DiskFull, Permanent, ResourceFull, Transient, Unusable


def mapped_sqlite(error: sqlite3.Error) -> Exception:
    """Return the exception to raise in place of `error`: ResourceFull, DiskFull, Unusable, Transient or Permanent."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_FULL:
        return ResourceFull(f"the disk that holds the database is full: make room there, and all goes on ({error})")
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:  # no space for the log's index; a write may have been applied
        return DiskFull(f"the disk that holds the database is full: make room there, and all goes on ({error})")
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        return Unusable(f"the crawl's database cannot be opened ({error}): check the rights on it and on its folder")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Unusable(f"the crawl's database cannot be used ({error}): restore it from a copy or start over")
    if isinstance(error, sqlite3.IntegrityError):
        return Permanent(f"the database refused the rows: {error}")
    if isinstance(error, sqlite3.OperationalError):
        return Transient(f"the database did not carry it out: {error}")
    return Permanent(f"the database refused the statement: {error}")
