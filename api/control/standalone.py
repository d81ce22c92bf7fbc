"""The standalone master: owns every partition of one folder's database and works on one crawl until it is finished."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import structlog

from api.control.finishing import FinishedCheck, finished
from api.control.item_table import ItemWriter
from api.control.rationing import MasterRoom
from api.control.rationing import unheard as unheard_of_room
from api.control.seeding import publish_seeds, retry_failed, retry_unanswered
from api.frontier.crawls import ActiveCrawl, Crawls
from api.frontier.owner import Owner, unheard
from api.frontier.ownership import FrontierSettings
from api.frontier.room import Allowance, PoolRoom, Spent
from api.frontier.tally import FrontierTally
from api.frontier.waiting import front_waits, waiting_in
from shared.domain.crawl import CrawlSpec, encode_spec
from shared.domain.errors import NoRoom, Transient
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.ledger import CrawlRow
from shared.domain.waits import Waits
from shared.domain.watermarks import Place, Watermarks
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.rationing import NO_GAUGES, Gauge, Rationing
from shared.ports.retrying import until_answered, until_there_is_room
from shared.ports.specs import PublishedSpec, SpecPublisher
from shared.ports.store import Store
from shared.supervise import until_stopped
from shared.wire.messages import HostProgress, Malformed, Progress, decode_status, encode
from shared.wire.subjects import PROGRESS, WORKER_STATUS

T = TypeVar("T")

log = structlog.get_logger("orb.control")

_PROGRESS_S = 0.5
_SLOWEST = 5
_HOSTS_A_SECOND = 4_000
"""Hosts gone over for what they wait for, some 3 us each."""

_ACTIVE_TIME_S = 5.0


class Standalone:
    """One crawl, all partitions, no election: whoever holds the folder's lock is the only master there is."""

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
        gauges: Mapping[Place, Gauge] = NO_GAUGES,
        retry_id: str = "",
        unblock: bool = False,
    ) -> None:
        """`gauges`: what is looked at: while one is full, nothing is sent out, and no time of the crawl is used up.
        `retry_id`: retry every failed URL, once for each such id; empty: retry none. `unblock`: ask at once what is
        left alone."""
        self._spec = spec
        self._retry_id = retry_id
        self._unblock = unblock
        self._store = store
        self._writer = ItemWriter(items, broker, clock, FrontierTally(), unheard)
        self._broker = broker
        self._specs = specs
        self._clock = clock
        self._settings = settings
        self._alone = alone
        self._crawls = Crawls()
        self._room = PoolRoom()
        self._turn = asyncio.Lock()
        watcher = MasterRoom("master", self._room, lambda: self._rationing, unheard_of_room, lambda: None)
        self._rationing = Rationing(gauges, Watermarks, watcher)
        self._owners: list[Owner] = []
        self._waits = Waits()
        self._waits_again_at = float("-inf")

    async def run(self, stop: asyncio.Event, *, grace_s: float) -> None:
        """Work until `stop`, then apply what was reported, for at most `grace_s`."""
        active = asyncio.Event()
        await until_stopped(self._run(stop, active, grace_s), stop, active)

    async def _run(self, stop: asyncio.Event, active: asyncio.Event, grace_s: float) -> None:
        """`active` is set once the crawl is: what is waited for until then may never come."""
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
            running.append(tasks.create_task(self._tell_progress(crawl), name="tell-progress"))
            running.append(tasks.create_task(self._finish(crawl), name="finish"))
            await stop.wait()
            crawl.dispatching = False
            await self._catch_up(crawl.crawl_id, grace_s)
            for task in running:
                task.cancel()

    async def _activate(self) -> ActiveCrawl:
        """Store and publish the spec; load what the crawl has spent."""
        document = encode_spec(self._spec).decode()
        row, changed = await _answered(lambda: self._store.put_crawl(self._spec.name, document, self._clock.unix_ms()))
        log.info("crawl.active", crawl=row.crawl_id, name=row.name, revision=row.revision, changed=changed)
        parts = (await _answered(partial(self._store.counters_by_partition, [row.crawl_id])))[row.crawl_id]
        spent = {partition: Spent(part.pages, part.bytes, part.leased) for partition, part in parts.items()}
        budget = self._spec.budget
        crawl = ActiveCrawl(
            crawl_id=row.crawl_id,
            name=row.name,
            revision=row.revision,
            spec=self._spec,
            state=row.state,
            allowance=Allowance(budget.max_pages, budget.max_bytes, spent),
        )
        await self._publish(crawl, paused=False)
        self._crawls.put(crawl)
        return crawl

    async def _publish(self, crawl: ActiveCrawl, *, paused: bool) -> None:
        """Publish the spec to the workers. Paused, their visits start no further request and hand back the rest."""
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
            room=self._room,
            settings=self._settings,
            alone=self._alone,
            turn=self._turn,
        )

    async def _owned(self, owner: Owner) -> None:
        await owner.run()
        raise RuntimeError(f"partition {owner.partition} was taken by another master, though the folder is locked")

    async def _hear_workers(self) -> None:
        async with self._broker.listen(WORKER_STATUS) as statuses:
            async for data in statuses:
                try:
                    self._room.heard(decode_status(data), self._clock.elapsed())
                except Malformed as error:
                    log.warning("worker.malformed_status", error=str(error))
                    continue
                for owner in self._owners:
                    if owner.ownership is not None:
                        owner.ownership.work.set()

    async def _finish(self, crawl: ActiveCrawl) -> None:
        """Seed, run, and end the crawl when it is finished."""
        if self._retry_id:
            await retry_failed(self._broker, crawl.crawl_id, self._retry_id, self._settings.partitions)
        if crawl.state is CrawlState.SEEDING:
            if crawl.revision > 1 and not self._retry_id:
                await retry_unanswered(self._broker, crawl.crawl_id, crawl.revision, self._settings.partitions)
            n = await publish_seeds(
                self._broker, crawl.crawl_id, crawl.revision, self._spec.seeds, self._settings.partitions
            )
            log.info("crawl.seeded", crawl=crawl.crawl_id, seeds=n)
        if crawl.state is not CrawlState.FINISHED or self._retry_id:
            await self._to(crawl, CrawlState.RUNNING, None)
        since = self._clock.elapsed()
        row = await _answered(partial(self._store.crawl, crawl.crawl_id))
        active_ms = row.active_ms if row is not None else 0
        worked_s = 0.0
        check = FinishedCheck([owner.partition for owner in self._owners], self._store, self._broker)
        while crawl.state is CrawlState.RUNNING:
            await asyncio.sleep(_PROGRESS_S / 2)
            now = self._clock.elapsed()
            worked_s += 0.0 if self._held() else now - since
            since = now
            limit_s = self._spec.budget.max_seconds
            if crawl.dispatching and limit_s is not None and active_ms / 1000 + worked_s >= limit_s:
                crawl.dispatching = False
                await self._publish(crawl, paused=True)
            try:
                if worked_s >= _ACTIVE_TIME_S:
                    worked_ms = int(worked_s * 1000)
                    await self._count_time(crawl, worked_ms)
                    active_ms += worked_ms
                    worked_s = 0.0
                reason = await finished(check, crawl, self._owners)
                if reason is not None and not await self._writer.has(crawl.crawl_id):
                    reason = None
            except Transient as error:
                if not isinstance(error, NoRoom):  # of which the store's adapter tells
                    log.warning("finish.waits", error=str(error))
                await asyncio.sleep(error.retry_in)
                continue
            if reason is not None:
                worked_ms = int(worked_s * 1000)
                await until_there_is_room(partial(self._count_time, crawl, worked_ms))
                await self._to(crawl, CrawlState.FINISHED, reason)

    async def _count_time(self, crawl: ActiveCrawl, worked_ms: int) -> None:
        """Add to the time in which the crawl was worked on. Once: of an addition whose answer was lost nobody knows.
        NoRoom: it was not added."""
        try:
            await self._store.add_active_time(crawl.crawl_id, worked_ms)
        except NoRoom:
            raise
        except Transient as error:
            log.warning("crawl.time_unsure", crawl=crawl.crawl_id, seconds=worked_ms / 1000, error=str(error))

    def _held(self) -> str | None:
        """Why nothing is worked on: this process is short of room, or no worker has any. None while something is."""
        workers = self._room.live(self._clock.elapsed())
        if self._room.held is None and workers and all(status.short for status in workers):
            return f"{workers[0].worker}: {workers[0].short}"
        return self._room.held

    async def _to(self, crawl: ActiveCrawl, state: CrawlState, reason: str | None) -> None:
        await _answered(lambda: self._store.set_state(crawl.crawl_id, state, reason, self._clock.unix_ms()))
        crawl.state = state
        log.info("crawl.state", crawl=crawl.crawl_id, state=state, reason=reason)

    async def _tell_progress(self, crawl: ActiveCrawl) -> None:
        while True:
            try:
                row = await self._store.crawl(crawl.crawl_id)
                if row is not None:
                    await self._broker.tell(PROGRESS, encode(await self._progress(row)))
            except Transient as error:
                log.warning("progress.untold", error=str(error))
            await asyncio.sleep(_PROGRESS_S)

    async def _progress(self, row: CrawlRow) -> Progress:
        counters = await self._store.counters(row.crawl_id)
        tallies = await self._store.tallies(row.crawl_id)
        owned = [owner.ownership for owner in self._owners if owner.ownership is not None]
        now = self._clock.elapsed()
        waits = self._waits_at(row.crawl_id, now)
        hosts = [host for own in owned for host in own.front.moving()]
        hosts.sort(key=lambda host: host.facts.latency_ms, reverse=True)
        return Progress(
            crawl=row.crawl_id,
            name=row.name,
            revision=row.revision,
            state=row.state,
            finished_reason=row.finished_reason,
            counters={name: getattr(counters, name) for name in counters.__dataclass_fields__},
            tallies=tallies,
            active_ms=row.active_ms,
            hosts_in_motion=len(hosts),
            hosts_known=sum(len(own.front) for own in owned),
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
            workers=self._room.live(now),
            alarms=[*_alarms(self._owners), *([f"nothing is sent out: {held}"] if (held := self._held()) else [])],
            waiting=waiting_in(waits),
            hosts_waiting=waits.number,
            standing=waits.standing,
            hosts_left_ms=int(waits.left_s * 1000) if waits.left_s >= 0 else -1,
        )

    def _waits_at(self, crawl_id: CrawlId, now: float) -> Waits:
        """Return what hosts wait for: of many hosts, as of a few seconds ago."""
        crawl = self._crawls.get(crawl_id)
        if crawl is not None and now >= self._waits_again_at:
            fronts = [owner.ownership.front for owner in self._owners if owner.ownership is not None]
            self._waits = front_waits(fronts, crawl, now, self._clock.unix_ms())
            self._waits_again_at = now + sum(map(len, fronts)) / _HOSTS_A_SECOND
        return self._waits

    async def _catch_up(self, crawl_id: CrawlId, grace_s: float) -> None:
        """Apply what is in the streams, for at most `grace_s`."""
        try:
            async with asyncio.timeout(grace_s):
                while True:
                    if await self._caught_up() and await self._writer.has(crawl_id):
                        return
                    await asyncio.sleep(0.05)
        except (TimeoutError, Transient) as error:
            log.warning("stop.reports_left", error=str(error) or "time ran out; they are applied at the next start")

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
    """The call's result, trying again after every Transient for as long as it takes; the log says that it does. For
    what may be done twice: after most of them nobody knows whether it was done."""
    return await until_answered(call, lambda error: log.warning("crawl.waits", error=str(error)))
