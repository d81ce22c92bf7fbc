"""Write the transactions of an owned partition, under one term of its owner."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from api.frontier.leases import TrackedLease
from api.frontier.outcome_batch import OutcomeBatch
from api.frontier.ownership import Ownership
from api.frontier.stats import OwnerStats, TransactionKind
from shared.domain.errors import OwnershipLost, Permanent, ResourceFull, Transient, Unusable
from shared.domain.frontier.states import Fence, Position, UrlEnd
from shared.domain.frontier.store_model import Changes, LeaseRow, QueueEnd, QueueRow
from shared.domain.ids import CrawlId, HostId
from shared.ports.clock import Clock
from shared.ports.store import Store
from shared.wire.messages import Outcome, UrlOutcome


class PartitionWriter:
    """Writes to SQL for one partition, one transaction at a time, and updates its state in memory (`own`) after each.

    Each transaction begins with a fence: a condition that fails once another owner has taken over.
    """

    def __init__(
        self,
        own: Ownership,
        fence: Fence,
        *,
        store: Store,
        clock: Clock,
        stats: OwnerStats,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a writer for a claimed partition.

        `applied`: called after each transaction that moved the partition's position in the stream of reports.
        """
        self.own = own
        self.fence = fence
        self.store = store
        self.clock = clock
        self.stats = stats
        self._applied = applied
        self._lock = asyncio.Lock()
        self._proving = asyncio.Lock()
        self._proofs_begun = 0
        self._proven = (0, False)
        self._ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<PartitionWriter v={self.fence.version} {self.own!r}>"

    @asynccontextmanager
    async def writing(self, work: TransactionKind = TransactionKind.UPKEEP) -> AsyncIterator[Fence]:
        """Lock the partition while the `with` block runs one transaction, and yield the transaction's fence.

        The block must call `committed` right after the commit. `work`: what the transaction is for, in metrics.

        If Permanent or ResourceFull leaves the `with` block, nothing was written. After any other exception the memory
        may differ from SQL, so the ownership ends (`ended`).
        """
        async with self._lock:
            fence, begun = self.fence, self.clock.elapsed()
            try:
                yield fence
            except (Permanent, ResourceFull):
                raise
            except BaseException as error:
                self._end(error)
                raise
            if self.fence is not fence:
                self.stats.transactions[work].observe(self.clock.elapsed() - begun)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Let no transaction run while the `with` block runs. Inside the block, memory and SQL have the same state."""
        async with self._lock:
            yield

    @property
    def over(self) -> bool:
        """True if the state in memory (`own`) may no longer be used, for example because another owner took over.

        The owner will stop, or load a new state from SQL.
        """
        return self._ended.done()

    def committed(self, position: Position | None = None) -> None:
        """Record that the current transaction has committed, and wake dispatch. The next transaction gets a new fence.

        `position`: the partition's new position in the stream of reports. None: the transaction did not move it.
        """
        self.fence = self.fence.next()
        if position is not None:
            self.own.move(position)
            self._applied()
        self.own.work.notify()

    async def apply(self, changes: Changes, position: Position | None = None) -> Sequence[QueueEnd]:
        """Write the changes to SQL, and record the commit. Call it inside `writing`.

        The same transaction gives up the queues in `changes.give_up`: their URLs get the state FAILED or EXCLUDED. One
        call gives up a limited number of URLs. Return the queues that may have more URLs to give up.
        """
        unfinished = await self.store.apply(self.fence, position or self.own.position, changes)
        self.own.outdate_page_counts(changes)
        self.committed(position)
        return unfinished

    def batch(self, rng01: Callable[[], float] = lambda: 0.5, *, marked: bool = True) -> OutcomeBatch:
        """Return an empty batch of outcomes for the present time.

        - `rng01`: returns a random number in 0..1, for the lengths of back-offs.
        - `marked`: True if the batch writes rows that are newer than the commands in progress, such as rows of fetched
          URLs. The commands then skip these rows. False: the commands may still change the rows, for example rows of
          URLs that only return to the queue.
        """
        own, changes = self.own, self.own.new_changes() if marked else Changes()
        now, now_ms = self.clock.elapsed(), self.clock.unix_ms()
        places = (own.leases, own.hosts, own.crawls, own.settings, now, now_ms, rng01, changes)
        return OutcomeBatch(*places, own.recrawls, own.partition)

    async def commit(self, batch: OutcomeBatch, position: Position | None = None) -> Sequence[QueueEnd]:
        """Write a batch of outcomes to SQL, then update the state in memory. Call it inside `writing`.

        The same transaction gives up the queues of hosts that were found unreachable: their URLs get the state FAILED.
        One call gives up a limited number of URLs. Return the queues that may have more URLs to give up.
        """
        unfinished = await self.store.apply(self.fence, position or self.own.position, batch.changes)
        batch.commit()
        self.own.outdate_page_counts(batch.changes)
        self.committed(position)
        return unfinished

    async def judge(self, leases: Iterable[TrackedLease]) -> None:
        """Judge the URLs of these leases by the present scope of their crawls, each lease once per revision.

        The result is in `TrackedLease.outside`. A lease stays as it is if its crawl is unknown or has a spec that
        cannot be used.
        """
        crawls = self.own.crawls
        found = [(held, crawl) for held in leases if (crawl := crawls.find(held.row.crawl_id)) is not None]
        found = [(held, crawl) for held, crawl in found if crawl.refused is None and held.judged_at < crawl.revision]
        if not found:
            return
        rows = [held.row for held, _ in found]
        via = await self.store.via_hosts([(row.crawl_id, row.host_id, list(row.urls)) for row in rows])
        for (held, crawl), via_hosts in zip(found, via, strict=True):
            held.judge(crawl.scope, via_hosts)
            held.judged_at = crawl.revision

    async def exclude_covered(self, unbegun: Iterable[TrackedLease], max_leases: int) -> bool:
        """Exclude the URLs of these leases that an exclusion or the scope forbids. Return True if there were any.

        - `unbegun`: leases that no worker has begun. A lease whose URLs are all forbidden ends.
        - `max_leases`: the maximum number of leases that one call changes.

        Call it inside `writing`.
        """
        exclusions = self.own.crawls.exclusions
        covered = [(held, reasons) for held in unbegun if (reasons := held.excluded(exclusions))][:max_leases]
        if not covered:
            return False
        await self.look_up(held.row.crawl_id for held, _ in covered)
        batch = self.batch(marked=False)
        for held, reasons in covered:
            row, now_ms = held.row, self.clock.unix_ms()
            results = [UrlOutcome(key, UrlEnd.DENIED, now_ms, reason=reason) for key, reason in reasons.items()]
            batch.outcome(Outcome(row.lease_id, row.crawl_id, 0, row.host_id, results))
            if len(reasons) == len(row.urls):
                batch.end(held)
        await self.commit(batch)
        self.stats.changed(batch.changes, self.own.crawls, self.clock.elapsed())
        return True

    async def still_owner(self) -> bool:
        """Return True if SQL names this term as the partition's owner, by a read that began after the call.

        Concurrent callers share one query, so many workers that ask at once cost one query.
        """
        begun = self._proofs_begun
        async with self._proving:
            if self._proven[0] <= begun:
                self._proofs_begun += 1
                number = self._proofs_begun
                self._proven = (number, await self.store.still_owner(self.fence))
            return self._proven[1]

    async def applied_outcomes(self, through: int) -> bool:
        """Wait until outcomes up to sequence `through` are applied, for at most `barrier_s`.

        Return True if they are.
        """
        own = self.own
        try:
            async with asyncio.timeout(own.settings.barrier_s):
                while own.position.outcome_seq < through:
                    await own.moved.changed(own.moved.revision)
        except TimeoutError:
            return False
        return True

    async def ended(self) -> None:
        """Wait until the ownership ends, and raise the error that ended it.

        It ends when a transaction fails at its fence, or when it is unknown whether a transaction has committed.
        """
        raise await asyncio.shield(self._ended)

    def _end(self, error: BaseException) -> None:
        if not self._ended.done():
            known = isinstance(error, Transient | OwnershipLost | Unusable)
            self._ended.set_result(error if known else Transient(f"a transaction was broken off: {error!r}"))

    async def look_up(self, crawl_ids: Iterable[CrawlId]) -> None:
        """Read the rows of these crawls from SQL, unless they are loaded or were looked up already.

        After that, `DispatchCrawls.find` returns all of them that exist.
        """
        unknown = self.own.crawls.unknown(crawl_ids)
        if unknown:
            self.own.crawls.looked_up(await self.store.crawl_rows(unknown))

    async def load_page_counts(self, crawl_ids: Iterable[CrawlId]) -> None:
        """Load the page counts of these crawls from SQL, such as 50 pages that change about once a day.

        Crawls that use no page counts are skipped, as are crawls whose page counts in memory are still valid.
        """
        for crawl in self.own.needing_page_counts(crawl_ids):
            counts = await self.store.page_counts(crawl.crawl_id, self.own.partition)
            self.own.set_page_counts(crawl, counts, self.clock.unix_ms())

    async def read_contexts(self, rows: Sequence[LeaseRow]) -> None:
        """Add to new leases the seed contexts of their URLs. Read nothing for a crawl whose seeds have no context."""
        known, partition = self.own.with_contexts, self.own.partition
        if unread := {row.crawl_id for row in rows} - known.keys():
            used = await self.store.crawls_with_contexts(partition, unread)
            known.update({crawl_id: crawl_id in used for crawl_id in unread})
        some = [row for row in rows if known[row.crawl_id]]
        if some:
            found = await self.store.contexts_of([(row.crawl_id, row.host_id, row.order) for row in some])
            for row, contexts in zip(some, found, strict=True):
                row.contexts = contexts

    async def load_queues(self, keys: Sequence[tuple[CrawlId, HostId]], *, pinned: bool = False) -> None:
        """Read these queues from SQL, and add them to the queues in memory.

        `pinned`: set this only if each of the queues has a lease out. The queues are then added even if memory has its
        maximum of hosts.
        """
        if keys:
            self.offer(await self.store.queue_rows(keys), pinned=pinned)

    def offer(self, rows: Iterable[QueueRow], *, pinned: bool = False) -> None:
        """Add queues, from their rows just read from SQL, to the queues in memory.

        Queues that cannot be added are left out (`Ownership.offer`), such as queues of a crawl that is being deleted.

        `pinned`: set this only if each of the queues has a lease out. The queues are then added even if memory has its
        maximum of hosts.
        """
        now, now_ms = self.clock.elapsed(), self.clock.unix_ms()
        for row in rows:
            self.own.offer(row, now, now_ms, pinned=pinned)
