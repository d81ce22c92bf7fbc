"""Dispatch: turns due hosts into leased URL shards, as many as the live workers can take soon.

A lease is committed before its shard is published. A shard that could not be published, or that the broker lost, is
published again by the sweep; the broker refuses a second one while the first is there. A shard that is too large for
the broker is left to the sweep, which puts its URLs back to come in smaller ones. What a full disk refuses to lease
stays queued, and is tried again a second later.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from api.frontier.hosts import Host
from api.frontier.leases import Held
from api.frontier.ownership import Ownership
from api.frontier.tally import Work
from api.frontier.turns import Queue
from shared.domain.crawl import Budget
from shared.domain.errors import NoRoom, TooLarge, Transient
from shared.domain.frontier import UrlState
from shared.domain.ids import CrawlId, LeaseId
from shared.domain.ledger import LeaseRequest
from shared.domain.politeness import shard_size
from shared.wire.messages import Shard, ShardUrl, encode

log = structlog.get_logger("orb.frontier")

_EXPECTED_FETCH_S = 0.2
_RETRY_S = 1.0
_REFUSED_FIRST_S = 0.01
_GO_ON_S = 0.01


@dataclass(frozen=True, slots=True)
class _Refused:
    """A shard whose subject was taken: to be offered again at `at`, then at twice the distance."""

    held: Held
    at: float
    wait_s: float


_Request = tuple[LeaseRequest, Host, Queue]


class Dispatch:
    """Leases and publishes the shards of one partition."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self._refused: dict[LeaseId, _Refused] = {}
        self._rests_until = float("-inf")

    async def run(self) -> None:
        """Dispatch whenever something is due and a worker has room, until cancelled."""
        own = self._own
        while True:
            own.work.clear()
            await self._publish_refused()
            more = await self.once()
            if more:
                continue
            wake = max(own.front.next_wake(), self._rests_until)
            pause = min(own.settings.sweep_s, max(0.002, wake - own.clock.elapsed()))
            if self._refused:
                pause = min(pause, _REFUSED_FIRST_S)
            try:
                async with asyncio.timeout(pause):
                    await own.work.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(own.settings.linger_s / 2)

    async def once(self) -> bool:
        """Lease and publish one batch; whether there may be more to do at once."""
        own = self._own
        if own.clock.elapsed() < self._rests_until:
            return False
        shards: list[Held] = []
        requests: list[_Request] = []
        more = False
        async with own.writing(Work.DISPATCH):
            try:
                more = await self._request(requests)
                if requests:
                    shards = await self._lease(requests)
            except NoRoom as error:
                self._put_back(requests)
                self._rests_until = own.clock.elapsed() + error.retry_in
            finally:
                own.front.lines.settle()
        if shards:
            own.tally.shards += len(shards)
            own.tally.urls += sum(len(held.row.order) for held in shards)
            await asyncio.gather(*(self.publish(held) for held in shards))
        return more

    async def _lease(self, requests: Sequence[_Request]) -> list[Held]:
        """Lease what was asked for, by one transaction (within `writing`)."""
        own = self._own
        bounded = self._budgets(request.crawl_id for request, _, _ in requests)
        rows = await own.store.dispatch(
            own.fence, own.next_lease, [request for request, _, _ in requests], own.clock.unix_ms(), bounded
        )
        by_lease = {row.lease_id: row for row in rows}
        now = own.clock.elapsed()
        shards: list[Held] = []
        for request, host, queue in requests:
            crawl = own.crawls.get(request.crawl_id)
            row = by_lease.get(request.lease_id)
            taken = len(row.order) if row is not None else 0
            if crawl is not None:
                crawl.allowance.settled(own.partition, request.most - taken)
            if row is None:
                if crawl is not None and request.crawl_id in bounded:
                    # Other masters spend the budget, too, and what they did is read before long.
                    crawl.allowance.rest(now + _RETRY_S)
                queue.queued = 0
                own.front.let_go(host, request.slot, queue)
                own.front.mark_incomplete(request.crawl_id)
                continue
            own.front.leased(host, queue, request.slot, taken)
            shards.append(own.leases.add(row, now))
        await own.committed()
        return shards

    def _put_back(self, requests: Iterable[_Request]) -> None:
        """Nothing was leased: as if it had not been asked for."""
        own = self._own
        for request, host, queue in requests:
            crawl = own.crawls.get(request.crawl_id)
            if crawl is not None:
                crawl.allowance.settled(own.partition, request.most)
            own.front.let_go(host, request.slot, queue)

    def _budgets(self, crawls: Iterable[CrawlId]) -> dict[CrawlId, Budget]:
        """The budgets of those of the crawls that have one."""
        known = {crawl_id: self._own.crawls.get(crawl_id) for crawl_id in crawls}
        return {
            crawl_id: crawl.spec.budget
            for crawl_id, crawl in known.items()
            if crawl is not None and crawl.spec.budget.bounded
        }

    async def publish(self, held: Held) -> bool:
        """Send a shard out, or leave it to the sweep when the broker is away; False when another is in its place.

        A lease that has ended by now is sent no more.
        """
        own, row = self._own, held.row
        if own.leases.get(row.lease_id) is not held:
            return True
        held.published_at = own.clock.elapsed()
        shard = Shard(
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
            log.warning("dispatch.unpublished", lease=row.lease_id, host=row.host, error=str(error))
            return True
        except TooLarge as error:
            held.too_large = str(error)
            self._refused.pop(row.lease_id, None)
            log.info("dispatch.too_large", lease=row.lease_id, host=row.host, urls=len(row.urls), error=str(error))
            return True
        if queued or held.grant is not None:
            self._refused.pop(row.lease_id, None)
        else:
            own.tally.refused += 1
            wait_s = self._refused[row.lease_id].wait_s * 2 if row.lease_id in self._refused else _REFUSED_FIRST_S
            self._refused[row.lease_id] = _Refused(held, own.clock.elapsed() + wait_s, wait_s)
        return queued

    async def _publish_refused(self) -> None:
        """Offer again what the slot's previous message still kept out: its worker has reported and is about to ack."""
        own = self._own
        now = own.clock.elapsed()
        for lease_id in list(self._refused):
            # While one is published, the sweep publishes others, too.
            refused = self._refused.get(lease_id)
            if refused is None:
                continue
            over = own.leases.get(lease_id) is not refused.held or refused.held.grant is not None
            if over or refused.wait_s > own.settings.republish_s:
                del self._refused[lease_id]
            elif refused.at <= now:
                await self.publish(refused.held)

    async def _request(self, requests: list[_Request]) -> bool:
        """Add what to lease now, and return True if there may be more. The queues taken are out of the front until
        leased, deferred or put back."""
        own = self._own
        now = own.clock.elapsed()
        own.front.lines.begin(now)
        own.front.wake(now)
        own.room.allot(now, partial(self._may_go_on, now))
        more = False
        while len(requests) < own.settings.shards_at_once and (taken := own.front.take(now)) is not None:
            more = True
            host, queue = taken
            crawl = own.crawls.get(queue.crawl_id)
            if crawl is None:
                continue
            queue.delay_s, queue.slots = crawl.pace(host.facts)
            if queue.waiting and queue.next_due <= now:
                await self._promote(host, queue)
            most = crawl.allowance.room(min(self._most(host, queue), queue.queued))
            limit = crawl.spec.budget.max_pages_per_host
            if limit is not None:
                if queue.pages >= limit and queue.leased == 0:
                    await self._close(host, queue)
                    continue
                most = min(most, limit - queue.pages - queue.leased)
            slot = host.free_slot(queue)
            if queue.queued <= 0 or slot is None:
                own.front.rearm(host, queue)
                continue
            if most <= 0:
                own.front.defer(host, queue, now + _RETRY_S)
                continue
            own.front.hold(host, slot, queue.slots)
            crawl.allowance.take(own.partition, most)
            request = LeaseRequest(
                lease_id=own.allot_lease(),
                crawl_id=queue.crawl_id,
                spec=crawl.revision,
                host_id=host.host_id,
                host=host.name,
                slot=slot,
                pool=crawl.spec.pool,
                delay_ms=int(queue.delay_s * 1000 + 0.999),
                most=most,
            )
            requests.append((request, host, queue))
        return more

    def _may_go_on(self, now: float, crawl_id: CrawlId) -> bool:
        """Return True unless the crawl is paused, or has nothing left of its budget."""
        crawl = self._own.crawls.get(crawl_id)
        return (
            crawl is not None and crawl.dispatching and not crawl.allowance.rests(now) and crawl.allowance.room(1) > 0
        )

    def _most(self, host: Host, queue: Queue) -> int:
        """URLs of the next shard: about 10 s of polite work, a fair part where several slots share the queue.

        Where there is no delay, a host's first visit is short: others wait for what it learns.
        """
        if queue.delay_s == 0 and not host.facts.visited:
            return 1
        latency_s = host.facts.latency_ms / 1000 if host.facts.latency_ms else _EXPECTED_FETCH_S
        most = shard_size(queue.delay_s, latency_s)
        if queue.slots > 1:
            most = min(most, max(1, queue.queued // (2 * queue.slots)))
        return min(most, queue.cap) if queue.cap else most

    async def _promote(self, host: Host, queue: Queue) -> None:
        """Move what waited and is due into the queue."""
        own = self._own
        with self._armed_again(host, queue):
            await own.store.promote(own.fence, queue.crawl_id, host.host_id, own.clock.unix_ms())
        await own.committed()
        for row in await own.store.queue_rows([(queue.crawl_id, host.host_id)]):
            queue.queued, queue.waiting = row.queued, row.waiting
            wait_s = (row.next_due_ms - own.clock.unix_ms()) / 1000
            queue.next_due = own.clock.elapsed() + wait_s if row.waiting else float("inf")

    @contextmanager
    def _armed_again(self, host: Host, queue: Queue) -> Iterator[None]:
        """A queue that was taken is back in the front where there is no room for what was to be written of it."""
        try:
            yield
        except NoRoom:
            self._own.front.rearm(host, queue)
            raise

    async def _close(self, host: Host, queue: Queue) -> None:
        """The host's page budget is spent: the rest of its queue is excluded, a large one in several turns."""
        own = self._own
        changes = own.changes()
        changes.give_up.append((queue.crawl_id, host.host_id, UrlState.EXCLUDED, "max_pages_per_host"))
        with self._armed_again(host, queue):
            unfinished = await own.store.apply(own.fence, own.position, changes)
        await own.committed()
        if unfinished:
            own.front.defer(host, queue, own.clock.elapsed() + _GO_ON_S)
            return
        queue.queued = queue.waiting = 0
        own.front.rearm(host, queue)
