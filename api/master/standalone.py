"""The standalone master: owns every partition of one folder's database and works on one crawl until it is finished."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog
from msgspec import structs

from api.crawls.finished_check import FinishedCheck, finished, refreshed
from api.crawls.item_writer import ItemWriter
from api.crawls.seed_messages import (
    apply_scope,
    find_again,
    publish_seeds,
    retry_failed,
    retry_unanswered,
    schedule_recrawl,
)
from api.frontier.capacity import BudgetReservation, PoolCapacity, spent_in
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.owner import Owner, ignore_alarm
from api.frontier.ownership import FrontierSettings
from api.frontier.stats import OwnerStats
from api.master.host_waits import host_waits, waiting_in
from api.members.pressure import MasterPressure, log_only
from api.members.status_request import ask_statuses
from shared.domain.crawl.spec import CrawlSpec, encode_spec
from shared.domain.errors import ResourceFull, Transient
from shared.domain.explain.waits import Waits
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.ops.watermarks import Resource, Watermarks, reason_of
from shared.ports.archive import PageArchive
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.specs import PublishedSpec, SpecPublisher
from shared.ports.store import Store
from shared.runtime.pressure_monitor import NO_GAUGES, Gauge, PressureMonitor
from shared.runtime.retry import until_answered, until_resource_available
from shared.runtime.supervise import until_stopped
from shared.wire.messages import HostProgress, Malformed, Progress, decode_status, encode
from shared.wire.subjects import PROGRESS, WORKER_STATUS

T = TypeVar("T")

log = structlog.get_logger("orb.control")

_PROGRESS_S = 0.5
_SLOWEST = 5
_HOSTS_A_SECOND = 1_000
"""Limits the scans that find the reason why each host waits, such as its delay.

