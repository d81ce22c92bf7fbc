"""The store of the frontier on SQL: its methods run the transactions of the other modules of this package.

SQLite has one writer on one file (engine/sqlite.py), PostgreSQL has connection pools (engine/postgres.py).
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from sqlalchemy import Connection

from shared.adapters.sql.engine import fence, stored_crawls
from shared.adapters.sql.engine.executor import Executor, SqlAdapter, bound, polled, read, write
from shared.adapters.sql.engine.migrate import upgrade_sqlite
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
    rediscover,
    rescope,
    revisits,
    seed_contexts,
    seed_deletion,
)
from shared.adapters.sql.frontier import crawl_changes as changes
from shared.adapters.sql.frontier import crawl_rows as crawls
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.store_model import Claimed
from shared.domain.ids import CrawlId, Partition, Term


class SqlStore(SqlAdapter):
    """The frontier's tables in a SQL database, for owners and the leader (`shared.ports.store.Store`)."""

    @property
    def executor(self) -> Executor:
        """The executor that runs the store's transactions. Other code may use it for the same database."""
        return self._run

    open_cluster = write(crawls.open_cluster)
    public_suffixes = read(crawls.public_suffixes)
    newest_term = read(crawls.newest_term)
    put_crawl = write(crawls.put_crawl)
    crawl = read(crawls.crawl)
    worked_on = read(crawls.worked_on)
    begin_run = write(crawls.begin_run)
    set_state = write(crawls.set_state)
    add_active_time = write(crawls.add_active_time)
    start_active_time = write(changes.start_active_time)
    add_pool_time = write(changes.add_pool_time)
    crawl_changes = read(changes.since)
    counters = read(stored_crawls.counters)
    counters_by_partition = read(crawls.counters_by_partition)
    counters_in = read(crawls.counters_in)
    tallies = read(stored_crawls.tallies)
    due_before = read(revisits.due_before)
    waits_for_retry = read(revisits.waits_for_retry)
    page_counts = read(revisits.page_counts)
    scope_revision = read(rescope.scope_revision)
    host_names = read(rescope.host_names)
    via_hosts = read(rescope.via_hosts)
    crawls_with_contexts = read(seed_contexts.crawls_with_contexts)
    contexts_of = read(seed_contexts.contexts_of)
    widened_revision = read(rediscover.widened_revision)
    readable_pages = read(rediscover.readable_pages)
    leased_seeds = read(seed_deletion.leased_seeds)

    async def crawl_rows(self, crawl_ids: Collection[CrawlId]) -> Sequence[CrawlRow]:
        return await self._run.read(bound(crawls.rows_of, crawl_ids)) if crawl_ids else ()

    async def living(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        return await self._run.read(bound(crawls.living, crawl_ids)) if crawl_ids else ()

    epoch = polled(leader_state.epoch)
    raise_epoch = write(leader_state.raise_epoch)
    positions = read(leader_state.positions)
    report_holds = read(purge_holds.beats)
    advance_crawl = write(leader_state.advance_crawl)
    uncollected = polled(crawl_gc.uncollected)
    collected = write(crawl_gc.collected)

    async def reopen(
        self, after: CrawlId, max_count: int, among: Collection[CrawlId] = ()
    ) -> tuple[Sequence[CrawlId], CrawlId | None]:
        candidates, further = await self._poll(crawl_gc.to_reopen, after, max_count, among)
        return await self._run.write(bound(crawl_gc.reopen, candidates)) if candidates else [], further

    async def claim(self, partition: Partition, term: Term) -> Claimed:
        await self._run.write(bound(fence.take_over, partition, term))
        return await self._run.read(bound(leasing.load, partition, term))

    async def reload(self, partition: Partition, term: Term) -> Claimed:
        def resume(connection: Connection) -> Claimed:
            fence.resume(connection, partition, term)
            return leasing.load(connection, partition, term)

        return await self._run.write(resume)

    apply = write(applying.apply)
    apply_found = write(discoveries.apply_found)
    accept_command = write(commands.accept)
    run_command = write(commands.run_chunk)
    message_letters = read(dead_letters.message_letters)
    dispatch = write(leasing.dispatch)
    grant = write(leasing.grant)
    still_owner = read(leasing.still_owner)
    queues_by_readiness = read(leasing.queues_by_readiness)
    queue_rows = read(leasing.queue_rows)
    promote = write(leasing.promote)

    async def crawls_with_commands(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        return await self._run.read(bound(commands.crawls_with_commands, crawl_ids)) if crawl_ids else ()

    async def data_version(self) -> int | None:
        return await self._run.data_version()

    def silent_s(self) -> float:
        return self._run.silent_s()

    async def close(self) -> None:
        await self._run.close()


class SqliteStore(SqlStore):
    """The frontier's tables in a SQLite file in WAL mode (`shared.ports.store.Store`)."""

    @classmethod
    async def open(cls, path: Path, *, synchronous: Synchronous = "NORMAL") -> "SqliteStore":
        """Open the SQLite file, create it if it is missing, and migrate it to the newest schema.

        `synchronous`: with NORMAL, commits survive the end of processes. With FULL they also survive a power failure.
        Raise Unusable if the file cannot be opened, or its schema is unknown.
        """
        threads = SqliteThreads(path, synchronous=synchronous)
        try:
            await threads.migrate(upgrade_sqlite)
        except BaseException:
            await threads.close()
            raise
        return cls(threads)
