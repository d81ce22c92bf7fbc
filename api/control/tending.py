"""What the leader does for crawls: publishes their seeds, counts the time they are worked on, ends them, lets those
run again that have something to do again, sees to it that the rows of deleted ones are collected, and writes items.

Nothing here needs to be done by one alone for the frontier to stay right: seeds published twice are merged, and a crawl
is ended only if it still is as it was when it was looked at. That the leader does it saves the others the work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

import structlog

from api.control.collecting import Collecting
from api.control.crawling import time_is_up
from api.control.finishing import Active, FinishedCheck, spent_of
from api.control.item_table import ItemWriter
from api.control.retaining import Retaining
from api.control.seeding import publish_seeds
from api.frontier.crawls import spec_of
from api.frontier.owner import Alarm, unheard
from api.frontier.tally import FrontierTally
from shared.domain.crawl import Budget
from shared.domain.errors import NoRoom, Permanent, Transient
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Partition, Revision, Term
from shared.domain.ledger import Counters, CrawlRow
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.retrying import until_there_is_room
from shared.ports.store import Store
from shared.supervise import Tasks

log = structlog.get_logger("orb.control")

_TICK_S = 0.5
_ACTIVE_TIME_S = 2.0
_LONGEST_S = 60.0
"""Time that one look adds to crawls at most: over a longer one, the machine slept or the database was away."""
_LOOK_BACK_S = 2.0


@dataclass(frozen=True, slots=True)
class _Said:
    """What is asked again and again of a spec: it need not be read for that."""

    budget: Budget
    pool: str


class Tending:
    """Tends all crawls. `told` hears that one has changed its state. `retaining`: what forgets what was kept for long
    enough; None where nothing is forgotten. `still`: whether nothing is sent out for a pool for want of room; meanwhile
    no crawl of it uses up its time."""

    def __init__(
        self,
        *,
        store: Store,
        items: ItemTable,
        broker: Broker,
        clock: Clock,
        partitions: int,
        told: Callable[[], None],
        retaining: Retaining | None = None,
        tally: FrontierTally | None = None,
        alarm: Alarm = unheard,
        still: Callable[[str], bool] = lambda pool: False,
    ) -> None:
        self._store = store
        self._writer = ItemWriter(items, broker, clock, tally or FrontierTally(), alarm)
        self._broker = broker
        self._clock = clock
        self._partitions = partitions
        self._check = FinishedCheck(map(Partition, range(partitions)), store, broker)
        self._told = told
        self._still = still
        self._said: dict[tuple[CrawlId, Revision], _Said] = {}
        self._seeding: set[tuple[CrawlId, Revision]] = set()
        self._collecting = Collecting(store, items, broker, clock)
        self._retaining = retaining
        self._look_back_at = float("-inf")
        self._looked_at = CrawlId(0)
        self._counted_at = clock.elapsed()
        self._rows: Sequence[CrawlRow] = ()
        self._poked = asyncio.Event()

    def wake(self) -> None:
        """Look now."""
        self._look_back_at = float("-inf")
        self._poked.set()

    async def run(self, acting: Callable[[], bool], term: Callable[[], Term | None]) -> None:
        """Until cancelled. Nothing is decided while not `acting`; items are written under `term`."""
        self._seeding.clear()
        async with Tasks() as tasks:
            tasks.start("active-time", self._count_times(acting))
            tasks.start("items", self._writer.run(lambda: term() if acting() else None))
            while True:
                self._poked.clear()
                if acting():
                    try:
                        await self._pass(acting, tasks)
                    except Transient as error:
                        log.warning("tending.waits", error=str(error))
                    except Permanent as error:
                        log.error("tending.refused", error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self._poked.wait()

    async def _pass(self, acting: Callable[[], bool], tasks: Tasks) -> None:
        """Do everything once."""
        rows = await self._store.worked_on()
        self._said = {key: said for row in rows if (said := self._said.get(key := (row.crawl_id, row.revision)))}
        self._seed(rows, tasks)
        self._rows = rows
        steps = partial(self._finish, rows, acting), partial(self._look_back, acting)
        try:
            await _each(steps)
        except NoRoom as error:
            log.debug("tending.no_room", error=str(error))

    async def _count_times(self, acting: Callable[[], bool]) -> None:
        """Add the time that has passed to the crawls, until cancelled. It is a task of its own: with many crawls one
        pass over them takes longer than the time between two looks."""
        self._counted_at = self._clock.elapsed()
        while True:
            await asyncio.sleep(_ACTIVE_TIME_S)
            if not acting():
                self._counted_at = self._clock.elapsed()
                continue
            try:
                await self.count_time()
            except Transient as error:
                log.debug("active_time.waits", error=str(error))
            except Permanent as error:
                log.error("tending.refused", error=str(error))

    async def count_time(self) -> None:
        """Add the time since the last look to all crawls that are worked on, but for those that are held."""
        now = self._clock.elapsed()
        worked_ms = int(min(now - self._counted_at, _LONGEST_S) * 1000)
        still = cache(self._still)
        held = [row.crawl_id for row in self._rows if (said := self._said_by(row)) and still(said.pool)]
        await self._store.add_active_time_to_all(worked_ms, held=held)
        self._counted_at = now

    def _said_by(self, row: CrawlRow) -> "_Said | None":
        """None where this version cannot read the spec."""
        key = row.crawl_id, row.revision
        if key not in self._said and (spec := spec_of(row)) is not None:
            self._said[key] = _Said(spec.budget, spec.pool)
        return self._said.get(key)

    def _seed(self, rows: Sequence[CrawlRow], tasks: Tasks) -> None:
        for row in rows:
            if row.state is CrawlState.SEEDING and (row.crawl_id, row.revision) not in self._seeding:
                self._seeding.add((row.crawl_id, row.revision))
                tasks.start(f"seed.{row.crawl_id}", self._seeded(row))

    async def _seeded(self, row: CrawlRow) -> None:
        try:
            spec = spec_of(row)
            if spec is None:
                return
            seeds = await publish_seeds(self._broker, row.crawl_id, row.revision, spec.seeds, self._partitions)
            log.info("crawl.seeded", crawl=row.crawl_id, revision=row.revision, seeds=seeds)
            await until_there_is_room(partial(self._advance, row, CrawlState.RUNNING, None))
        except (Transient, Permanent) as error:
            log.warning("seeding.waits", crawl=row.crawl_id, error=str(error))
            await asyncio.sleep(_ACTIVE_TIME_S)
        finally:
            self._seeding.discard((row.crawl_id, row.revision))

    async def _finish(self, rows: Sequence[CrawlRow], acting: Callable[[], bool]) -> None:
        rows = [row for row in rows if row.state is CrawlState.RUNNING]
        ended: dict[Active, Callable[[Counters], str | None]] = {}
        for row in rows:
            if (said := self._said_by(row)) is not None:
                ended[row.crawl_id, row.revision] = partial(_ended_by, said.budget, row.active_ms)
        found = await self._check.once(ended, self._store.positions)
        complete = await self._writer.complete(found.keys())
        for row in rows:
            if row.crawl_id in complete and acting():
                end = found[row.crawl_id]
                await self._advance(row, CrawlState.FINISHED, end.reason, end.counted)

    async def _look_back(self, acting: Callable[[], bool]) -> None:
        """At crawls that are over. Seeds, replays and retries may be applied after a crawl was found complete."""
        now = self._clock.elapsed()
        if now < self._look_back_at or not acting():
            return
        self._look_back_at = now + _LOOK_BACK_S
        steps = [self._reopen, self._collecting.once]
        if self._retaining is not None:
            steps.append(self._retaining.once)
        try:
            await _each(steps)
        except Transient as error:  # it is not done, so it does not rest for as long
            self._look_back_at = min(self._look_back_at, now + error.retry_in)
            raise

    async def _reopen(self) -> None:
        reopened, further = await self._store.reopen(self._looked_at)
        self._looked_at = further or CrawlId(0)
        for crawl_id in reopened:
            log.info("crawl.state", crawl=crawl_id, state=CrawlState.RUNNING, reason="something was queued")
            self._told()

    async def _advance(self, row: CrawlRow, state: CrawlState, reason: str | None, counted: int | None = None) -> None:
        moved = await self._store.advance_crawl(
            row.crawl_id, row.revision, row.state, state, reason, self._clock.unix_ms(), counted
        )
        if moved:
            log.info("crawl.state", crawl=row.crawl_id, state=state, reason=reason)
            self._told()


async def _each(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Do them all: what is refused, for good or until there is room, keeps none of the others from being done. NoRoom
    when all is done for which there was room."""
    full = None
    for step in steps:
        try:
            await step()
        except Permanent as error:
            log.error("tending.refused", error=str(error))
        except NoRoom as error:
            full = error
    if full is not None:
        raise full


def _ended_by(budget: Budget, active_ms: int, counters: Counters) -> str | None:
    return spent_of(budget, counters) or ("max_seconds" if time_is_up(budget, active_ms) else None)
