"""The store: runs the transactions of the other modules of this package on an engine's executor.

SQLite has one writer on one file (engine/sqlite.py), PostgreSQL has connection pools (engine/postgres.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from shared.adapters.sql.engine import fence
from shared.adapters.sql.engine.migrate import upgrade_sqlite
from shared.adapters.sql.engine.point_query import PointQuery
from shared.adapters.sql.engine.sqlite import SqliteThreads, Synchronous
from shared.adapters.sql.frontier import apply as applying
from shared.adapters.sql.frontier import (
    commands,
    crawl_gc,
    dead_letters,
    discoveries,
    leader_state,
    leasing,
    purge_holds,
)
from shared.adapters.sql.frontier import crawl_rows as crawls
from shared.domain.crawl.spec import Budget
from shared.domain.frontier.states import CrawlState, Fence, Position
from shared.domain.frontier.store_model import (
    Changes,
    Claimed,
    CommandRun,
    Counters,
    CrawlRow,
    DiscoveryResult,
    DiscoveryTransaction,
    LeaseRequest,
    LeaseRow,
    MessageDeadLetter,
    QueueEnd,
    QueueRow,
)
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, Revision, Term
from shared.ports.store import NO_BUDGETS, NO_MARKS

T = TypeVar("T")


class Executor(Protocol):
    """Runs transactions atomically: committed if it returns, nothing written if it raises.

    After Transient the transaction may have been committed.
    """

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        """Run and commit a transaction. It may run more than once, so it must change only the database."""
        ...

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a snapshot taken after this call."""
        ...

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]:
        """Find rows by their keys, on a snapshot taken after this call."""
        ...

    def out_of_room(self) -> bool:
        """Return True if the database recently refused a transaction because its disk is full."""
        ...

    def silent_s(self) -> float:
        """Return the seconds since the database last answered a transaction or query."""
        ...

    async def close(self) -> None: ...


