"""The limits of a chunk, which is one transaction of an operator's command, and SQL that chunks share."""

import time
from typing import Final

from sqlalchemy import TextClause, text

BEHIND: Final = "fingerprint > :after"
UNMARKED: Final = "coalesce(after_command, 0) < :number"
"""The SQL condition for rows of `urls` that the command with the number `:number` may change.

While commands are in progress, an owner marks each row that it writes: `after_command` gets the number of the newest
command. A command skips rows that are marked with its own number or a greater one."""

ROWS_A_CHUNK = 5_000
STEP = 500
"""One statement reads at most this many rows, even if it changes only a few."""

CHUNK_S = 0.05


class Chunk:
    """The number of rows and the time that one chunk may still use. A chunk is one transaction of a command.

    Both are limited so that no transaction holds SQLite's one writer, or PostgreSQL's locks, for long.
    """

    def __init__(self) -> None:
        self._rows = ROWS_A_CHUNK
        self._until = time.monotonic() + CHUNK_S

    @property
    def step(self) -> int:
        """The number of rows that the next statement may read: at least 1, at most STEP."""
        return max(1, min(STEP, self._rows))

    def take(self, rows: int) -> None:
        """Subtract `rows`, the number of rows that a statement has read, from the rows that are left."""
        self._rows -= rows

    @property
    def full(self) -> bool:
        """True if this chunk may read no more rows or has no time left. Then the command continues in a new chunk."""
        return self._rows <= 0 or time.monotonic() >= self._until


def step_end_query(which: str, table: str = "urls") -> TextClause:
    """Return a query that finds where the next step of a command ends: the fingerprint of the last URL of the step.

    A step is a fixed number of URLs, such as 500: the first URLs after the fingerprint `:after`, in the order of their
    fingerprints. `:others` is the number of URLs of the step without the last one: 499 for a step of 500 URLs. If fewer
    than 500 URLs are left, the query returns no row.

    - `which`: an SQL condition, which selects the URLs.
    - `table`: the table of the URLs.
    """
    return text(
        f"SELECT fingerprint FROM {table} WHERE {which} AND {BEHIND} ORDER BY fingerprint LIMIT 1 OFFSET :others"
    )


HOSTS: Final = {
    dialect: text(
        "SELECT q.host_id, (SELECT h.host FROM hosts h WHERE h.host_id = q.host_id) AS host,"
        f" q.queued + q.waiting AS open FROM queues q{index} WHERE q.crawl_id = :crawl_id"
        " AND q.partition = :partition AND q.host_id >= :first"
        " ORDER BY q.host_id LIMIT :max_count"
    )
    # SQLite has no statistics here and prefers the primary key, which would read the queues of all partitions.
    for dialect, index in {"sqlite": " INDEXED BY queues_partition", "postgresql": ""}.items()
}
"""Queries, by SQL dialect, for a crawl's hosts in a partition: at most `:max_count`, from the id `:first` on, ordered
by id. `open` is the number of URLs of the host that are queued or waiting."""
