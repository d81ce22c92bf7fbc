"""Dispatch: turn due hosts into leased URL shards, as many as the live workers can take soon.

A lease is committed before its shard is published. The sweep publishes a shard again if that failed or the broker lost
it. The broker refuses a second shard while the first is there. If a shard is too large for the broker, the sweep puts
its URLs back, and they are leased again in smaller shards. URLs that a full disk refuses to lease stay queued, and are
tried again after the time that the error names.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from api.frontier.host_shares import CrawlQueue
from api.frontier.hosts import Host
from api.frontier.leases import TrackedLease
from api.frontier.ownership import Ownership
from api.frontier.stats import TransactionKind
from shared.domain.crawl.spec import Budget
from shared.domain.errors import ResourceFull, TooLarge, Transient
from shared.domain.frontier.politeness import shard_part, shard_size
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import LeaseRequest
from shared.domain.ids import CrawlId, LeaseId
from shared.wire.messages import ShardUrl, UrlShard, encode

log = structlog.get_logger("orb.frontier")

_EXPECTED_FETCH_S = 0.2
_RETRY_S = 1.0
_REFUSED_FIRST_S = 0.01
_GO_ON_S = 0.01


@dataclass(frozen=True, slots=True)
class _Refused:
    """A shard whose subject was taken. It is published again at `at`, and after that with twice the wait."""

    held: TrackedLease
    at: float
    wait_s: float


_Request = tuple[LeaseRequest, Host, CrawlQueue]


class Dispatch:
    """Leases and publishes the shards of one partition."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self._refused: dict[LeaseId, _Refused] = {}
        self._paused_until = float("-inf")

    async def run(self) -> None:
        """Lease and publish whenever a host is due and a worker has capacity, until cancelled."""
        own = self._own
        while True:
            own.work.clear()
            await self._publish_refused()
            more = await self.once()
            if more:
                continue
            try:
                async with asyncio.timeout(self._pause()):
                    await own.work.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(own.settings.linger_s / 2)

    def _pause(self) -> float | None:
        """Return how many seconds to wait for work. None means no limit: the partition has no host."""
        own = self._own
        if not self._refused and not len(own.front):
            return None
        wake = max(own.front.next_wake(), self._paused_until)
        pause = min(own.settings.sweep_interval_s, max(0.002, wake - own.clock.elapsed()))
        return min(pause, _REFUSED_FIRST_S) if self._refused else pause

    async def once(self) -> bool:
        """Lease and publish one batch. Return True if there may be more to do at once."""
        own = self._own
        if own.clock.elapsed() < self._paused_until:
            return False
        shards: list[TrackedLease] = []
        requests: list[_Request] = []
        more = False
        async with own.writing(TransactionKind.DISPATCH):
            try:
                more = await self._request(requests)
                if requests:
                    shards = await self._lease(requests)
            except ResourceFull as error:
                self._undo(requests)
                self._paused_until = own.clock.elapsed() + error.retry_in
            finally:
                own.front.lines.settle()
        if shards:
            own.tally.shards += len(shards)
            own.tally.urls += sum(len(held.row.order) for held in shards)
            await asyncio.gather(*(self.publish(held) for held in shards))
        return more

    async def _lease(self, requests: Sequence[_Request]) -> list[TrackedLease]:
        """Lease the requests in one transaction (within `writing`)."""
        own = self._own
        bounded = self._budgets(request.crawl_id for request, _, _ in requests)
        rows = await own.store.dispatch(
            own.fence, own.next_lease, [request for request, _, _ in requests], own.clock.unix_ms(), bounded
        )
        by_lease = {row.lease_id: row for row in rows}
        now = own.clock.elapsed()
        shards: list[TrackedLease] = []
        for request, host, queue in requests:
            crawl = own.crawls.get(request.crawl_id)
            row = by_lease.get(request.lease_id)
            taken = len(row.order) if row is not None else 0
            if crawl is not None:
                crawl.allowance.settled(own.partition, request.max_urls - taken)
            if row is None:
                if crawl is not None and request.crawl_id in bounded:
                    # Other masters spend the budget, too. `restore` reads what they spent before long.
                    crawl.allowance.pause_until(now + _RETRY_S)
                queue.queued = 0
                own.front.release(host, request.slot)
                own.front.reschedule(host, queue)
                own.front.mark_incomplete(request.crawl_id)
                continue
            own.front.record_lease(host, queue, request.slot, taken)
            shards.append(own.leases.add(row, now))
        await own.committed()
        return shards

    def _undo(self, requests: Iterable[_Request]) -> None:
        """Undo the requests: nothing was leased."""
        own = self._own
        for request, host, queue in requests:
            crawl = own.crawls.get(request.crawl_id)
            if crawl is not None:
                crawl.allowance.settled(own.partition, request.max_urls)
            own.front.release(host, request.slot)
            own.front.reschedule(host, queue)

    def _budgets(self, crawls: Iterable[CrawlId]) -> dict[CrawlId, Budget]:
        """Return the budgets of those crawls that have one."""
        known = {crawl_id: self._own.crawls.get(crawl_id) for crawl_id in crawls}
        return {
            crawl_id: crawl.spec.budget
            for crawl_id, crawl in known.items()
            if crawl is not None and crawl.spec.budget.bounded
        }

    async def publish(self, held: TrackedLease) -> bool:
        """Publish the shard of a lease, unless the lease has ended. Return False if another shard has its subject.

        If the broker is away, the sweep publishes it later.
        """
        own, row = self._own, held.row
        if own.leases.get(row.lease_id) is not held:
            return True
        held.published_at = own.clock.elapsed()
        shard = UrlShard(
            lease=row.lease_id,
            crawl=row.crawl_id,
            spec=row.spec,
            host_id=row.host_id,
            host=row.host,
            slot=row.slot,
            delay_ms=row.delay_ms,
            urls=[
                ShardUrl(url.url, url.depth, url.attempt, url.hops) if url is not None else ShardUrl("", 0)
                for url in (row.urls.get(fingerprint) for fingerprint in row.order)
            ],
        )
        try:
            queued = await own.broker.publish_shard(row.pool, own.partition, row.host_id, row.slot, encode(shard))
        except Transient as error:
            own.tally.unpublished += 1
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
            own.tally.refused += 1
            wait_s = self._refused[row.lease_id].wait_s * 2 if row.lease_id in self._refused else _REFUSED_FIRST_S
            self._refused[row.lease_id] = _Refused(held, own.clock.elapsed() + wait_s, wait_s)
        return queued

    async def _publish_refused(self) -> None:
        """Publish shards again whose slot still had its previous message: its worker has reported and will ack soon."""
        own = self._own
        now = own.clock.elapsed()
        for lease_id in list(self._refused):
            # The sweep may publish others while this loop awaits.
            refused = self._refused.get(lease_id)
            if refused is None:
                continue
            over = own.leases.get(lease_id) is not refused.held or refused.held.grant is not None
            if over or refused.wait_s > own.settings.republish_s:
                del self._refused[lease_id]
            elif refused.at <= now:
                await self.publish(refused.held)

    async def _request(self, requests: list[_Request]) -> bool:
        """Add what to lease now to `requests`. Return True if there may be more.

        A queue that was taken is out of the front until it is leased, deferred or put back.
        """
        own = self._own
        now = own.clock.elapsed()
        own.front.lines.begin(now)
        own.front.wake(now)
        own.room.allot(now, partial(self._may_go_on, now))
        more = False
        while len(requests) < own.settings.dispatch_batch_size and (taken := own.front.take(now)) is not None:
            more = True
            host, queue = taken
            crawl = own.crawls.get(queue.crawl_id)
            if crawl is None:
                continue
            queue.delay_s, queue.slots = crawl.pace(host.facts)
            if queue.waiting and queue.next_due <= now:
                await self._promote(host, queue)
            max_count = crawl.allowance.remaining(min(self._shard_limit(host, queue), queue.queued))
            limit = crawl.spec.budget.max_pages_per_host
            if limit is not None:
                if queue.pages >= limit and queue.leased == 0:
                    await self._close(host, queue)
                    continue
                max_count = min(max_count, limit - queue.pages - queue.leased)
            slot = own.front.acquire(host, queue) if queue.queued > 0 else None
            if slot is None:
                own.front.reschedule(host, queue)
                continue
            if max_count <= 0:
                own.front.release(host, slot)
                own.front.defer(host, queue, now + _RETRY_S)
                continue
            crawl.allowance.take(own.partition, max_count)
            request = LeaseRequest(
                lease_id=own.allot_lease(),
                crawl_id=queue.crawl_id,
                spec=crawl.revision,
                host_id=host.host_id,
                host=host.name,
                slot=slot,
                pool=crawl.spec.pool,
                delay_ms=int(queue.delay_s * 1000 + 0.999),
                max_urls=max_count,
            )
            requests.append((request, host, queue))
        return more

    def _may_go_on(self, now: float, crawl_id: CrawlId) -> bool:
        """Return True if the crawl is dispatching and has budget left."""
        crawl = self._own.crawls.get(crawl_id)
        if crawl is None or not crawl.dispatching:
            return False
        return not crawl.allowance.paused(now) and crawl.allowance.remaining(1) > 0

    def _shard_limit(self, host: Host, queue: CrawlQueue) -> int:
        """Return the most URLs of the next shard: about 10 s of polite work, or a fair part if slots share the queue.

        Without a delay, the first visit of a host is a single URL: other shards wait for the facts that it brings.
        """
        if queue.delay_s == 0 and not host.facts.visited:
            return 1
        latency_s = host.facts.latency_ms / 1000 if host.facts.latency_ms else _EXPECTED_FETCH_S
        max_count = shard_size(queue.delay_s, latency_s)
        if queue.slots > 1:
            # Latency is kept in whole milliseconds, so a host that answers in less than one has 0.
            max_count = min(max_count, shard_part(queue.queued, queue.slots, max(host.facts.latency_ms, 1) / 1000))
        return min(max_count, queue.cap) if queue.cap else max_count

    async def _promote(self, host: Host, queue: CrawlQueue) -> None:
        """Move URLs that waited and are due into the queue."""
        own = self._own
        with self._reschedule_if_full(host, queue):
            await own.store.promote(own.fence, queue.crawl_id, host.host_id, own.clock.unix_ms())
        await own.committed()
        for row in await own.store.queue_rows([(queue.crawl_id, host.host_id)]):
            queue.queued, queue.waiting = row.queued, row.waiting
            wait_s = (row.next_due_ms - own.clock.unix_ms()) / 1000
            queue.next_due = own.clock.elapsed() + wait_s if row.waiting else float("inf")

    @contextmanager
    def _reschedule_if_full(self, host: Host, queue: CrawlQueue) -> Iterator[None]:
        """Put a taken queue back into the front if the block raises ResourceFull."""
        try:
            yield
        except ResourceFull:
            self._own.front.reschedule(host, queue)
            raise

    async def _close(self, host: Host, queue: CrawlQueue) -> None:
        """Exclude the rest of the queue: the host's page budget is spent. A large queue takes several turns."""
        own = self._own
        changes = own.changes()
        changes.give_up.append((queue.crawl_id, host.host_id, UrlState.EXCLUDED, "max_pages_per_host"))
        with self._reschedule_if_full(host, queue):
            unfinished = await own.store.apply(own.fence, own.position, changes)
        await own.committed()
        if unfinished:
            own.front.defer(host, queue, own.clock.elapsed() + _GO_ON_S)
            return
        queue.queued = queue.waiting = 0
        own.front.reschedule(host, queue)