class SqlStore:
    """`shared.ports.store.Store` on a SQL database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def executor(self) -> Executor:
        """The executor, for other code that runs transactions on the same database."""
        return self._executor

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._executor!r}>"

    async def open_cluster(self, partitions: int, public_suffixes: str, now_ms: int) -> tuple[int, str]:
        return await self._executor.write(lambda c: crawls.open_cluster(c, partitions, public_suffixes, now_ms))

    async def public_suffixes(self) -> str:
        return await self._executor.read(crawls.public_suffixes)

    async def newest_term(self) -> Term:
        return await self._executor.read(crawls.newest_term)

    async def put_crawl(self, name: str, spec: str, now_ms: int) -> tuple[CrawlRow, bool]:
        return await self._executor.write(lambda c: crawls.put_crawl(c, name, spec, now_ms))

    async def crawl(self, crawl_id: CrawlId) -> CrawlRow | None:
        return await self._executor.read(lambda c: crawls.crawl(c, crawl_id))

    async def worked_on(self) -> Sequence[CrawlRow]:
        return await self._executor.read(crawls.worked_on)

    async def crawl_rows(self, crawl_ids: Collection[CrawlId]) -> Sequence[CrawlRow]:
        return await self._executor.read(lambda c: crawls.rows_of(c, crawl_ids)) if crawl_ids else ()

    async def living(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        return await self._executor.read(lambda c: crawls.living(c, crawl_ids)) if crawl_ids else ()

    async def begin_run(self, crawl_id: CrawlId, now_ms: int, *, unblock: bool) -> None:
        await self._executor.write(lambda c: crawls.begin_run(c, crawl_id, now_ms, unblock=unblock))

    async def set_state(self, crawl_id: CrawlId, state: CrawlState, reason: str | None, now_ms: int) -> None:
        await self._executor.write(lambda c: crawls.set_state(c, crawl_id, state, reason, now_ms))

    async def add_active_time(self, crawl_id: CrawlId, ms: int) -> None:
        await self._executor.write(lambda c: crawls.add_active_time(c, crawl_id, ms))

    async def add_active_time_to_all(self, ms: int, *, held: Collection[CrawlId]) -> None:
        await self._executor.write(lambda c: crawls.add_active_time_to_all(c, ms, held))

    async def counters(self, crawl_id: CrawlId) -> Counters:
        return await self._executor.read(lambda c: crawls.counters(c, crawl_id))

    async def counters_by_partition(
        self, crawl_ids: Collection[CrawlId]
    ) -> Mapping[CrawlId, Mapping[Partition, Counters]]:
        return await self._executor.read(lambda c: crawls.counters_by_partition(c, crawl_ids))

    async def counters_in(
        self, crawl_ids: Collection[CrawlId], partitions: Collection[Partition]
    ) -> Mapping[CrawlId, Counters]:
        return await self._executor.read(lambda c: crawls.counters_in(c, crawl_ids, partitions))

    async def tallies(self, crawl_id: CrawlId) -> dict[str, dict[str, int]]:
        return await self._executor.read(lambda c: crawls.tallies(c, crawl_id))

    async def epoch(self) -> int:
        return await self._executor.read(leader_state.epoch)

    async def raise_epoch(self, at_least: int) -> int:
        return await self._executor.write(lambda c: leader_state.raise_epoch(c, at_least))

    async def positions(self) -> Mapping[Partition, Position]:
        return await self._executor.read(leader_state.positions)

    async def report_holds(self) -> Mapping[str, int]:
        return await self._executor.read(purge_holds.standing)

    async def advance_crawl(
        self,
        crawl_id: CrawlId,
        revision: Revision,
        before: CrawlState,
        after: CrawlState,
        reason: str | None,
        now_ms: int,
        counted: int | None = None,
    ) -> bool:
        return await self._executor.write(
            lambda c: leader_state.advance_crawl(c, crawl_id, revision, before, after, reason, now_ms, counted)
        )

    async def uncollected(self) -> Mapping[CrawlId, Sequence[Partition]]:
        return await self._executor.read(crawl_gc.uncollected)

    async def collected(self, crawl_id: CrawlId, now_ms: int) -> None:
        await self._executor.write(lambda c: crawl_gc.collected(c, crawl_id, now_ms))

    async def reopen(self, after: CrawlId) -> tuple[Sequence[CrawlId], CrawlId | None]:
        candidates, further = await self._executor.read(lambda c: crawl_gc.to_reopen(c, after))
        return await self._executor.write(lambda c: crawl_gc.reopen(c, candidates)) if candidates else [], further

    async def claim(self, partition: Partition, term: Term) -> Claimed:
        await self._executor.write(lambda c: fence.take_over(c, partition, term))
        return await self._executor.read(lambda c: leasing.load(c, partition, term))

    async def reload(self, partition: Partition, term: Term) -> Claimed:
        def resume(connection: Connection) -> Claimed:
            fence.resume(connection, partition, term)
            return leasing.load(connection, partition, term)

        return await self._executor.write(resume)

    async def apply(self, fence: Fence, position: Position, changes: Changes) -> Sequence[QueueEnd]:
        return await self._executor.write(lambda c: applying.apply(c, fence, position, changes))

    async def apply_found(
        self,
        fence: Fence,
        position: Position,
        batch: DiscoveryTransaction,
        *,
        next_host: int,
        max_depth: dict[CrawlId, int | None],
        now_ms: int,
        marks: Mapping[CrawlId, int] = NO_MARKS,
    ) -> DiscoveryResult:
        return await self._executor.write(
            lambda c: discoveries.apply_found(
                c, fence, position, batch, next_host=next_host, max_depth=max_depth, now_ms=now_ms, marks=marks
            )
        )

    async def accept_command(
        self, fence: Fence, position: Position, command: CommandRun, now_ms: int
    ) -> CommandRun | None:
        return await self._executor.write(lambda c: commands.accept(c, fence, position, command, now_ms))

    async def run_command(
        self, fence: Fence, command: CommandRun, now_ms: int, *, sent: Sequence[int] = (), upto: int | None = None
    ) -> int | None:
        return await self._executor.write(lambda c: commands.run_chunk(c, fence, command, now_ms, sent, upto))

    async def crawls_with_commands(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        return await self._executor.read(lambda c: commands.crawls_with_commands(c, crawl_ids)) if crawl_ids else ()

    async def message_letters(self, command: CommandRun, max_count: int) -> Sequence[MessageDeadLetter]:
        return await self._executor.read(lambda c: dead_letters.message_letters(c, command, max_count))

    async def dispatch(
        self,
        fence: Fence,
        next_lease: int,
        requests: Sequence[LeaseRequest],
        now_ms: int,
        budgets: Mapping[CrawlId, Budget] = NO_BUDGETS,
    ) -> Sequence[LeaseRow]:
        return await self._executor.write(lambda c: leasing.dispatch(c, fence, next_lease, requests, now_ms, budgets))

    async def grant(self, fence: Fence, leases: Sequence[LeaseId]) -> None:
        await self._executor.write(lambda c: leasing.grant(c, fence, leases))

    def silent_s(self) -> float:
        return self._executor.silent_s()

    async def still_owner(self, fence: Fence) -> bool:
        return await self._executor.read(lambda c: leasing.still_owner(c, fence))

    async def ready_queues(
        self, partition: Partition, crawl_id: CrawlId, max_count: int, *, soon_ms: int
    ) -> Sequence[QueueRow]:
        return await self._executor.read(lambda c: leasing.ready_queues(c, partition, crawl_id, max_count, soon_ms))

    async def queue_rows(self, keys: Sequence[tuple[CrawlId, HostId]]) -> Sequence[QueueRow]:
        return await self._executor.read(lambda c: leasing.queue_rows(c, keys))

    async def promote(self, fence: Fence, crawl_id: CrawlId, host_id: HostId, now_ms: int) -> int:
        return await self._executor.write(lambda c: leasing.promote(c, fence, crawl_id, host_id, now_ms))

    async def close(self) -> None:
        await self._executor.close()


class SqliteStore(SqlStore):
    """The store on a SQLite file in WAL mode."""

    @classmethod
    async def open(cls, path: Path, *, synchronous: Synchronous = "NORMAL") -> "SqliteStore":
        """Open the file; make it and migrate it to the newest schema if needed. Raise Unusable if this fails."""
        threads = SqliteThreads(path, synchronous=synchronous)
        try:
            await threads.migrate(upgrade_sqlite)
        except BaseException:
            await threads.close()
            raise
        return cls(threads)
