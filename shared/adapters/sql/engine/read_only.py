"""Reads a database whose folder cannot be written: another user's, or one on a read-only mount.

A write-ahead log (`-wal`) needs an index (`-shm`) beside it. SQLite makes the index before it reads the database, and
fails if it cannot.

There are two ways to read such a database:

- A crawl uses it: the index exists already, and readers share it.
- The crawl has closed it: there is no log. The file is complete, so SQLite opens it as immutable.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from shared.domain.errors import Transient, Unusable

# A connection's own pages; the system's cache holds the rest. A cache four times as large changed no rate at a million
# rows (`orb bench frontier_rows --rows 1000000`). It only used more memory as the crawl grew.
CACHE_KIB: Final = 16_384

_UNOPENED: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


def configure_reader(connection: sqlite3.Connection) -> None:
    """Configure a new connection to refuse writes, and to wait up to 10 seconds for a lock."""
    for pragma in ("busy_timeout = 10000", "query_only = ON", f"cache_size = -{CACHE_KIB}"):
        connection.execute(f"PRAGMA {pragma}")


class ReadFile:
    """A SQLite file that is opened read-only. The folder of the file need not be writable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def connect(self) -> sqlite3.Connection:
        """Open the file and return the connection.

        - If SQLite can read the file in the normal way: do so. This works while a crawl uses the file.
        - If SQLite fails, because it cannot write the index to the folder: open the file as immutable. In this mode
          SQLite ignores the write-ahead log. So raise Unusable if the log is not empty.

        Raise sqlite3.Error if SQLite cannot open the file for another reason.
        """
        connection = _opened(os.fspath(self._path))
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF not in _UNOPENED or not os.access(self._path, os.R_OK):
                raise
            return self._immutable()
        return connection

    def check(self) -> None:
        """Raise Transient if a crawl has begun to write to the file since it was opened as immutable."""
        if self._seen is not None and (self._logged() or self._seen != self._version()):
            raise Transient(f"a crawl has just begun to write to {self._path}: ask again")

    def _immutable(self) -> sqlite3.Connection:
        if self._logged():
            raise Unusable(
                f"{self._path} cannot be read where it is: its log {self._path.name}-wal holds a part of it, the log's "
                "index is missing, and the folder cannot be written. Copy the folder to a place that can be written"
            )
        self._seen = self._version()
        return _opened(f"file:{quote(os.fspath(self._path.absolute()))}?immutable=1", uri=True)

    def _logged(self) -> bool:
        """Return True if the write-ahead log is not empty. The file without the log may then be incomplete."""
        try:
            return os.stat(f"{self._path}-wal").st_size > 0
        except FileNotFoundError:
            return False

    def _version(self) -> tuple[int, ...]:
        status = os.stat(self._path)
        return status.st_ino, status.st_size, status.st_mtime_ns


def _opened(name: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        name, isolation_level=None, timeout=10.0, check_same_thread=False, cached_statements=512, uri=uri
    )
