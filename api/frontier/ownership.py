"""What an owner knows of its partition under its term, and the bracket through which it writes.

Invariant: the fields mirror what the last committed transaction left, and change only inside `writing`, after a commit.
A transaction whose fate is unknown ends the ownership's memory (`Transient` out of `writing`): the owner loads it anew.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from api.frontier.commands import Commands
from api.frontier.crawls import Crawls
from api.frontier.front import Front
from api.frontier.hosts import facts_of
from api.frontier.leases import Leases
from api.frontier.room import PoolRoom
from api.frontier.tally import FrontierTally, Work
from shared.domain.errors import NoRoom, OwnershipLost, Permanent, Transient, Unusable
from shared.domain.frontier import Fence, Position
from shared.domain.ids import CrawlId, HostId, LeaseId, Partition, numbered
from shared.domain.ledger import Changes, Claimed, QueueRow
from shared.ports.broker import Broker, ReportKind, ReportReader
from shared.ports.clock import Clock
from shared.ports.store import Store


@dataclass(frozen=True, slots=True)
class FrontierSettings:
    """Limits of an owner; seconds, counts.

    `grant_s`: how long a worker may fetch without asking again; `longest_grant_s`: how long an earlier owner may have
    allowed it, if that is longer. `ack_wait_s`: after which the broker delivers a shard again. `most_hosts`: hosts kept
    in memory per partition, the rest waits in SQL. `batch`, `batch_bytes`: reports applied in one transaction, and
    their size together. `linger_s`: how long a small batch waits for more, so that transactions stay few.
    `shards_at_once`: leases written in one transaction. `strays_s`: how often the queues are searched for shards
    without a lease. `split_after`, `bury_after`: expired grants after which a shard of several URLs goes back to be cut
    smaller, and the single URL of a lease becomes a dead letter.
    """

    partitions: int = 64
    grant_s: float = 30.0
    ack_wait_s: float = 30.0
    republish_s: float = 10.0
    barrier_s: float = 5.0
    sweep_s: float = 1.0
    most_hosts: int = 5_000
    batch: int = 256
    batch_bytes: int = 1 << 20
    linger_s: float = 0.02
    shards_at_once: int = 64
    strays_s: float = 10.0
    longest_grant_s: float = 0.0
    split_after: int = 2
    bury_after: int = 5


class Ownership:
    """One partition under one term: fence, position, leases, front. Shared by the owner's loops.

    `in_hand`: the broker's time (Unix ns) of the oldest report that was read and is not applied yet, by kind.
    """

    def __init__(
        self,
        claimed: Claimed,
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        crawls: Crawls,
        room: PoolRoom,
        settings: FrontierSettings,
        tally: FrontierTally,
    ) -> None:
        self.partition: Partition = claimed.fence.partition
        self.store = store
        self.broker = broker
        self.clock = clock
        self.crawls = crawls
        self.room = room
        self.settings = settings
        self.tally = tally
        self.fence: Fence = claimed.fence
        self.position: Position = claimed.position
        self.next_host = claimed.next_host
        self.next_lease = claimed.next_lease
        self.leases = Leases(grant_s=settings.grant_s, longest_s=settings.longest_grant_s)
        self.commands = Commands(claimed.commands)
        self.work = asyncio.Event()
        self.front = Front(room.shares, most_hosts=settings.most_hosts, rested_from=clock.elapsed(), wake=self.work.set)
        self.tuned = asyncio.Event()
        self.strays_suspected = False
        self.in_hand: dict[ReportKind, int] = {}
        self.readers: dict[ReportKind, ReportReader] = {}
        self._moved = asyncio.Condition()
        self._lock = asyncio.Lock()
        self._ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Ownership p={self.partition} v={self.fence.version} {self.leases!r} {self.front!r}>"

    @asynccontextmanager
    async def writing(self, work: Work = Work.UPKEEP) -> AsyncIterator[Fence]:
        """Hold the partition for one transaction; call `committed` inside, right after it committed.

        A Permanent or a NoRoom out of it means that nothing was written. After anything else what is remembered here
        may no longer be what is stored, so the ownership ends (`ended`).
        """
        async with self._lock:
            fence, begun = self.fence, self.clock.elapsed()
            try:
                yield fence
            except (Permanent, NoRoom):
                raise
            except BaseException as error:
                self._end(error)
                raise
            if self.fence is not fence:
                self.tally.transactions[work].observe(self.clock.elapsed() - begun)

    def tune(self, settings: FrontierSettings) -> None:
        """Go on under other limits. Grants that were given last as long as they were given for."""
        self.settings = settings
        self.leases.grant_s = settings.grant_s
        self.front.most_hosts = settings.most_hosts
        self.tuned.set()
        self.work.set()

    async def ended(self) -> None:
        """Wait until a transaction's fate became unknown or the fence refused one, and raise what it raised."""
        raise await asyncio.shield(self._ended)

    def _end(self, error: BaseException) -> None:
        if not self._ended.done():
            known = isinstance(error, Transient | OwnershipLost | Unusable)
            self._ended.set_result(error if known else Transient(f"a transaction was broken off: {error!r}"))

    async def committed(self, position: Position | None = None) -> None:
        """The transaction that began with the current fence is in."""
        self.fence = self.fence.next()
        if position is not None:
            self.position = position
            self.commands.wake()
            async with self._moved:
                self._moved.notify_all()
        self.work.set()

    async def applied_outcomes(self, through: int, wait_s: float) -> bool:
        """Whether outcomes up to sequence `through` are applied, waiting up to `wait_s` for it."""
        try:
            async with asyncio.timeout(wait_s), self._moved:
                await self._moved.wait_for(lambda: self.position.outcome_seq >= through)
        except TimeoutError:
            return False
        return True

    def changes(self) -> Changes:
        """Return changes to be gathered, which no command in progress touches once they are written."""
        return Changes(marks=self.commands.marks())

    def allot_lease(self) -> LeaseId:
        """The next lease number; durable with the dispatch that uses it."""
        lease_id = LeaseId(numbered(self.next_lease, self.partition))
        self.next_lease += 1
        return lease_id

    async def look_up(self, crawl_ids: Iterable[CrawlId]) -> None:
        """Read from SQL those of the crawls that this master has not loaded, so that `Crawls.find` knows them."""
        unknown = self.crawls.unknown(crawl_ids)
        if unknown:
            self.crawls.looked_up(await self.store.crawl_rows(unknown))

    def offer(self, row: QueueRow, *, pinned: bool = False) -> bool:
        """Take a queue into the front under its crawl's present delay.

        Return False when the front is full or the crawl is not loaded. A `pinned` queue has a lease out, so it also
        comes in by a crawl that was looked up: the reports of the lease need what is known of its host.
        """
        crawl = self.crawls.find(row.crawl_id) if pinned else self.crawls.get(row.crawl_id)
        if crawl is None:
            # It may become known later: then its queues are to be read.
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
        """Take in the named queues as SQL has them."""
        if keys:
            for row in await self.store.queue_rows(keys):
                self.offer(row, pinned=pinned)
