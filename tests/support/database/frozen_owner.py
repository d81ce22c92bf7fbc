"""An owner that stops in the middle of a transaction on PostgreSQL, as a process does that the kernel stops."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from shared.adapters.sql.engine.postgres import PostgresPool, PostgresSettings
from shared.adapters.sql.frontier.apply import bury
from shared.domain.frontier.store_model import DeadLetterRow
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables
from tests.support.engines.postgres import PATIENT, PostgresLook

LETTER = DeadLetterRow(None, "url", NOW_MS, "kept by the owner of the partition")


class Stopped:
    """A process that stops in the middle of a transaction: a loop on a thread, blocked until `go_on`."""

    def __init__(
        self,
        url: str,
        before: Callable[[Connection], object],
        after: Callable[[Connection], object],
        settings: PostgresSettings | None,
    ) -> None:
        self._pool = PostgresPool(url, settings or PATIENT)
        self._before, self._after = before, after
        self._there, self._on = threading.Event(), threading.Event()
        self.outcome: BaseException | str = "under way"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def there(self) -> None:
        """Wait until it has done what it does before it stops."""
        assert await asyncio.to_thread(self._there.wait, 60)

    async def go_on(self) -> BaseException | str:
        """Let it go on; how its transaction ended."""
        self._on.set()
        await asyncio.to_thread(self._thread.join)
        return self.outcome

    def close(self) -> None:
        self._on.set()
        self._thread.join()

    async def _run(self) -> None:
        try:
            await self._pool.write(self._transaction)
            self.outcome = "committed"
        except Exception as error:
            self.outcome = error
        finally:
            await self._pool.close()

    def _transaction(self, connection: Connection) -> None:
        self._before(connection)
        self._there.set()
        assert self._on.wait(60)
        self._after(connection)


@contextmanager
def stopped(
    url: str,
    before: Callable[[Connection], object],
    after: Callable[[Connection], object],
    settings: PostgresSettings | None = None,
) -> Iterator[Stopped]:
    process = Stopped(url, before, after, settings)
    try:
        yield process
    finally:
        process.close()


def letters(t: Tables) -> int:
    count = t.value("SELECT count(*) FROM dead_letters")
    assert isinstance(count, int)
    return count


def buries(connection: Connection) -> None:
    bury(connection, PARTITION, LETTER)


async def waiting_for_a_lock(t: Tables) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not t.rows(waiting):  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0)


class WritesHeld:
    """Owners' transactions that wait in the middle, behind a lock of ours; see `writes_held`."""

    def __init__(self, holder: PostgresLook, look: PostgresLook) -> None:
        self._holder = holder
        self._look = look

    def wait_blocked(self, more_than: int) -> None:
        """Wait until more transactions than that have done something, and wait for the lock now."""
        self._wait(
            f"SELECT 1 WHERE ({_SESSIONS} AND wait_event_type = 'Lock' AND backend_xid IS NOT NULL) > {more_than}"
        )

    def release(self) -> None:
        """Let them go on."""
        self._holder("ROLLBACK")

    def wait_idle_in_transaction(self) -> None:
        """Wait until a session has been silent inside a transaction for longer than any live one."""
        self._wait(
            f"SELECT 1 WHERE ({_SESSIONS} AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
            " AND clock_timestamp() - state_change > interval '2 s') > 0"
        )

    def _wait(self, condition: str) -> None:
        until = time.monotonic() + 30
        while not self._look(condition):
            assert time.monotonic() < until, self._look("SELECT state, wait_event, query FROM pg_stat_activity")
            time.sleep(0.01)


_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'orbweaver'"
)


@contextmanager
def writes_held(url: str, *, more_than: int) -> Iterator[WritesHeld]:
    """Until `release`, or the block's end, more than so many owners' transactions are past their fences and can go no
    further."""
    holder, look = PostgresLook(url), PostgresLook(url)
    try:
        held = WritesHeld(holder, look)
        holder("BEGIN")
        holder("LOCK TABLE urls IN EXCLUSIVE MODE")
        held.wait_blocked(more_than)
        yield held
    finally:
        holder.close()
        look.close()
