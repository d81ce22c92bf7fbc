"""Dispatch: turn due hosts into leased URL shards, as many as the live workers can take soon.

A lease is committed before its shard is published. The sweep publishes a shard again if that failed or the broker lost
it. The broker refuses a shard while an earlier one is in the same slot of its host. If a shard is too large for the
broker, the sweep puts its URLs back, and they are leased again in smaller shards. If the disk of the database is full,
the URLs stay queued, and dispatch tries again after the time that the error names.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from functools import partial

import structlog
from msgspec import Struct, field

from api.frontier.host_shares import NEVER, CrawlQueue
from api.frontier.hosts import Host, shard_limit
from api.frontier.leases import TrackedLease
from api.frontier.stats import TransactionKind
from api.frontier.writer import PartitionWriter
from shared.domain.crawl.exclusions import OWNER
from shared.domain.errors import ResourceFull, TooLarge, Transient
from shared.domain.frontier.page_visits import conditional
from shared.domain.frontier.seed_contexts import numbered
from shared.domain.frontier.states import HOST_BUDGET, OUTSIDE_BUDGET, REVISIT, UrlState, kind_of
from shared.domain.frontier.store_model import LeasedUrl, LeaseRequest
from shared.domain.ids import LeaseId
from shared.ports.broker import Broker
from shared.wire.messages import ShardUrl, UrlShard, encode

log = structlog.get_logger("orb.frontier")

_RETRY_S = 1.0
_REFUSED_FIRST_S = 0.01
_GO_ON_S = 0.01
_BUDGET_S = 5.0
"""Seconds until a queue is examined again, if `recrawl.requests_per_day` allows no request for a stored page now."""

_SPENT_S = 60.0
"""Maximum seconds until a queue is examined again, if nothing was leased because its crawl's budget is spent.
The queue is examined sooner if one of its waiting URLs becomes due."""


class _Refused(Struct, frozen=True):
    """A shard that the broker refused, because an earlier shard is still in the same slot of the host.

    It is published again at `at` (`Clock.elapsed`). Each further refusal doubles the wait, `wait_s`.
    """

    held: TrackedLease
    at: float
    wait_s: float


class _Preparation(Enum):
    """What SQL must do for a queue before URLs of it can be leased."""

    PROMOTE = "move the URLs that waited and are due into the queue"
    SPENT = "exclude the rest of the queue, because the host's page budget is spent"
    OWNER = "exclude the queue, because an exclusion covers the host"


_Request = tuple[LeaseRequest, Host, CrawlQueue]


class DispatchPlan(Struct):
    """What one pass of dispatch decides: the leases to write, and the queues that SQL must change first.

    - `requests`: the leases to write. Their slots and their budget are reserved already.
    - `unprepared`: queues whose URLs must be changed in SQL before a lease (`_Preparation`), for example excluded.
    - `took_any`: True if the pass examined any queue, even if both lists are empty. The next pass then begins at once.
    """

    requests: list[_Request] = field(default_factory=list)
    unprepared: list[tuple[Host, CrawlQueue]] = field(default_factory=list)
    took_any: bool = False


class Dispatch:
    """Leases and publishes the shards of one partition."""

    def __init__(self, writer: PartitionWriter, broker: Broker) -> None:
        own = writer.own
        self._own, self._hosts, self._leases, self._crawls = own, own.hosts, own.leases, own.crawls
        self._writer, self._store, self._clock, self._stats = writer, writer.store, writer.clock, writer.stats
        self._broker = broker
        self._refused: dict[LeaseId, _Refused] = {}
        self._paused_until = float("-inf")

    async def run(self) -> None:
        """Lease and publish URL shards whenever a host is due and a worker has capacity, until cancelled."""
        own = self._own
        while True:
            seen = own.work.revision
            await self._publish_refused()
            if not await self.once() and await own.work.changed(seen, self._pause()):
                await asyncio.sleep(own.settings.linger_s / 2)

    def _pause(self) -> float | None:
        """Return how many seconds to wait for work. None means no limit: no host in memory can be dispatched."""
        if not self._refused and self._own.stopped():
            return None
        wake = max(self._hosts.next_wake(), self._paused_until)
        pause = min(self._own.settings.sweep_interval_s, max(0.002, wake - self._clock.elapsed()))
        return min(pause, _REFUSED_FIRST_S) if self._refused else pause

    # --- decide -------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> DispatchPlan:
        """Begin a pass of dispatch and return its decisions, without I/O. `now`: `Clock.elapsed`.

        The caller ends the pass with `DueHosts.end`.
        """
        plan, left = DispatchPlan(), self._own.settings.dispatch_batch_size
        self._hosts.lines.begin(now)
        for pages in self._own.recrawls.values():
            pages.begin()
        self._hosts.wake(now)
        self._own.capacity.allot(now, partial(self._crawls.may_dispatch, now))
        while left and (taken := self._hosts.take(now)) is not None:
            plan.took_any = True
            step = self._decide(*taken, now)
            left -= step is not None
            if isinstance(step, LeaseRequest):
                plan.requests.append((step, *taken))
            elif step is not None:
                plan.unprepared.append(taken)
        return plan

    def _decide(
        self, host: Host, queue: CrawlQueue, now: float, *, promoted: bool = False
    ) -> LeaseRequest | _Preparation | None:
        """Decide what to do with a queue that was taken out of its line. Return one of these:

        - A lease request. Its slot and its budget are reserved already.
        - A `_Preparation`: SQL must change the queue in this way, before URLs of the queue can be leased.
        - None: there is nothing to lease now. The queue was put back, or its crawl is gone.

        `promoted`: True if SQL has just done `_Preparation.PROMOTE` for this queue: do not return PROMOTE again.
        """
        crawl = self._crawls.get(queue.crawl_id)
        if crawl is None:
            return None
        if queue.queued and self._crawls.exclusions and self._crawls.exclusions.of_host(host.name) is not None:
            return _Preparation.OWNER
        queue.delay_s, queue.slots = crawl.pace(host.name, host.facts)
        due = queue.waiting > 0 and queue.next_due <= now
        recrawls = crawl.spec.recrawl.used
        if due and not promoted and not recrawls:
            return _Preparation.PROMOTE
        together = shard_limit(host, queue, queue.waiting if due and recrawls else 0)
        max_count = crawl.allowance.remaining(together if due and recrawls else min(together, queue.queued))
        limit = crawl.max_pages_of(host.name)
        queue.without_requisites = queue.without_requisites and not due
        requisites = crawl.requisites_apart and queue.queued > 0 and not queue.without_requisites
        requisites = requisites and crawl.allowance.exhausted() != "max_bytes"
        if limit is not None and not queue.stored_only:
            if not requisites and queue.pages >= limit and queue.leased == 0 and (queue.queued > 0 or not recrawls):
                return _Preparation.SPENT
            max_count = max(0, min(max_count, limit - queue.pages - queue.leased))
        max_revisits = queue.revisits_of(together, crawl.spec.recrawl.share, max_count) if due and recrawls else 0
        pages = self._own.recrawls.get(queue.crawl_id) if max_revisits and crawl.spec.recrawl.requests_per_day else None
        if pages is not None:
            share, now_ms = crawl.allowance.page_share(self._own.partition), self._clock.unix_ms()
            max_revisits = pages.reserve(now_ms, share, max_revisits)
            if max_revisits == 0 and queue.queued == 0:
                self._hosts.defer(host, queue, now + _BUDGET_S)
                return None
        slot = self._hosts.acquire(host, queue) if queue.queued > 0 or max_revisits > 0 else None
        if slot is None:
            self._hosts.reschedule(host, queue)
            return None
        if max_count <= 0 and max_revisits <= 0 and not requisites:
            self._hosts.release(host, slot)
            spent_s = _SPENT_S if (recrawls or queue.without_requisites) and crawl.allowance.exhausted() else _RETRY_S
            self._hosts.defer(host, queue, max(now + _RETRY_S, min(now + spent_s, queue.next_due)))
            return None
        crawl.allowance.take(self._own.partition, max_count)
        return LeaseRequest(
            lease_id=self._own.allot_lease(),
            crawl_id=queue.crawl_id,
            spec=crawl.revision,
            host_id=host.host_id,
            host=host.name,
            slot=slot,
            pool=crawl.spec.pool,
            delay_ms=int(queue.delay_s * 1000 + 0.999),
            max_urls=max_count,
            max_revisits=max_revisits,
            max_together=together,
            compared=recrawls,
            due_until_ms=crawl.refresh_ms,
            requisites=requisites,
        )

    def _undo(self, plan: DispatchPlan) -> None:
        """Put back all queues of a plan, and release its slots and budget, because nothing was leased."""
        for request, host, queue in plan.requests:
            crawl = self._crawls.get(request.crawl_id)
            if crawl is not None:
                crawl.allowance.settled(self._own.partition, request.max_urls)
            self._hosts.release(host, request.slot)
            self._hosts.reschedule(host, queue)
        for host, queue in plan.unprepared:
            self._hosts.reschedule(host, queue)

    # --- act ----------------------------------------------------------------------------------------------------------

    async def once(self) -> bool:
        """Lease and publish one batch of shards. Return True if there may be more to do at once."""
        if self._clock.elapsed() < self._paused_until:
            return False
        shards = list[TrackedLease]()
        async with self._writer.writing(TransactionKind.DISPATCH):
            await self._writer.load_page_counts(crawl.crawl_id for crawl in self._crawls)
            now = self._clock.elapsed()
            plan = self.plan(now)
            try:
                await self._prepare(plan, now)
                if plan.requests:
                    shards = await self._permitted(await self._lease(plan.requests), now)
            except ResourceFull as error:
                self._undo(plan)
                self._pause_for(error)
            finally:
                self._hosts.lines.end()
        if shards:
            self._stats.shards += len(shards)
            self._stats.urls += sum(len(held.row.order) for held in shards)
            await asyncio.gather(*(self.publish(held) for held in shards))
        return plan.took_any

    async def _prepare(self, plan: DispatchPlan, now: float) -> None:
        """Change the plan's `unprepared` queues in SQL. If URLs can then be leased, add a lease request to the plan.

        - If retries or other waiting URLs are due: mark these URLs as queued.
        - If the host's page budget is spent, or an exclusion covers the host: exclude URLs of the queue.
        """
        for host, queue in plan.unprepared:
            step = self._decide(host, queue, now)  # again: the crawl may have changed during another preparation
            if step is _Preparation.PROMOTE:
                await self._promote(host, queue)
                step = self._decide(host, queue, now, promoted=True)
            if isinstance(step, LeaseRequest):
                plan.requests.append((step, host, queue))
            elif step is _Preparation.SPENT:
                await self._exclude_rest(host, queue, HOST_BUDGET)
            elif step is _Preparation.OWNER:
                await self._exclude_rest(host, queue, OWNER)

    async def _promote(self, host: Host, queue: CrawlQueue) -> None:
        """Turn the queue's waiting URLs whose wait is over into queued URLs, in SQL and in memory."""
        await self._store.promote(self._writer.fence, queue.crawl_id, host.host_id, self._clock.unix_ms())
        self._writer.committed()
        for row in await self._store.queue_rows([(queue.crawl_id, host.host_id)]):
            queue.queued, queue.waiting = row.queued, row.waiting
            wait_s = (row.next_due_ms - self._clock.unix_ms()) / 1000
            queue.next_due = self._clock.elapsed() + wait_s if row.waiting else NEVER

    async def _exclude_rest(self, host: Host, queue: CrawlQueue, reason: str) -> None:
        """Exclude the queued and waiting URLs of the queue, for `reason`.

        One call excludes a limited number. If there may be more, the queue is deferred, and a later pass continues.

        These URLs stay in the queue:

        - Stored pages that wait for their next fetch.
        - If the host's page budget is spent: also stored pages that are due, and requisites.
        """
        changes = self._own.new_changes()
        changes.give_up.append((queue.crawl_id, host.host_id, UrlState.EXCLUDED, reason))
        if await self._writer.apply(changes):
            self._hosts.defer(host, queue, self._clock.elapsed() + _GO_ON_S)
            return
        await self._read_again([(host, queue)])
        queue.stored_only = reason == HOST_BUDGET and not queue.empty

    async def _lease(self, requests: Sequence[_Request]) -> list[TrackedLease]:
        """Lease URLs for the requests in one transaction, inside `PartitionWriter.writing`. Return the new leases.

        If SQL leases nothing for a request, release its slot and budget. If ResourceFull is raised, nothing was leased.
        """
        own, asked = self._own, [request for request, _, _ in requests]
        crawls = map(self._crawls.get, {request.crawl_id for request in asked})
        bounded = {crawl.crawl_id: crawl.spec.budget for crawl in crawls if crawl and crawl.spec.budget.bounded}
        rows = await self._store.dispatch(self._writer.fence, own.next_lease, asked, self._clock.unix_ms(), bounded)
        by_lease = {row.lease_id: row for row in rows}
        now = self._clock.elapsed()
        shards: list[TrackedLease] = []
        for request, host, queue in requests:
            crawl = self._crawls.get(request.crawl_id)
            row = by_lease.get(request.lease_id)
            taken = len(row.order) if row is not None else 0
            if crawl is not None:
                flags = [] if row is None else [url.flags for url in row.urls.values()]
                free = sum(each & OUTSIDE_BUDGET != 0 for each in flags)
                crawl.allowance.settled(own.partition, request.max_urls - (taken - free))
                revisits = sum(each & REVISIT != 0 for each in flags) if free else 0
                queue.without_requisites = request.requisites and revisits == free
                if revisits and (pages := own.recrawls.get(request.crawl_id)) is not None:
                    pages.spend(self._clock.unix_ms(), crawl.allowance.page_share(own.partition), revisits)
            if row is None:
                if crawl is not None and request.crawl_id in bounded and request.max_urls:
                    # Other masters spend the budget, too. `restore` reads what they spent before long.
                    crawl.allowance.pause_until(now + _RETRY_S)
                # The queue may have pages for which no budget is left, or that are due later.
                more = request.max_revisits > 0 or request.requisites
                if not more:
                    queue.queued = 0
                self._hosts.release(host, request.slot)
                if more:
                    self._hosts.defer(host, queue, now + _RETRY_S)
                    continue
                self._hosts.reschedule(host, queue)
                self._hosts.mark_incomplete(request.crawl_id)
                continue
            self._hosts.record_lease(host, queue, request.slot, taken)
            shards.append(self._leases.add(row, now))
        self._writer.committed()
        await self._writer.read_contexts(rows)
        await self._read_again(
            [(host, queue) for request, host, queue in requests if request.max_revisits or request.requisites]
        )
        return shards

    async def _permitted(self, shards: Sequence[TrackedLease], now: float) -> list[TrackedLease]:
        """Exclude the forbidden URLs of new leases, and return the leases whose shards may be published.

        A forbidden URL is one that an exclusion or the scope excludes. If the disk is full, no URL can be excluded.
        Leases with a forbidden URL are then left out of the result. Call this inside `PartitionWriter.writing`.
        """
        await self._writer.judge(held for held in shards if self._own.rescoping(held.row.crawl_id, now))
        try:
            await self._writer.exclude_covered(shards, len(shards))
        except ResourceFull as error:
            self._pause_for(error)
            # A later command excludes these URLs. If a worker asks to begin such a lease before that, it is ended.
            return [held for held in shards if not held.excluded(self._crawls.exclusions)]
        return [held for held in shards if held in self._leases]

    def _pause_for(self, error: ResourceFull) -> None:
        """Lease nothing until the database may accept writes again."""
        self._paused_until = self._clock.elapsed() + error.retry_in

    async def _read_again(self, places: Sequence[tuple[Host, CrawlQueue]]) -> None:
        """Read the counts and due times of these queues from SQL, and store them in memory."""
        if not places:
            return
        queues = {(queue.crawl_id, host.host_id): (host, queue) for host, queue in places}
        now, now_ms = self._clock.elapsed(), self._clock.unix_ms()
        for row in await self._store.queue_rows(list(queues)):
            host, queue = queues[row.crawl_id, row.host_id]
            queue.queued, queue.waiting, queue.leased = row.queued, row.waiting, row.leased
            queue.next_due = now + (row.next_due_ms - now_ms) / 1000 if row.waiting else NEVER
            self._hosts.reschedule(host, queue)

    async def publish(self, held: TrackedLease) -> bool:
        """Publish the shard of a lease. Return False if the broker still has this or an earlier shard in the same slot.

        Otherwise return True, even if nothing was published:

        - If the lease has ended, there is nothing to publish.
        - If the broker is unavailable, the sweep publishes the shard later.
        - If the shard is too large, the sweep splits the lease.
        """
        row = held.row
        if held not in self._leases:
            return True
        held.published_at = self._clock.elapsed()
        contexts, context_of = numbered([row.contexts.get(key) for key in row.order]) if row.contexts else ([], [])
        shard = UrlShard(
            lease=row.lease_id,
            crawl=row.crawl_id,
            spec=row.spec,
            host_id=row.host_id,
            host=row.host,
            slot=row.slot,
            delay_ms=row.delay_ms,
            urls=[shard_url(url) if url is not None else ShardUrl("", 0) for url in map(row.urls.get, row.order)],
            contexts=contexts,
            context_of=context_of,
            lease_hash=held.hash,
        )
        try:
            queued = await self._broker.publish_shard(
                row.pool, self._own.partition, row.host_id, row.slot, encode(shard)
            )
        except Transient as error:
            self._stats.unpublished += 1
            log.warning("shard_publishing.delayed", lease=row.lease_id, host=row.host, error=str(error))
            return True
        except TooLarge as error:
            held.too_large = str(error)
            self._refused.pop(row.lease_id, None)
            log.info(
                "shard_publishing.refused", lease=row.lease_id, host=row.host, urls=len(row.urls), error=str(error)
            )
            return True
        if queued or held.grant is not None:
            self._refused.pop(row.lease_id, None)
        else:
            self._stats.refused += 1
            wait_s = self._refused[row.lease_id].wait_s * 2 if row.lease_id in self._refused else _REFUSED_FIRST_S
            self._refused[row.lease_id] = _Refused(held, self._clock.elapsed() + wait_s, wait_s)
        return queued

    async def _publish_refused(self) -> None:
        """Publish again the shards that the broker refused, if their wait is over."""
        # An earlier shard was in the same slot. Its worker has reported, and will acknowledge it soon.
        now = self._clock.elapsed()
        for lease_id in list(self._refused):
            # The sweep may publish others while this loop awaits.
            refused = self._refused.get(lease_id)
            if refused is None:
                continue
            over = refused.held not in self._leases or refused.held.grant is not None
            if over or refused.wait_s > self._own.settings.republish_s:
                del self._refused[lease_id]
            elif refused.at <= now:
                await self.publish(refused.held)


def shard_url(url: LeasedUrl) -> ShardUrl:
    """Return a leased URL in the form that is sent to a worker.

    If its page is stored, this includes the validators and the digest with which the new response is compared.
    """
    last, kind, known = url.last, kind_of(url.flags), (url.url, url.depth, url.attempt, url.hops)
    if last is None:
        return ShardUrl(*known, kind=kind, extra=url.extra)
    etag, last_modified = (last.etag, last.last_modified) if conditional(url) else (None, None)
    return ShardUrl(*known, etag, last_modified, last.at_ms, last.digest, kind, url.extra, last.reason)
