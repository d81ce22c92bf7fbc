"""The leader's work for crawls.

The leader publishes seeds, counts the active time and ends crawls. It reopens crawls that have queued URLs again,
starts the collection of deleted ones, and writes items.

The frontier stays correct even if two masters do this. Seeds published twice are merged, and a crawl is ended only if
its row has not changed since the check. Only the leader does it, to save the others the work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

import structlog

from api.crawls.active_crawls import time_spent
from api.crawls.finished_check import Active, FinishedCheck, spent_of
from api.crawls.garbage_collector import GarbageCollector
from api.crawls.item_writer import ItemWriter
from api.crawls.retention_sweeper import RetentionSweeper
from api.crawls.seed_messages import publish_seeds
from api.frontier.dispatch_crawls import spec_of
from api.frontier.owner import Alarm, ignore_alarm
from api.frontier.stats import OwnerStats
from shared.domain.crawl.spec import Budget
from shared.domain.errors import Permanent, ResourceFull, Transient
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Counters, CrawlRow
from shared.domain.ids import CrawlId, Partition, Revision, Term
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.store import Store
from shared.runtime.retry import until_resource_available
from shared.runtime.supervise import Tasks

log = structlog.get_logger("orb.control")

_TICK_S = 0.5
_ACTIVE_TIME_S = 2.0
_LONGEST_S = 60.0
"""Maximum time that one count adds to crawls: over a longer one, the machine slept or the database was away."""
_LOOK_BACK_S = 2.0


@dataclass(frozen=True, slots=True)
class _SpecExcerpt:
    """The parts of a spec that every pass uses, cached so that the spec is not decoded each time."""

    budget: Budget
    pool: str


class CrawlController:
    """Controls the life of all crawls, on the leader.

    - `told` is called when a crawl has changed its state.
    - `retaining` deletes rows past their retention; None deletes none.
    - `still` returns True while resource pressure stops all work of a pool. Its crawls then use up no time.
    """

    def __init__(
        self,
        *,
        store: Store,
        items: ItemTable,
        broker: Broker,
        clock: Clock,
        partitions: int,
        told: Callable[[], None],
        retaining: RetentionSweeper | None = None,
        tally: OwnerStats | None = None,
        alarm: Alarm = ignore_alarm,
        still: Callable[[str], bool] = lambda pool: False,
    ) -> None:
        self._store = store
        self._writer = ItemWriter(items, broker, clock, tally or OwnerStats(), alarm)
        self._broker = broker
        self._clock = clock
        self._partitions = partitions
        self._check = FinishedCheck(map(Partition, range(partitions)), store, broker)
        self._told = told
        self._still = still
        self._excerpts: dict[tuple[CrawlId, Revision], _SpecExcerpt] = {}
        self._seeding: set[tuple[CrawlId, Revision]] = set()
        self._collecting = GarbageCollector(store, items, broker, clock)
        self._retaining = retaining
        self._look_back_at = float("-inf")
        self._looked_at = CrawlId(0)
        self._counted_at = clock.elapsed()
        self._rows: Sequence[CrawlRow] = ()
        self._poked = asyncio.Event()

    def wake(self) -> None:
        """Start the next pass now."""
        self._look_back_at = float("-inf")
        self._poked.set()

    async def run(self, acting: Callable[[], bool], term: Callable[[], Term | None]) -> None:
        """Run until cancelled. Decide nothing while not `acting`; write items under `term`."""
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
                        log.warning("crawl_pass.delayed", error=str(error))
                    except Permanent as error:
                        log.error("crawl_pass.refused", error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self._poked.wait()

    async def _pass(self, acting: Callable[[], bool], tasks: Tasks) -> None:
        """Run one pass over all crawls."""
        rows = await self._store.worked_on()
        self._excerpts = {
            key: excerpt for row in rows if (excerpt := self._excerpts.get(key := (row.crawl_id, row.revision)))
        }
        self._seed(rows, tasks)
        self._rows = rows
        steps = partial(self._finish, rows, acting), partial(self._look_back, acting)
        try:
            await _each(steps)
        except ResourceFull as error:
            log.debug("crawl_pass.postponed", error=str(error))

    async def _count_times(self, acting: Callable[[], bool]) -> None:
        """Add the elapsed time to the crawls, until cancelled.

        This is a separate task: with many crawls, one pass takes longer than the time between two counts.
        """
        self._counted_at = self._clock.elapsed()
        while True:
            await asyncio.sleep(_ACTIVE_TIME_S)
            if not acting():
                self._counted_at = self._clock.elapsed()
                continue
            try:
                await self.count_time()
            except Transient as error:
                log.debug("active_time.delayed", error=str(error))
            except Permanent as error:
                log.error("crawl_pass.refused", error=str(error))

    async def count_time(self) -> None:
        """Add the time since the last count to all active crawls, except those of a pool under pressure."""
        now = self._clock.elapsed()
        worked_ms = int(min(now - self._counted_at, _LONGEST_S) * 1000)
        still = cache(self._still)
        held = [row.crawl_id for row in self._rows if (excerpt := self._excerpt_of(row)) and still(excerpt.pool)]
        await self._store.add_active_time_to_all(worked_ms, held=held)
        self._counted_at = now

    def _excerpt_of(self, row: CrawlRow) -> "_SpecExcerpt | None":
        """Return the excerpt of a row's spec; None if this version cannot read the spec."""
        key = row.crawl_id, row.revision
        if key not in self._excerpts and (spec := spec_of(row)) is not None:
            self._excerpts[key] = _SpecExcerpt(spec.budget, spec.pool)
        return self._excerpts.get(key)

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
            await until_resource_available(partial(self._advance, row, CrawlState.RUNNING, None))
        except (Transient, Permanent) as error:
            log.warning("crawl_seeding.delayed", crawl=row.crawl_id, error=str(error))
            await asyncio.sleep(_ACTIVE_TIME_S)
        finally:
            self._seeding.discard((row.crawl_id, row.revision))

    async def _finish(self, rows: Sequence[CrawlRow], acting: Callable[[], bool]) -> None:
        rows = [row for row in rows if row.state is CrawlState.RUNNING]
        ended: dict[Active, Callable[[Counters], str | None]] = {}
        for row in rows:
            if (excerpt := self._excerpt_of(row)) is not None:
                ended[row.crawl_id, row.revision] = partial(_ended_by, excerpt.budget, row.active_ms)
        finished = await self._check.once(ended, self._store.positions)
        complete = await self._writer.complete(finished.keys())
        for row in rows:
            if row.crawl_id in complete and acting():
                end = finished[row.crawl_id]
                await self._advance(row, CrawlState.FINISHED, end.reason, end.counted)

    async def _look_back(self, acting: Callable[[], bool]) -> None:
        """Reopen finished crawls with queued URLs, collect deleted ones, and delete rows past their retention.

        Seeds, replays and retries may be applied after a crawl was found complete.
        """
        now = self._clock.elapsed()
        if now < self._look_back_at or not acting():
            return
        self._look_back_at = now + _LOOK_BACK_S
        steps = [self._reopen, self._collecting.once]
        if self._retaining is not None:
            steps.append(self._retaining.once)
        try:
            await _each(steps)
        except Transient as error:  # The work is not done, so retry sooner than after a whole interval.
            self._look_back_at = min(self._look_back_at, now + error.retry_in)
            raise

    async def _reopen(self) -> None:
        reopened, further = await self._store.reopen(self._looked_at)
        self._looked_at = further or CrawlId(0)
        for crawl_id in reopened:
            log.info("crawl_state.changed", crawl=crawl_id, state=CrawlState.RUNNING, reason="something was queued")
            self._told()

    async def _advance(self, row: CrawlRow, state: CrawlState, reason: str | None, counted: int | None = None) -> None:
        moved = await self._store.advance_crawl(
            row.crawl_id, row.revision, row.state, state, reason, self._clock.unix_ms(), counted
        )
        if moved:
            log.info("crawl_state.changed", crawl=row.crawl_id, state=state, reason=reason)
            self._told()


async def _each(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all steps, even if some are refused. Raise ResourceFull at the end if a step lacked capacity."""
    full = None
    for step in steps:
        try:
            await step()
        except Permanent as error:
            log.error("crawl_pass.refused", error=str(error))
        except ResourceFull as error:
            full = error
    if full is not None:
        raise full


def _ended_by(budget: Budget, active_ms: int, counters: Counters) -> str | None:
    return spent_of(budget, counters) or ("max_seconds" if time_spent(budget, active_ms) else None)
