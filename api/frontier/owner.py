"""The owner of one partition: claims it, then ingests, dispatches, grants and sweeps until it stops or is deposed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from api.frontier.command_runner import CommandRunner, forget_deleted
from api.frontier.crawls import Crawls
from api.frontier.dispatch import Dispatch
from api.frontier.granting import Granting
from api.frontier.ingest import Ingest
from api.frontier.ownership import FrontierSettings, Ownership
from api.frontier.room import PoolRoom, Spent
from api.frontier.sweep import Sweep
from api.frontier.tally import FrontierTally
from shared.domain.command import CommandKind
from shared.domain.errors import OwnershipLost, Transient
from shared.domain.frontier import Position, same_stream
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.ledger import Changes, Claimed, Counters
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.retrying import until_answered, until_there_is_room
from shared.ports.store import Store
from shared.supervise import Tasks

log = structlog.get_logger("orb.frontier")

Alarm = Callable[[Partition, str], None]
"""Hears what somebody should look at. Neither waits nor raises."""


def unheard(partition: Partition, text: str) -> None:
    """Where nobody listens, the log has it all the same."""


class Owner:
    """Owns one partition under one term."""

    def __init__(
        self,
        partition: Partition,
        term: Term,
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        crawls: Crawls,
        room: PoolRoom,
        settings: FrontierSettings,
        tally: FrontierTally | None = None,
        alone: bool = False,
        again: bool = False,
        alarm: Alarm = unheard,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """`again`: an owner of this process, which has ended, may have claimed the partition under this very term.
        `turn`: owners of one process share it, and run one chunk of a command at a time."""
        self.partition = partition
        self.term = term
        self.ownership: Ownership | None = None
        self.alarms: list[str] = []
        self._store = store
        self._broker = broker
        self._clock = clock
        self._crawls = crawls
        self._room = room
        self._settings = settings
        self._tally = tally or FrontierTally()
        self._alone = alone
        self._again = again
        self._alarm = alarm
        self._turn = turn or asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Owner p={self.partition} term={self.term} {self.ownership!r}>"

    def tune(self, settings: FrontierSettings) -> None:
        """Own it under other limits from now on."""
        self._settings = settings
        if self.ownership is not None:
            self.ownership.tune(settings)

    async def run(self) -> None:
        """Own the partition until cancelled; returns when another owner took over.

        Whenever the database or broker leaves a transaction's fate unknown, everything remembered is dropped and loaded
        anew under the same term, as a new owner would.
        """
        try:
            claimed = await self._claimed()
            while True:
                try:
                    await self._serve(claimed)
                except* Transient as group:
                    self._tally.reloads += 1
                    log.warning("owner.reload", partition=self.partition, error=str(group.exceptions[0]))
                await asyncio.sleep(0.2)
                self._alone = False
                claimed = await until_answered(lambda: self._store.reload(self.partition, self.term))
        except* OwnershipLost as group:
            log.warning("owner.deposed", partition=self.partition, term=self.term, error=str(group.exceptions[0]))

    async def _claimed(self) -> Claimed:
        """Claim the partition. A claim whose answer was lost may be in: it would refuse a second one of the same
        term."""
        if self._again:
            with suppress(OwnershipLost):
                return await until_answered(lambda: self._store.reload(self.partition, self.term))
        while True:
            try:
                return await until_there_is_room(lambda: self._store.claim(self.partition, self.term))
            except Transient as error:
                log.warning("owner.claims_again", partition=self.partition, error=str(error))
                await asyncio.sleep(error.retry_in)
            with suppress(OwnershipLost, Transient):
                return await self._store.reload(self.partition, self.term)

    async def _serve(self, claimed: Claimed) -> None:
        own = Ownership(
            claimed,
            store=self._store,
            broker=self._broker,
            clock=self._clock,
            crawls=self._crawls,
            room=self._room,
            settings=self._settings,
            tally=self._tally,
        )
        await self._check_stream(own)
        await self._restore(own, claimed)
        ingest, dispatch = Ingest(own), Dispatch(own)
        granting, sweep = Granting(own), Sweep(own, dispatch)
        if own.settings is not self._settings:  # tuned while it was loaded
            own.tune(self._settings)
        self.ownership = own
        # No await since the line above: a crawl that was loaded before it did not find this owner.
        for crawl in own.crawls:
            own.front.mark_incomplete(crawl.crawl_id)
        self._room.watch(own.leases)
        try:
            async with self._broker.answer(self.partition, granting.answer), Tasks() as loops:
                name = f"p{self.partition}"
                loops.start(f"{name}.ended", own.ended())
                loops.start(f"{name}.ingest.outcome", ingest.run("outcome"))
                loops.start(f"{name}.ingest.discovery", ingest.run("discovery"))
                loops.start(f"{name}.commands", CommandRunner(own, self._turn).run())
                loops.start(f"{name}.dispatch", dispatch.run())
                loops.start(f"{name}.sweep", sweep.run())
                await loops.ended()
        finally:
            self._room.unwatch(own.leases)
            own.front.lines.close()

    async def _check_stream(self, own: Ownership) -> None:
        """Start at 0 of a stream that is not the one our position is of; adopt the stream's identity."""
        state = await until_answered(self._broker.reports_state)
        position = own.position
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
            self._tally.new_streams += 1
            log.error("owner.new_stream", partition=self.partition, position=str(position), created=state.created_ns)
        fresh = Position(stream_created_ns=state.created_ns)

        async def adopt() -> None:
            async with own.writing() as fence:
                await own.store.apply(fence, fresh, Changes())
                await own.committed(fresh)

        await until_there_is_room(adopt)

    async def _same_times(self, position: Position) -> bool:
        """Return True if what we applied was stored in the stream as it is: no later report took an earlier place."""
        for sequence, at_ns in (
            (position.outcome_seq, position.outcome_ns),
            (position.discovery_seq, position.discovery_ns),
        ):
            if sequence and not await until_answered(partial(self._broker.continues, sequence, at_ns)):
                return False
        return True

    async def _restore(self, own: Ownership, claimed: Claimed) -> None:
        """Take over the leases, hold their hosts' slots, and fill the front.

        Crawls come and are renewed meanwhile. Their keeper tells the owners that have loaded, and this one has not.
        """
        now = own.clock.elapsed()
        revisions = {crawl.crawl_id: crawl.revision for crawl in own.crawls}
        for row in claimed.leases:
            own.leases.take_over(row, now, ended=self._alone)
        await own.look_up(row.crawl_id for row in claimed.leases)
        await own.offer_queues([(row.crawl_id, row.host_id) for row in claimed.leases], pinned=True)
        for row in claimed.leases:
            own.front.pin(row.host_id, row.host, row.slot, row.delay_ms / 1000, row.crawl_id)
        read: set[CrawlId] = set()
        while unread := [crawl for crawl in own.crawls if crawl.crawl_id not in read]:
            read |= {crawl.crawl_id for crawl in unread}
            for crawl in unread:
                own.front.mark_incomplete(crawl.crawl_id)
            spent = await own.store.counters_in([crawl.crawl_id for crawl in unread], [own.partition])
            for crawl in unread:
                here = spent.get(crawl.crawl_id, Counters())
                crawl.allowance.restore(own.partition, Spent(here.pages, here.bytes, here.leased))
        for run in own.commands.heads():
            if run.kind == CommandKind.DELETE:
                forget_deleted(own, run.crawl_id)
        for crawl in own.crawls:
            if revisions.get(crawl.crawl_id, crawl.revision) != crawl.revision:
                own.front.mark_stale(crawl.crawl_id)
