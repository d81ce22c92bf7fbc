"""The state of an owned partition under one term, and the context manager for its transactions.

Invariant: the fields mirror the last committed transaction, and change only inside `writing`, after a commit.
A transaction whose fate is unknown ends the ownership (`Transient` out of `writing`): the owner loads it again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from api.frontier.capacity import PoolCapacity
from api.frontier.commands import Commands
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.host_queues import HostQueues
from api.frontier.hosts import facts_of
from api.frontier.leases import Leases
from api.frontier.stats import OwnerStats, TransactionKind
from shared.domain.errors import OwnershipLost, Permanent, ResourceFull, Transient, Unusable
from shared.domain.frontier.states import Fence, Position
from shared.domain.frontier.store_model import Changes, Claimed, QueueRow
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, numbered
from shared.ports.broker import Broker, ReportKind, ReportReader
from shared.ports.clock import Clock
from shared.ports.store import Store


@dataclass(frozen=True, slots=True)
class FrontierSettings:
    """Limits of an owner, in seconds and counts.

    - `grant_s`: how long a worker may fetch without asking again.
    - `longest_grant_s`: how long a grant of an earlier owner may last, if that is longer.
    - `ack_wait_s`: the time after which the broker delivers an unacknowledged shard again.
    - `republish_s`: how old a published shard must be before it is published again.
    - `max_hosts`: hosts kept in memory per partition. The other hosts stay in SQL.
    - `batch`, `batch_bytes`: the most reports of one transaction, by count and by size.
    - `linger_s`: how long a small batch waits for more, so that transactions stay few.
    - `dispatch_batch_size`: leases written in one transaction.
    - `strays_s`: how often the queues are searched for shards without a lease.
    - `split_after_expiries`: expired grants after which a shard of several URLs is cut smaller.
    - `dead_letter_after_expiries`: expired grants after which the single URL of a lease becomes a dead letter.
    """

    partitions: int = 64
    grant_s: float = 30.0
    ack_wait_s: float = 30.0
    republish_s: float = 10.0
    barrier_s: float = 5.0
    sweep_interval_s: float = 1.0
    max_hosts: int = 5_000
    batch: int = 256
    batch_bytes: int = 1 << 20
    linger_s: float = 0.02
    dispatch_batch_size: int = 64
    strays_s: float = 10.0
    longest_grant_s: float = 0.0
    split_after_expiries: int = 2
    dead_letter_after_expiries: int = 5


class Ownership:
    """One partition under one term: fence, position, leases and host queues (`front`). The owner's loops share it.

    `in_hand`: by kind, the broker's time (Unix ns) of the oldest report that is read but not applied.
    """

    def __init__(
        self,
        claimed: Claimed,
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        crawls: DispatchCrawls,
        room: PoolCapacity,
        settings: FrontierSettings,
        tally: OwnerStats,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        self.partition: Partition = claimed.fence.partition
        self.store = store
        self.broker = broker
        self.clock = clock
        self.crawls = crawls
        self.room = room
        self.settings = settings
        self.tally = tally
        self._applied = applied
        self.fence: Fence = claimed.fence
        self.position: Position = claimed.position
        self.next_host = claimed.next_host
        self.next_lease = claimed.next_lease
        self.leases = Leases(grant_s=settings.grant_s, longest_s=settings.longest_grant_s)
        self.commands = Commands(claimed.commands)
        self.work = asyncio.Event()
        self.front = HostQueues(
            room.shares, max_hosts=settings.max_hosts, rested_from=clock.elapsed(), wake=self.work.set
        )
        self.tuned = asyncio.Event()
        self.strays_suspected = False
        self.in_hand: dict[ReportKind, int] = {}
        self.readers: dict[ReportKind, ReportReader] = {}
        self._moved = asyncio.Condition()
        self._lock = asyncio.Lock()
        self._proving = asyncio.Lock()
        self._proofs_begun = 0
        self._proven = (0, False)
        self._ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Ownership p={self.partition} v={self.fence.version} {self.leases!r} {self.front!r}>"

    @asynccontextmanager
    async def writing(self, work: TransactionKind = TransactionKind.UPKEEP) -> AsyncIterator[Fence]:
        """Lock the partition for one transaction. Call `committed` inside, right after the commit.

        If Permanent or ResourceFull leaves the block, nothing was written. After any other exception the memory may
        differ from SQL, so the ownership ends (`ended`).
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
                self.tally.transactions[work].observe(self.clock.elapsed() - begun)

    async def still_owner(self) -> bool:
        """Return True if SQL has this term as the partition's owner, by a read that began after the call.

        Concurrent callers share one query, so many workers that ask at once cost one query.
        """
        begun = self._proofs_begun
        async with self._proving:
            if self._proven[0] <= begun:
                self._proofs_begun += 1
                number = self._proofs_begun
                self._proven = (number, await self.store.still_owner(self.fence))
            return self._proven[1]

    def tune(self, settings: FrontierSettings) -> None:
        """Apply other limits. Grants that were given keep their duration."""
        self.settings = settings
        self.leases.grant_s = settings.grant_s
        self.front.max_hosts = settings.max_hosts
        self.tuned.set()
        self.work.set()

    async def ended(self) -> None:
        """Wait until the fate of a transaction is unknown or the fence refused one. Raise that transaction's error."""
        raise await asyncio.shield(self._ended)

    def _end(self, error: BaseException) -> None:
        if not self._ended.done():
            known = isinstance(error, Transient | OwnershipLost | Unusable)
            self._ended.set_result(error if known else Transient(f"a transaction was broken off: {error!r}"))

    async def committed(self, position: Position | None = None) -> None:
        """Advance the fence and the position: the transaction of the current fence has committed."""
        self.fence = self.fence.next()
        if position is not None:
            self.position = position
            self.commands.wake()
            async with self._moved:
                self._moved.notify_all()
            self._applied()
        self.work.set()

    def look(self) -> None:
        """Wake dispatch if the partition has a host or a lease. Without any there is no work."""
        if len(self.front) or len(self.leases):
            self.work.set()

    async def applied_outcomes(self, through: int, wait_s: float) -> bool:
        """Wait up to `wait_s`. Return True if outcomes up to sequence `through` are applied."""
        try:
            async with asyncio.timeout(wait_s), self._moved:
                await self._moved.wait_for(lambda: self.position.outcome_seq >= through)
        except TimeoutError:
            return False
        return True

    def changes(self) -> Changes:
        """Return empty changes, marked with the commands in progress so that those skip what is written now."""
        return Changes(marks=self.commands.marks())

    def allot_lease(self) -> LeaseId:
        """Return the next lease number. It is durable with the dispatch that uses it."""
        lease_id = LeaseId(numbered(self.next_lease, self.partition))
        self.next_lease += 1
        return lease_id

    async def look_up(self, crawl_ids: Iterable[CrawlId]) -> None:
        """Read the crawls that this master has not loaded from SQL, so that `DispatchCrawls.find` returns them."""
        unknown = self.crawls.unknown(crawl_ids)
        if unknown:
            self.crawls.looked_up(await self.store.crawl_rows(unknown))

    def offer(self, row: QueueRow, *, pinned: bool = False) -> bool:
        """Add a queue to the front with its crawl's current delay.

        Return False if the front is full or the crawl is not loaded. A `pinned` queue has a lease out, so a crawl that
        was only looked up is enough for it: the reports of the lease need the facts of its host.
        """
        crawl = self.crawls.find(row.crawl_id) if pinned else self.crawls.get(row.crawl_id)
        if crawl is None:
            # The crawl may be loaded later. Its queues must be read then.
            self.front.mark_incomplete(row.crawl_id)
            return False
        if self.commands.deletes(row.crawl_id):
            return False
        facts = facts_of(row)
        delay_s, slots = crawl.pace(facts)
        return self.front.offer(
            row,
            facts=facts,
            delay_s=delay_s,
            slots=slots,
            now=self.clock.elapsed(),
            now_ms=self.clock.unix_ms(),
            pinned=pinned,
            weight=crawl.spec.weight,
            pool=crawl.spec.pool,
        )

    async def offer_queues(self, keys: list[tuple[CrawlId, HostId]], *, pinned: bool = False) -> None:
        """Read the named queues from SQL and add them to the front."""
        if keys:
            for row in await self.store.queue_rows(keys):
                self.offer(row, pinned=pinned)
