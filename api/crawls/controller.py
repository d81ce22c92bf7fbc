"""Decide what must be done for each crawl, and do it.

Every master loads the crawls that it dispatches. The leader also publishes seeds, counts the active time, and ends
crawls. It reopens finished crawls that have queued URLs again, removes rows of deleted crawls, and writes items.

A pass is one call of `once`. It reads the crawls that changed since the last pass, and compares a few others with SQL.
The function `reconcile` decides what to do, without I/O. Each pool has a clock: how long its crawls were worked on.

If two masters lead for a moment, seeds published twice are merged, and time is added to a pool's clock only once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from api.crawls.active_crawls import ActiveCrawlSync
from api.crawls.finished_check import Active, FinishedCheck, refreshed, spent_of
from api.crawls.garbage_collector import GarbageCollector
from api.crawls.item_writer import ItemWriter
from api.crawls.known_crawls import KnownCrawls
from api.crawls.reconcile import (
    Action,
    CloseSpec,
    ForgetSpec,
    LeaderView,
    LoadCrawl,
    LoadedCrawl,
    LocalAction,
    MasterView,
    PublishedSpecs,
    PublishSeeds,
    PublishSpec,
    SetDispatch,
    SpecState,
    StartTime,
    UnloadCrawl,
    reconcile,
    time_is_up,
)
from api.crawls.retention_sweeper import RetentionSweeper
from api.crawls.seed_messages import apply_scope, find_again, publish_seeds, schedule_recrawl
from api.frontier.dispatch_crawls import DispatchCrawls, spec_of
from api.frontier.owner import Alarm, ignore_alarm
from api.frontier.stats import OwnerStats
from api.members.partition_owners import PartitionOwners
from shared.domain.crawl.spec import CrawlSpec
from shared.domain.crawl.state import REFRESHED
from shared.domain.errors import Permanent, ResourceFull, Transient
from shared.domain.frontier.crawl_rows import CrawlChanges, CrawlRow, SeededRun
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Partition, Term
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.store import Store
from shared.runtime.retry import until_resource_available
from shared.runtime.supervise import Tasks

log = structlog.get_logger("orb.control")

_TICK_S: Final = 0.5
_ACTIVE_TIME_S: Final = 2.0
_LONGEST_S: Final = 60.0
"""Maximum seconds that one call of `count_time` adds. More may have passed if the machine slept or SQL was down."""
_LOOK_BACK_S: Final = 2.0
REOPEN_BATCH: Final = 500
"""Maximum crawls that a call of `_reopen` examines while a new leader goes through all crawls for the first time."""
_REOPEN_BATCH_LATER: Final = 10
"""Maximum crawls that one call of `_reopen` examines, after the leader has examined every crawl for the first time."""


def _none() -> None:
    """Do nothing. This is the default of `on_spec`, used while no function publishes specs to workers."""


class CrawlController:
    """Runs all crawls: `run` on every master, and also `lead` on the leader.

    - `crawls`: the crawls that this master dispatches. `fleet`: the owners of this master's partitions.
    - `retaining` deletes rows past their retention. If it is None, no such rows are deleted.
    - `on_changes` are functions, called with the changes that each pass read. They must neither wait nor raise.
    - `still` returns True while resource pressure stops all work of the named pool. The pool's clock then stops.
    """

    def __init__(
        self,
        *,
        store: Store,
        items: ItemTable,
        broker: Broker,
        clock: Clock,
        partitions: int,
        crawls: DispatchCrawls,
        fleet: PartitionOwners,
        retaining: RetentionSweeper | None = None,
        tally: OwnerStats | None = None,
        alarm: Alarm = ignore_alarm,
        still: Callable[[str], bool] = lambda pool: False,
    ) -> None:
        self.specs: PublishedSpecs | None = None
        self.on_changes: Sequence[Callable[[CrawlChanges], None]] = ()
        self._store = store
        self._writer = ItemWriter(items, broker, clock, tally or OwnerStats(), alarm)
        self._broker = broker
        self._clock = clock
        self._partitions = partitions
        self._all_partitions = tuple(map(Partition, range(partitions)))
        self._check = FinishedCheck(self._all_partitions, store, broker)
        self._crawls = crawls
        self._sync = ActiveCrawlSync(crawls, fleet, store)
        self._still = still
        self._known = KnownCrawls()
        self._leading = False
        self._on_spec: Callable[[], None] = _none
        self._seeding: set[SeededRun] = set()
        self._to_seed: dict[CrawlId, CrawlRow] = {}
        self._to_start: dict[CrawlId, str] = {}
        self._collecting = GarbageCollector(store, items, broker, clock)
        self._retaining = retaining
        self._look_back_at = float("-inf")
        self._examined = CrawlId(0)
        self._examined_all = False
        self._counted_at = clock.elapsed()
        self._turn = asyncio.Lock()
        self._poked = asyncio.Event()
        self._passed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<CrawlController {self._known!r} leading={self._leading}>"

    def wake(self, *, look_back: bool = False) -> None:
        """Start the next pass now. With `look_back`, the leader also checks now which crawls to reopen or to remove."""
        if look_back:
            self._look_back_at = float("-inf")
        self._poked.set()

    # --- on every master ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run `once` periodically, and after each `wake`, until cancelled."""
        while True:
            self._poked.clear()
            try:
                await self.once()
            except Transient as error:
                log.warning("crawl_sync.delayed", error=str(error))
            except Permanent as error:
                log.error("crawl_sync.refused", error=str(error))
            if self.specs is not None and self.specs.todo:
                self._on_spec()
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._poked.wait()

    async def once(self) -> None:
        """Run one pass: read which crawls changed, decide what these crawls need, and do this master's part."""
        async with self._turn:
            known = self._known
            counted: set[CrawlId] = set()
            # Read the number first: a commit that comes between is then read by the next pass.
            version = await self._store.data_version()
            if not known.is_current(version):
                changes = await self._store.crawl_changes(known.mark, known.version, known.next_compared())
                known.take(changes, version)
                for take in self.on_changes:
                    take(changes)
                counted = {*changes.counted, *changes.compared}
            if not self._leading:
                known.skip_checks()
            try:
                while await self._settle():  # Decide again on what was loaded: now its spec is known.
                    continue
                await self._sync.read_spending(counted)
            finally:
                self._passed.set()

    async def _settle(self) -> bool:
        """Decide what the pending crawls need, and do this master's part. Return True if a crawl had to be loaded."""
        pending = self._known.pending()
        loaded = self._sync.loaded(pending)
        actions = reconcile(pending, self._view(loaded), self._known.clocks)
        self._known.keep_pending(actions.keys(), loaded)
        local = self._hand_over(pending, actions)
        await self._sync.apply(local)
        return any(isinstance(action, LoadCrawl) for action in local)

    def _view(self, loaded: Mapping[CrawlId, LoadedCrawl]) -> MasterView:
        leader = None
        specs = self.specs
        if self._leading or specs is not None:
            leader = LeaderView(
                None if specs is None else specs.published, () if specs is None else specs.ending, self._seeding
            )
        return MasterView(loaded, self._sync.unreadable(), leader)

    def _hand_over(self, pending: Iterable[CrawlId], actions: Mapping[CrawlId, Iterable[Action]]) -> list[LocalAction]:
        """Return the actions that this master carries out now. Store the leader's actions for the leader's tasks.

        `pending`: the crawls just decided on. `actions`: what each of these crawls needs. Actions that an earlier pass
        stored for crawls in `pending` are dropped.
        """
        for crawl_id in pending:
            self._to_start.pop(crawl_id, None)
            self._to_seed.pop(crawl_id, None)
            if self.specs is not None:
                self.specs.todo.pop(crawl_id, None)
        local: list[LocalAction] = []
        for crawl_id, needed in actions.items():
            for action in needed:
                match action:
                    case LoadCrawl() | UnloadCrawl() | SetDispatch():
                        local.append(action)
                    case PublishSeeds(row):
                        self._to_seed[crawl_id] = row
                    case StartTime(_, pool):
                        self._to_start[crawl_id] = pool
                    case PublishSpec() | CloseSpec() | ForgetSpec():
                        if self.specs is not None:
                            self.specs.todo[crawl_id] = action
        return local

    # --- on the leader ------------------------------------------------------------------------------------------------

    async def replace_specs(self, published: dict[CrawlId, SpecState | None]) -> PublishedSpecs:
        """Replace `self.specs` by a new record of the published specs, and return the record.

        The next pass then decides on every crawl again. `published` has a value for each crawl with a published spec:
        the content of the published spec (`SpecState`), or None if the published spec cannot be read.
        """
        over = [crawl_id for crawl_id in published if crawl_id not in self._known]
        found = {row.crawl_id: row for row in await self._store.crawl_rows(over)}
        ending = {} if self.specs is None else self.specs.ending
        self.specs = PublishedSpecs(published)
        self.specs.ending.update(ending)
        self._known.look_at_all({crawl_id: found.get(crawl_id) for crawl_id in over})
        return self.specs

    async def lead(
        self,
        acting: Callable[[], bool],
        term: Callable[[], Term | None],
        on_spec: Callable[[], None] = _none,
    ) -> None:
        """Do the leader's work until cancelled. `run` must run at the same time.

        - `acting` returns True while this master may act as leader. While it returns False, no step begins.
        - `term` returns the term under which items are written, or None while none may be written.
        - `on_spec` is called after each pass that leaves specs to publish or withdraw.
        """
        self._on_spec = on_spec
        self._leading, self._examined, self._examined_all = True, CrawlId(0), False
        self._seeding.clear()
        self._known.look_at_all({})
        self.wake(look_back=True)
        try:
            async with Tasks() as tasks:
                tasks.start("active-time", self._count_times(acting))
                tasks.start("items", self._writer.run(lambda: term() if acting() else None))
                while True:
                    self._passed.clear()
                    if acting():
                        await self._each(partial(self._tend, tasks), self._finish, self._look_back, acting=acting)
                    await self._passed.wait()
        finally:
            self._leading, self.specs, self._on_spec = False, None, _none
            self._to_seed.clear()
            self._to_start.clear()

    async def _each(self, *steps: Callable[[], Awaitable[None]], acting: Callable[[], bool]) -> None:
        """Run the steps in order while `acting` returns True. Log the error of a step that fails, and run the next."""
        for step in steps:
            try:
                if acting():
                    await step()
            except ResourceFull as error:
                log.debug("crawl_pass.postponed", error=str(error))
            except Transient as error:
                log.warning("crawl_pass.delayed", error=str(error))
            except Permanent as error:
                log.error("crawl_pass.refused", error=str(error))

    async def _tend(self, tasks: Tasks) -> None:
        """Carry out what the last pass decided: publish seeds, as tasks in `tasks`, and start to count active time."""
        for row in self._to_seed.values():
            if row.seeding_key not in self._seeding:
                self._seeding.add(row.seeding_key)
                tasks.start(f"seed.{row.crawl_id}", self._seeded(row))
        self._to_seed.clear()
        starting, self._to_start = self._to_start, {}
        if starting:
            await self._store.start_active_time(starting)
            self._poked.set()

    async def _count_times(self, acting: Callable[[], bool]) -> None:
        """Call `count_time` every `_ACTIVE_TIME_S` seconds until cancelled, but not while `acting` returns False."""
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
        """Add the time since the last call to the active time of each pool with crawls. Skip pools under pressure."""
        now = self._clock.elapsed()
        worked_ms = int(min(now - self._counted_at, _LONGEST_S) * 1000)
        clocks = {pool: ms for pool, ms in self._known.pools().items() if not self._still(pool)}
        if clocks:
            await self._store.add_pool_time(clocks, worked_ms)
            for pool, ms in clocks.items():
                self._known.clocks[pool] = max(self._known.clocks[pool], ms + worked_ms)
        self._counted_at = now

    async def _seeded(self, row: CrawlRow) -> None:
        try:
            spec = spec_of(row)
            if spec is None:
                return
            if row.revision > 1:
                scoped = await self._store.scope_revision(row.crawl_id)
                if scoped > 1:
                    await apply_scope(self._broker, row.crawl_id, scoped, self._partitions)
                counters = await self._store.counters(row.crawl_id)
                await schedule_recrawl(
                    self._broker, row.crawl_id, row.revision, spec.recrawl, counters, self._partitions
                )
                widened = await self._store.widened_revision(row.crawl_id)
                if widened is not None:
                    await find_again(self._broker, row.crawl_id, widened, self._partitions)
            seeds = await publish_seeds(self._broker, row.crawl_id, row.revision, spec.seeds, self._partitions)
            log.info("crawl.seeded", crawl=row.crawl_id, revision=row.revision, seeds=seeds)
            await until_resource_available(partial(self._advance, row, CrawlState.RUNNING, None))
        except (Transient, Permanent) as error:
            log.warning("crawl_seeding.delayed", crawl=row.crawl_id, error=str(error))
            await asyncio.sleep(_ACTIVE_TIME_S)
        finally:
            self._seeding.discard(row.seeding_key)

    async def _finish(self) -> None:
        """Check the unchecked crawls. End each crawl that is finished and whose items are all stored or dropped."""
        rows = {row.crawl_id: row for row in self._known.take_unchecked()}
        unfinished = set(rows)
        try:
            ended: dict[Active, Callable[[Counters], str | None]] = {}
            over = await self._refreshed(rows.values())
            for crawl_id, row in rows.items():
                crawl = self._crawls.get(crawl_id)
                if crawl is not None and crawl.revision == row.revision:
                    ended_by = partial(_ended_by, crawl.spec, self._out_of_time(row), over.get(crawl_id))
                    ended[crawl_id, row.revision, row.operator_version] = ended_by
            finished = await self._check.once(ended, self._store.positions)
            complete = await self._writer.complete(finished.keys())
            for crawl_id in complete:
                end = finished[crawl_id]
                await self._advance(rows[crawl_id], CrawlState.FINISHED, end.reason, end.counted)
            # What a refresh waits for may end without a change of the counters, so each check looks at it.
            waiting = {row.crawl_id for row in rows.values() if row.refresh_ms and row.crawl_id not in complete}
            unfinished = {active[0] for active in self._check.resting} | waiting
        finally:
            self._known.check_again(unfinished)

    async def _refreshed(self, rows: Iterable[CrawlRow]) -> Mapping[CrawlId, int]:
        """Return the crawls of `rows` whose refresh is complete, each with the version of its counters at the check."""
        loaded = ((row, self._crawls.get(row.crawl_id)) for row in rows if row.refresh_ms)
        crawls = [
            crawl
            for row, crawl in loaded
            if crawl is not None and crawl.spec.recrawl.used and crawl.refresh_ms == row.refresh_ms
        ]
        return await refreshed(self._store, self._all_partitions, crawls)

    def _out_of_time(self, row: CrawlRow) -> bool:
        loaded = self._sync.loaded([row.crawl_id]).get(row.crawl_id)
        return loaded is not None and time_is_up(row, loaded.max_ms, self._known.clocks)

    async def _look_back(self) -> None:
        """Reopen finished crawls with queued URLs, remove rows of deleted crawls, and delete rows past their retention.

        Do this every `_LOOK_BACK_S` seconds, or sooner after `wake` or an error. Otherwise do nothing. A finished crawl
        has queued URLs if seeds, replays or retries were applied after its end.
        """
        now = self._clock.elapsed()
        if now < self._look_back_at:
            return
        self._look_back_at = now + _LOOK_BACK_S
        steps = [self._reopen, self._collecting.once]
        if self._retaining is not None:
            steps.append(self._retaining.once)
        try:
            await _all(steps)
        except Transient as error:  # The work is not done, so retry sooner than after a whole interval.
            self._look_back_at = min(self._look_back_at, now + error.retry_in)
            raise

    async def _reopen(self) -> None:
        late = set(self._known.late)
        max_count = _REOPEN_BATCH_LATER if self._examined_all else REOPEN_BATCH
        reopened, further = await self._store.reopen(self._examined, max_count, late)
        self._known.late -= late
        self._examined = further or CrawlId(0)
        self._examined_all |= further is None
        if reopened:
            self._poked.set()
            for row in await self._store.crawl_rows(reopened):
                log.info("crawl_state.changed", crawl=row.crawl_id, state=row.state, reason="something was queued")

    async def _advance(self, row: CrawlRow, state: CrawlState, reason: str | None, counted: int | None = None) -> None:
        """Move a crawl to `state` in SQL, but only if these have not changed since `row` was read:

        - With `counted`: the whole row, and the crawl's counters. `counted` is their expected version.
        - Without `counted`: the state, the revision and `operator_version`, which each change by an operator raises.
        """
        seen = (None, row.operator_version) if counted is None else (row.change, None)
        moved = await self._store.advance_crawl(
            row.crawl_id, row.revision, row.state, state, reason, self._clock.unix_ms(), counted, *seen
        )
        if moved:
            log.info("crawl_state.changed", crawl=row.crawl_id, state=state, reason=reason)
            self._poked.set()


async def _all(steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all steps. Log Permanent errors. Raise ResourceFull after the last step, and other errors at once."""
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


def _ended_by(spec: CrawlSpec, out_of_time: bool, refreshed_at: int | None, counters: Counters) -> str | None:
    if counters.version == refreshed_at:
        return REFRESHED
    return spent_of(spec, counters) or ("max_seconds" if out_of_time else None)
