"""The owner of one partition: claims it, then ingests, dispatches, grants and sweeps until it stops or is deposed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from api.frontier.capacity import PoolCapacity, spent_in
from api.frontier.command_runner import CommandRunner
from api.frontier.dispatch import Dispatch
from api.frontier.dispatch_crawls import DispatchCrawls
from api.frontier.grants import GrantService
from api.frontier.ingest import Ingest
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.stats import OwnerStats
from api.frontier.sweep import Sweep
from api.frontier.writer import PartitionWriter
from shared.domain.errors import OwnershipLost, Transient
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import Position, same_stream
from shared.domain.frontier.store_model import Changes, Claimed, Counters
from shared.domain.ids import CrawlId, Partition, Term
from shared.ports.archive import PageArchive
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.store import Store
from shared.runtime.retry import until_answered, until_resource_available
from shared.runtime.supervise import Tasks

log = structlog.get_logger("orb.frontier")

Alarm = Callable[[Partition, str], None]
"""Called with a partition and a text for the operator. It must neither block nor raise."""


def ignore_alarm(partition: Partition, text: str) -> None:
    """Do nothing with an alarm: it is in the log, too."""


class Owner:
    """Owns one partition under one term: applies its reports, dispatches its URLs and grants its leases."""

    def __init__(
        self,
        partition: Partition,
        term: Term,
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        crawls: DispatchCrawls,
        capacity: PoolCapacity,
        settings: FrontierSettings,
        stats: OwnerStats | None = None,
        alone: bool = False,
        again: bool = False,
        alarm: Alarm = ignore_alarm,
        turn: asyncio.Lock | None = None,
        applied: Callable[[], None] = lambda: None,
        archive: PageArchive | None = None,
    ) -> None:
        """Create an owner that has claimed nothing yet.

        - `alone`: True if every worker that ran before this claim is known to be dead. The owner then treats all
          earlier grants as ended, and does not wait until they expire.
        - `again`: True if this process had an owner of this partition under the same term before. That owner has ended,
          but may have claimed the partition. SQL refuses a second claim under one term.
        - `turn`: a lock that the owners of one process share, so that they run one chunk of a command at a time.
        - `applied`: called after reports were applied.
        - `archive`: the archive of pages; None if this process cannot read it.
        """
        self.partition = partition
        self.term = term
        self.writer: PartitionWriter | None = None
        self.alarms: list[str] = []
        self._store = store
        self._broker = broker
        self._clock = clock
        self._crawls = crawls
        self._capacity = capacity
        self._settings = settings
        self._stats = stats or OwnerStats()
        self._alone = alone
        self._again = again
        self._alarm = alarm
        self._turn = turn or asyncio.Lock()
        self._applied = applied
        self._archive = archive

    def __repr__(self) -> str:
        return f"<Owner p={self.partition} term={self.term} {self.writer!r}>"

    @property
    def ownership(self) -> Ownership | None:
        """The partition's state in memory; None until it is loaded."""
        return None if self.writer is None else self.writer.own

    def tune(self, settings: FrontierSettings) -> None:
        """Apply changed settings from now on."""
        self._settings = settings
        if self.ownership is not None:
            self.ownership.tune(settings)

    async def run(self) -> None:
        """Own the partition until cancelled. Return when another owner took over.

        If it is unknown whether a transaction committed, drop the state in memory, and load it again from SQL under the
        same term, as a new owner would.
        """
        try:
            claimed = await self._claimed()
            while True:
                try:
                    await self._serve(claimed)
                except* Transient as group:
                    self._stats.reloads += 1
                    log.warning("owner.reloaded", partition=self.partition, error=str(group.exceptions[0]))
                await asyncio.sleep(0.2)
                self._alone = False
                claimed = await until_answered(lambda: self._store.reload(self.partition, self.term))
        except* OwnershipLost as group:
            log.warning("owner.deposed", partition=self.partition, term=self.term, error=str(group.exceptions[0]))

    async def _claimed(self) -> Claimed:
        """Claim the partition, unless it is already claimed under this term. Return the partition's state from SQL.

        The partition can already be claimed in two cases:

        - This owner's first attempt succeeded, but the answer of SQL was lost.
        - An earlier owner in this process claimed the partition under the same term (argument `again` of `Owner`).

        In both cases SQL would refuse another claim, so this method only reads the state.
        """
        if self._again:
            with suppress(OwnershipLost):
                return await until_answered(lambda: self._store.reload(self.partition, self.term))
        while True:
            try:
                return await until_resource_available(lambda: self._store.claim(self.partition, self.term))
            except Transient as error:
                log.warning("owner_claim.delayed", partition=self.partition, error=str(error))
                await asyncio.sleep(error.retry_in)
            with suppress(OwnershipLost, Transient):
                return await self._store.reload(self.partition, self.term)

    async def _serve(self, claimed: Claimed) -> None:
        own = Ownership(
            claimed, crawls=self._crawls, capacity=self._capacity, settings=self._settings, now=self._clock.elapsed()
        )
        writer = PartitionWriter(
            own, claimed.fence, store=self._store, clock=self._clock, stats=self._stats, applied=self._applied
        )
        await self._check_stream(writer)
        await self._restore(writer, claimed)
        ingest, dispatch = Ingest(writer, self._broker), Dispatch(writer, self._broker)
        granting, sweep = GrantService(writer, self._broker), Sweep(writer, self._broker, ingest, dispatch)
        if own.settings is not self._settings:  # `tune` was called while the partition was loaded
            own.tune(self._settings)
        self.writer = writer
        # No await since the line above: a crawl that was loaded before it could not notify this owner.
        for crawl in own.crawls:
            own.hosts.mark_incomplete(crawl.crawl_id)
        self._capacity.watch(own.leases)
        try:
            async with self._broker.answer(self.partition, granting.answer), Tasks() as loops:
                name = f"p{self.partition}"
                loops.start(f"{name}.ended", writer.ended())
                loops.start(f"{name}.ingest.outcome", ingest.run("outcome"))
                loops.start(f"{name}.ingest.discovery", ingest.run("discovery"))
                runner = CommandRunner(writer, self._broker, self._turn, self._archive)
                loops.start(f"{name}.commands", runner.run())
                loops.start(f"{name}.dispatch", dispatch.run())
                loops.start(f"{name}.sweep", sweep.run())
                await loops.ended()
        finally:
            self._capacity.unwatch(own.leases)
            own.hosts.lines.close()

    async def _check_stream(self, writer: PartitionWriter) -> None:
        """Compare the partition's position with the stream, and store the stream's creation time.

        If the position belongs to another stream, start again at 0 and raise an alarm. The commands in progress then
        stand before all reports of the stream.
        """
        state = await until_answered(self._broker.reports_state)
        position = writer.own.position
        fits = same_stream(position, state.created_ns, state.last_sequence)
        if fits and position.stream_created_ns:
            fits = await self._same_times(position)
        if fits and position.stream_created_ns == state.created_ns:
            return
        if not fits:
            text = (
                f"partition {self.partition}: the reports stream is another one than before, or came back shorter;"
                " reading it from its start"
            )
            self.alarms.append(text)
            self._alarm(self.partition, text)
            self._stats.new_streams += 1
            log.error(
                "report_stream.replaced", partition=self.partition, position=str(position), created_ns=state.created_ns
            )

        async def adopt() -> None:
            async with writer.writing():
                await writer.apply(Changes(stream_replaced=not fits), Position(stream_created_ns=state.created_ns))
            if not fits:
                # Their old sequences say nothing of the reports of this stream, which may have smaller ones.
                writer.own.commands.place_before_all_reports()

        await until_resource_available(adopt)

    async def _same_times(self, position: Position) -> bool:
        """Return True if the reports stream is still the one in which `position` was reached.

        `position` has the sequence and the time of the last applied outcome and of the last applied discovery. Ask the
        broker for each of the two reports whether the stream stored a report with that sequence at that time.
        """
        for sequence, at_ns in (
            (position.outcome_seq, position.outcome_ns),
            (position.discovery_seq, position.discovery_ns),
        ):
            if sequence and not await until_answered(partial(self._broker.continues, sequence, at_ns)):
                return False
        return True

    async def _restore(self, writer: PartitionWriter, claimed: Claimed) -> None:
        """Take over the leases of earlier owners, reserve the slots of their hosts, and load the budgets of all crawls.

        Other tasks may change crawls while this method runs. If a crawl is added, load its budget, too. If the spec of
        a crawl is changed, mark the crawl's queues to be read again.
        """
        # Only owners that have loaded are notified of such changes.
        own, now = writer.own, self._clock.elapsed()
        revisions = {crawl.crawl_id: crawl.revision for crawl in own.crawls}
        for row in claimed.leases:
            own.leases.take_over(row, now, ended=self._alone)
        await writer.look_up(row.crawl_id for row in claimed.leases)
        await writer.load_queues([(row.crawl_id, row.host_id) for row in claimed.leases], pinned=True)
        for row in claimed.leases:
            own.hosts.restore(row.host_id, row.host, row.slot, row.delay_ms / 1000, row.crawl_id)
        read: set[CrawlId] = set()
        while unread := [crawl for crawl in own.crawls if crawl.crawl_id not in read]:
            read |= {crawl.crawl_id for crawl in unread}
            for crawl in unread:
                own.hosts.mark_incomplete(crawl.crawl_id)
            spent = await self._store.counters_in([crawl.crawl_id for crawl in unread], [own.partition])
            for crawl in unread:
                here = spent.get(crawl.crawl_id, Counters())
                crawl.allowance.restore(own.partition, spent_in(here))
        for run in own.commands.heads():
            if run.kind == CommandKind.DELETE:
                own.forget_deleted(run.crawl_id, self._clock.elapsed())
        for crawl in own.crawls:
            if revisions.get(crawl.crawl_id, crawl.revision) != crawl.revision:
                own.hosts.mark_stale(crawl.crawl_id)
