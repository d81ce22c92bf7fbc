"""How much one chunk of a command may take, and the statements by which it goes on behind the chunk before."""

import time
from typing import Final

from sqlalchemy import TextClause, text

BEHIND: Final = "fingerprint > :after"
UNMARKED: Final = "coalesce(after_command, 0) < :number"
"""A command touches no row that was written behind it (`urls.after_command`)."""

ROWS_A_CHUNK = 5_000
STEP = 500
"""Rows that one statement looks at, however few of them it changes."""

CHUNK_S = 0.05


class Chunk:
    """What one transaction may still take of a command: rows and time. No transaction holds the one writer of SQLite,
    or the locks of PostgreSQL, for longer than a moment."""

    def __init__(self) -> None:
        self._rows = ROWS_A_CHUNK
        self._until = time.monotonic() + CHUNK_S

    @property
    def step(self) -> int:
        """Rows that the next statement may look at, at least one."""
        return max(1, min(STEP, self._rows))

    def take(self, rows: int) -> None:
        """Count rows that a statement has looked at."""
        self._rows -= rows

    @property
    def full(self) -> bool:
        """Whether the rest is left to the next transaction."""
        return self._rows <= 0 or time.monotonic() >= self._until


def last_of(which: str, table: str = "urls") -> TextClause:
    """Return a query of the last of `step` URLs behind `after` for which `which` holds; it finds none if there are
    fewer."""
    return text(
        f"SELECT fingerprint FROM {table} WHERE {which} AND {BEHIND} ORDER BY fingerprint LIMIT 1 OFFSET :others"
    )


HOSTS: Final = {
    dialect: text(
        "SELECT q.host_id, (SELECT h.host FROM hosts h WHERE h.host_id = q.host_id) AS host,"
        f" q.queued + q.waiting AS open FROM queues q{index} WHERE q.crawl_id = :crawl_id"
        " AND q.partition = :partition AND q.host_id >= :first"
        " ORDER BY q.host_id LIMIT :most"
    )
    # SQLite, which keeps no statistics here, prefers the primary key: it then reads the queues of all partitions.
    for dialect, index in {"sqlite": " INDEXED BY queues_partition", "postgresql": ""}.items()
}
"""The hosts that a crawl has in a partition, in the order of their numbers."""