On average, at most this many hosts are scanned per second. One host takes about 8 microseconds."""

_ACTIVE_TIME_S = 5.0
_COALESCE_S = 0.02
"""Minimum seconds between two checks of whether the crawl is finished."""


class Standalone:
    """Runs one crawl in one process: it owns all partitions and does what the leader of a cluster does for a crawl.

    There is no election, because the folder's lock admits only one master.
    """

    def __init__(
        self,
        spec: CrawlSpec,
        *,
        store: Store,
        items: ItemTable,
        broker: Broker,
        specs: SpecPublisher,
        clock: Clock,
        settings: FrontierSettings,
        alone: bool,
        archive: PageArchive | None = None,
        gauges: Mapping[Resource, Gauge] = NO_GAUGES,
        retry_id: str = "",
        unblock: bool = False,
        refresh_ms: int = 0,
    ) -> None:
        """Prepare the crawl.

        - `alone`: every worker of an earlier run is known to be dead.
        - `archive`: the folder's archive of pages.
        - `gauges`: measure resources. While one is full, nothing is dispatched and the crawl uses up no time.
        - `retry_id`: if not empty, every failed URL is retried. A repeated `retry_id` has no effect.
        - `unblock`: at the start, lift the blocks of hosts and make URLs that wait for a retry due.
        - `refresh_ms`: for a crawl that fetches its pages again, when its refresh began (Unix ms). The crawl ends once
          everything that was due at this time is fetched. 0: no refresh.
        """
        self._refresh_ms = refresh_ms
        self._spec = spec
        self._retry_id = retry_id
        self._unblock = unblock
        self._store = store
        self._writer = ItemWriter(items, broker, clock, OwnerStats(), ignore_alarm)
        self._broker = broker
        self._specs = specs
        self._clock = clock
        self._settings = settings
        self._alone = alone
        self._archive = archive
        self._crawls = DispatchCrawls()
        self._capacity = PoolCapacity()
        self._turn = asyncio.Lock()
        pressure = MasterPressure("master", self._capacity, log_only, lambda: None)
        self._rationing = PressureMonitor(gauges, Watermarks, pressure.changed)
        self._owners: list[Owner] = []
        self._applied = asyncio.Event()
        self._changed = asyncio.Event()
        self._waits = Waits()
        self._waits_again_at = float("-inf")

    async def run(self, stop: asyncio.Event, *, grace_s: float) -> None:
        """Work until `stop` is set, then apply the reports that wait, for at most `grace_s` seconds."""
        active = asyncio.Event()
        await until_stopped(self._run(stop, active, grace_s), stop, active)

    async def _run(self, stop: asyncio.Event, active: asyncio.Event, grace_s: float) -> None:
        """Run the crawl until `stop` is set. Set `active` once the crawl is activated.

        Until then, this method ignores `stop`, and may wait without limit for the database or NATS. To stop it before
        `active` is set, the caller must cancel it.
        """
        crawl = await self._activate()
        now_ms = self._clock.unix_ms()
        await _answered(partial(self._store.begin_run, crawl.crawl_id, now_ms, unblock=self._unblock))
        term = Term(await _answered(self._store.newest_term) + 1)
        active.set()
        self._owners = [self._owner(Partition(p), term) for p in range(self._settings.partitions)]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._owned(owner), name=f"owner.{owner.partition}") for owner in self._owners]
            running.append(tasks.create_task(self._writer.run(lambda: term), name="items"))
            running.append(tasks.create_task(self._hear_workers(), name="hear-workers"))
            running.append(tasks.create_task(self._rationing.run(), name="rationing"))
            running.append(tasks.create_task(self._publish_progress(crawl), name="tell-progress"))
            running.append(tasks.create_task(self._run_crawl(crawl), name="finish"))
            await stop.wait()
            crawl.dispatching = False
            await self._catch_up(crawl.crawl_id, grace_s)
            for task in running:
                task.cancel()

    async def _activate(self) -> DispatchCrawl:
        """Store and publish the spec, and load what the crawl has spent. Return the crawl."""
        document = encode_spec(self._spec).decode()
        row, changed = await _answered(lambda: self._store.put_crawl(self._spec.name, document, self._clock.unix_ms()))
        log.info("crawl.activated", crawl=row.crawl_id, name=row.name, revision=row.revision, changed=changed)
        parts = (await _answered(partial(self._store.counters_by_partition, [row.crawl_id])))[row.crawl_id]
        spent = {partition: spent_in(part) for partition, part in parts.items()}
        budget = self._spec.budget
        crawl = DispatchCrawl(
            crawl_id=row.crawl_id,
            name=row.name,
            revision=row.revision,
            spec=self._spec,
            state=row.state,
            allowance=BudgetReservation(budget.max_pages, budget.max_bytes, spent),
            refresh_ms=self._refresh_ms,
        )
        await self._publish(crawl, paused=False)
        self._crawls.put(crawl)
        return crawl

    async def _publish(self, crawl: DispatchCrawl, *, paused: bool) -> None:
        """Publish the spec to the workers.

        If `paused`, their visits start no further request, and hand back the URLs that are left.
        """
        published = PublishedSpec(crawl.crawl_id, crawl.revision, self._spec, self._settings.partitions, paused=paused)
        await _answered(partial(self._specs.publish, published))

    def _owner(self, partition: Partition, term: Term) -> Owner:
        return Owner(
            partition,
            term,
            store=self._store,
            broker=self._broker,
            clock=self._clock,
            crawls=self._crawls,
            capacity=self._capacity,
            settings=self._settings,
            alone=self._alone,
            turn=self._turn,
            applied=self._applied.set,
            archive=self._archive,
        )

    async def _owned(self, owner: Owner) -> None:
        await owner.run()
        raise RuntimeError(f"partition {owner.partition} was taken by another master, though the folder is locked")

    async def _hear_workers(self) -> None:
        async with self._broker.listen(WORKER_STATUS) as statuses:
            await ask_statuses(self._broker)
            async for data in statuses:
                try:
                    self._capacity.worker_reported(decode_status(data), self._clock.elapsed())
                except Malformed as error:
                    log.warning("worker_status.rejected", error=str(error))
                    continue
                for owner in self._owners:
                    if owner.ownership is not None:
                        owner.ownership.capacity_changed()

    async def _run_crawl(self, crawl: DispatchCrawl) -> None:
        """Work on the crawl until it is finished, and then store the state `finished` with the reason.

        Begin with the commands and seeds that the crawl needs: publish them to the owners.
        """
        if self._retry_id:
            await retry_failed(self._broker, crawl.crawl_id, self._retry_id, self._settings.partitions)
        if crawl.state is CrawlState.SEEDING:
            if crawl.revision > 1 and not self._retry_id:
                await retry_unanswered(self._broker, crawl.crawl_id, crawl.revision, self._settings.partitions)
            if crawl.revision > 1:
                await self._apply_scope(crawl)
                counters = await _answered(partial(self._store.counters, crawl.crawl_id))
                await schedule_recrawl(
                    self._broker,
                    crawl.crawl_id,
                    crawl.revision,
                    self._spec.recrawl,
                    counters,
                    self._settings.partitions,
                )
            n = await publish_seeds(
                self._broker, crawl.crawl_id, crawl.revision, self._spec.seeds, self._settings.partitions
            )
            log.info("crawl.seeded", crawl=crawl.crawl_id, seeds=n)
        if crawl.state is not CrawlState.FINISHED or self._retry_id or self._spec.recrawl.used:
            await self._to(crawl, CrawlState.RUNNING, None)
        since = self._clock.elapsed()
        row = await _answered(partial(self._store.crawl, crawl.crawl_id))
        active_ms = row.active_ms if row is not None else 0
        worked_s = 0.0
        out_of_time = False
        check = FinishedCheck([owner.partition for owner in self._owners], self._store, self._broker)
        while crawl.state is CrawlState.RUNNING:
            await self._until_look()
            now = self._clock.elapsed()
            worked_s += 0.0 if self._held() else now - since
            since = now
            limit_s = self._spec.budget.max_seconds
            if not out_of_time and limit_s is not None and active_ms / 1000 + worked_s >= limit_s:
                out_of_time, crawl.dispatching = True, False
                await self._publish(crawl, paused=True)
            try:
                if worked_s >= _ACTIVE_TIME_S:
                    worked_ms = int(worked_s * 1000)
                    await self._count_time(crawl, worked_ms)
                    active_ms += worked_ms
                    worked_s = 0.0
                over = await refreshed(self._store, [owner.partition for owner in self._owners], [crawl])
                at = over.get(crawl.crawl_id)
                reason = await finished(check, crawl, self._owners, out_of_time=out_of_time, refreshed=at)
                if reason is not None and not await self._writer.is_complete(crawl.crawl_id):
                    reason = None
            except Transient as error:
                if not isinstance(error, ResourceFull):  # The store's adapter logs that.
                    log.warning("finish_check.delayed", error=str(error))
                await asyncio.sleep(error.retry_in)
                continue
            if reason is not None:
                worked_ms = int(worked_s * 1000)
                await until_resource_available(partial(self._count_time, crawl, worked_ms))
                await self._to(crawl, CrawlState.FINISHED, reason)

    async def _apply_scope(self, crawl: DispatchCrawl) -> None:
        """Command the owners to apply a changed scope, and to find again the links that a wider scope admits."""
        partitions = self._settings.partitions
        scoped = await _answered(partial(self._store.scope_revision, crawl.crawl_id))
        if scoped > 1:
            await apply_scope(self._broker, crawl.crawl_id, scoped, partitions)
        widened = await _answered(partial(self._store.widened_revision, crawl.crawl_id))
        if widened is not None:
            await find_again(self._broker, crawl.crawl_id, widened, partitions)

    async def _until_look(self) -> None:
        """Wait before the next check of whether the crawl is finished.

        Return when reports were applied and no URL shard is leased, or after `_PROGRESS_S / 2` seconds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROGRESS_S / 2):
                leased = True
                while leased:
                    self._applied.clear()
                    await self._applied.wait()
                    await asyncio.sleep(_COALESCE_S)
                    leased = any(owner.ownership is None or owner.ownership.leases for owner in self._owners)

    async def _count_time(self, crawl: DispatchCrawl, worked_ms: int) -> None:
        """Add `worked_ms` milliseconds to the crawl's active time.

        - If the store raises ResourceFull, the time was not added. Raise ResourceFull.
        - If the store raises another Transient, the time may have been added. Log the error and return.
        """
        try:
            await self._store.add_active_time(crawl.crawl_id, worked_ms)
        except ResourceFull:
            raise
        except Transient as error:
            log.warning("active_time.unconfirmed", crawl=crawl.crawl_id, duration_s=worked_ms / 1000, error=str(error))

    def _held(self) -> str | None:
        """Return the resource pressure that stops all work, as text. None if work may continue.

        All work stops if this process or every worker is under pressure.
        """
        workers = self._capacity.live(self._clock.elapsed())
        if self._capacity.held is None and workers and all(status.pressure for status in workers):
            return f"{workers[0].worker}: {reason_of(workers[0].pressure)}"
        return self._capacity.held

    async def _to(self, crawl: DispatchCrawl, state: CrawlState, reason: str | None) -> None:
        await _answered(lambda: self._store.set_state(crawl.crawl_id, state, reason, self._clock.unix_ms()))
        crawl.state = state
        self._changed.set()
        log.info("crawl_state.changed", crawl=crawl.crawl_id, state=state, reason=reason)

    async def _publish_progress(self, crawl: DispatchCrawl) -> None:
        while True:
            try:
                row = await self._store.crawl(crawl.crawl_id)
                if row is not None:
                    await self._broker.tell(PROGRESS, encode(await self._progress(row)))
            except Transient as error:
                log.warning("progress_update.dropped", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROGRESS_S):
                    await self._changed.wait()
            self._changed.clear()

    async def _progress(self, row: CrawlRow) -> Progress:
        counters = await self._store.counters(row.crawl_id)
        tallies = await self._store.tallies(row.crawl_id)
        owned = [owner.ownership for owner in self._owners if owner.ownership is not None]
        now = self._clock.elapsed()
        waits = self._waits_at(row.crawl_id, now)
        hosts = [host for own in owned for host in own.hosts.moving()]
        hosts.sort(key=lambda host: host.facts.latency_ms, reverse=True)
        return Progress(
            crawl=row.crawl_id,
            name=row.name,
            revision=row.revision,
            state=row.state,
            finished_reason=row.finished_reason,
            counters=structs.asdict(counters),
            tallies=tallies,
            active_ms=row.active_ms,
            hosts_in_motion=len(hosts),
            hosts_known=sum(len(own.hosts) for own in owned),
            leases=sum(len(own.leases) for own in owned),
            reports_pending=0,
            slowest=[
                HostProgress(
                    host.name,
                    host.facts.latency_ms,
                    sum(queue.queued for queue in host.queues.values()),
                    max(0, int((host.blocked_until - now) * 1000)),
                )
                for host in hosts[:_SLOWEST]
            ],
            workers=self._capacity.live(now),
            alarms=[*_alarms(self._owners), *([f"nothing is sent out: {held}"] if (held := self._held()) else [])],
            waiting=waiting_in(waits),
            hosts_waiting=waits.number,
            standing=waits.standing,
            hosts_left_ms=int(waits.left_s * 1000) if waits.left_s >= 0 else -1,
        )

    def _waits_at(self, crawl_id: CrawlId, now: float) -> Waits:
        """Return what the crawl's hosts wait for. With many hosts this may be a few seconds old."""
        crawl = self._crawls.get(crawl_id)
        if crawl is not None and now >= self._waits_again_at:
            fronts = [owner.ownership.hosts for owner in self._owners if owner.ownership is not None]
            self._waits = host_waits(fronts, crawl, now, self._clock.unix_ms())
            self._waits_again_at = now + sum(map(len, fronts)) / _HOSTS_A_SECOND
        return self._waits

    async def _catch_up(self, crawl_id: CrawlId, grace_s: float) -> None:
        """Wait until the reports in the streams are applied, for at most `grace_s`."""
        try:
            async with asyncio.timeout(grace_s):
                while True:
                    if await self._caught_up() and await self._writer.is_complete(crawl_id):
                        return
                    await asyncio.sleep(0.05)
        except (TimeoutError, Transient) as error:
            log.warning("reports.deferred", error=str(error) or "time ran out; they are applied at the next start")

    async def _caught_up(self) -> bool:
        for owner in self._owners:
            own = owner.ownership
            if own is None:
                return False
            if own.position.outcome_seq < await self._broker.last_report(owner.partition, "outcome"):
                return False
            if own.position.discovery_seq < await self._broker.last_report(owner.partition, "discovery"):
                return False
        return True


def _alarms(owners: Sequence[Owner]) -> list[str]:
    return [text for text, _ in Counter(text for owner in owners for text in owner.alarms).most_common(10)]


async def _answered(call: Callable[[], Awaitable[T]]) -> T:
    """Return the call's result. Log and retry every Transient, without a limit.

    Use it only for idempotent calls: after most such errors it is unknown whether the call was applied.
    """
    return await until_answered(call, lambda error: log.warning("crawl_update.delayed", error=str(error)))
