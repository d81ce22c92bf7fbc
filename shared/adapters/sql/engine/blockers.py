"""Ends PostgreSQL sessions whose client has stopped inside a statement and that block other transactions.

A client stops inside a statement if it sends only some of the statement's messages, or does not read the result.
PostgreSQL before version 17 does not end the session of such a client. So a master whose transaction waits for the
session ends it. The client must have been silent for `idle_in_transaction_s` seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy import Connection, text

from shared.domain.errors import Permanent, Transient, Unusable

log = structlog.get_logger(__name__)

OWNERS: Final = "orbweaver"
"""The application name that PostgreSQL shows for the sessions of masters."""

PATIENT: Final = "orbweaver-long"
"""The application name of sessions for work of any length, such as a backup. This module never ends such a session."""

_LOOK_EVERY_S: Final = 0.5

# Such a session is `active` and waits for its client. `idle_in_transaction_session_timeout` needs an idle session, and
# `statement_timeout` is suspended while the server waits for a message. `transaction_timeout` came with PostgreSQL 17.
_END_BLOCKERS: Final = text(
    "SELECT b.pid, b.wait_event, extract(epoch FROM clock_timestamp() - b.state_change) AS still_s,"
    " pg_terminate_backend(b.pid) AS ended FROM pg_stat_activity b"
    " WHERE b.datname = current_database() AND b.usename = current_user AND b.application_name = :owners"
    " AND b.state = 'active' AND b.wait_event IN ('ClientRead', 'ClientWrite')"
    " AND b.state_change < clock_timestamp() - make_interval(secs => :limit_s)"
    " AND b.pid IN (SELECT unnest(pg_blocking_pids(w.pid)) FROM pg_stat_activity w"
    " WHERE w.datname = current_database() AND w.application_name = :owners AND w.wait_event_type = 'Lock')"
)


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A PostgreSQL session that `end_blockers` ended. `still_s`: the seconds since its client's last message."""

    pid: int
    still_s: float


def end_blockers(connection: Connection, limit_s: float) -> list[EndedSession]:
    """End the sessions of stopped masters that block another master. Return the ended sessions.

    A master counts as stopped if it has been silent inside a statement for `limit_s` seconds.
    """
    rows = connection.execute(_END_BLOCKERS, {"owners": OWNERS, "limit_s": limit_s}).all()
    return [EndedSession(row.pid, float(row.still_s)) for row in rows if row.ended]


class Blockers:
    """Ends PostgreSQL sessions that block masters, whenever a transaction of this master takes too long.

    - `limit_s`: a transaction takes too long if it runs longer than this number of seconds. Only transactions inside a
      `with watched()` block are timed.
    - `end`: a function that ends the blocking sessions once and returns the ended sessions. This class calls `end`
      every half second while a transaction takes too long.
    """

    def __init__(self, end: Callable[[], Awaitable[list[EndedSession]]], limit_s: float) -> None:
        self._end = end
        self._limit_s = limit_s
        self._overdue: set[object] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the transaction in the `with` block.

        If it runs longer than `limit_s` seconds, blocking sessions are ended every half second until the block exits.
        """
        mark = object()
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._begin, mark)
        try:
            yield
        finally:
            timer.cancel()
            self._overdue.discard(mark)

    async def close(self) -> None:
        """Stop the task that looks for blocking sessions."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _begin(self, mark: object) -> None:
        self._overdue.add(mark)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._end_blockers())

    async def _end_blockers(self) -> None:
        while self._overdue:
            try:
                for ended in await self._end():
                    log.warning("postgres_session.ended", pid=ended.pid, idle_s=round(ended.still_s, 1))
            except (Transient, Permanent, Unusable) as error:
                log.warning("postgres_check.delayed", error=str(error))
            await asyncio.sleep(_LOOK_EVERY_S)
