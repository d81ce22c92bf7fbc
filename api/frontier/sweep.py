"""The sweep: keep a partition's leases, front and streams consistent. Every step may run at any time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from api.frontier.dispatch import Dispatch
from api.frontier.host_queues import LOOKED_AT
from api.frontier.leases import TrackedLease, subject_of
from api.frontier.orphans import OrphanedShards
from api.frontier.outcome_batch import OutcomeBatch, retries_exhausted
from api.frontier.ownership import Ownership
from shared.domain.errors import ResourceFull, Transient
from shared.domain.frontier.purge_holds import ObservedHolds
from shared.ports.broker import KINDS

log = structlog.get_logger("orb.frontier")

_SOON_S = 60.0
_MAKE_ROOM_S = 10.0


class Sweep:
    """The repair steps of one partition, about once a second."""

    def __init__(self, own: Ownership, dispatch: Dispatch) -> None:
        self._own = own
        self._dispatch = dispatch
        self._orphans = OrphanedShards(own)
        self._purged = own.position
        self._holds = ObservedHolds()
        self._made_room_at = own.clock.elapsed()

    async def run(self) -> None:
        """Sweep until cancelled. If the broker is away, the next turn tries again."""
        while True:
            try:
                await self.once()
            except Transient as error:
                log.warning("sweep.delayed", partition=self._own.partition, error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._own.settings.sweep_interval_s):
                    await self._own.tuned.wait()
            self._own.tuned.clear()

    async def once(self) -> None:
        """Run all steps once."""
        own = self._own
        await self._refill()
        await _unless_full(self._reclaim)
        await self._republish()
        own.front.evict_idle(own.clock.elapsed(), own.crawls.longest_delay_s)
        await self._purge()
        await _unless_full(self._orphans.once)
        own.look()

    async def _refill(self) -> None:
        """Read queues from SQL that are not in the front, as far as it has room."""
        own = self._own
        for crawl_id in own.front.incomplete():
            if own.crawls.get(crawl_id) is None or not self._room():
                continue
            async with own.writing():
                max_count = own.settings.max_hosts
                soon_ms = own.clock.unix_ms() + int(_SOON_S * 1000)
                rows = await own.store.ready_queues(own.partition, crawl_id, max_count, soon_ms=soon_ms)
                own.front.mark_complete(crawl_id)
                for row in rows:
                    own.offer(row)
                if len(rows) == max_count:
                    own.front.mark_incomplete(crawl_id)

    def _room(self) -> bool:
        """Return True if the front has room for hosts. From time to time, drop late hosts from a full front.

        One sweep examines so few hosts (`LOOKED_AT`) that it takes at most some hundredths of a second.
        """
        own, now = self._own, self._own.clock.elapsed()
        part = min(1.0, LOOKED_AT / max(1, len(own.front)))
        if own.front.full() and now - self._made_room_at >= _MAKE_ROOM_S * part:
            self._made_room_at = now
            own.front.make_room(now, now + _SOON_S, own.crawls.longest_delay_s)
        return not own.front.full()

    async def _republish(self) -> None:
        """Publish late shards again that no worker began or resumed: the broker may have lost them.

        A message that was delivered and still has the subject is dropped first. A broker that was killed may keep a
        shard as acknowledged but not removed, and then it neither delivers the shard nor accepts another. A shard that
        was never delivered is not replaced: it would go to the end of the line again and again.
        """
        own = self._own
        for held in own.leases:
            if not self._late(held) or await self._dispatch.publish(held):
                continue
            if not await own.broker.visit_waits(own.partition, subject_of(held.row)) and await self._drop(held):
                own.tally.replaced += 1
                log.debug("lease.republished", partition=own.partition, lease=held.row.lease_id, host=held.row.host)
                await self._dispatch.publish(held)

    def _late(self, held: TrackedLease) -> bool:
        """Return True if the lease is not over and its shard must be published again."""
        own, now = self._own, self._own.clock.elapsed()
        if own.leases.get(held.row.lease_id) is not held or now - held.published_at <= own.settings.republish_s:
            return False
        return held.grant is None or now > held.grant.until + own.settings.ack_wait_s

    async def _drop(self, held: TrackedLease) -> bool:
        """Drop the message on the lease's subject. Return True if it was dropped.

        If the lease is over or has a live grant, nothing is dropped: the message may be another lease's, or in use.
        """
        own, row = self._own, held.row
        if own.leases.get(row.lease_id) is not held or held.live(own.clock.elapsed()):
            return False
        await own.broker.drop_visit(row.pool, own.partition, row.host_id, row.slot)
        return True

    async def _reclaim(self) -> None:
        """End leases that no worker will resume.

        - Leases whose grant expired, if the worker is known to be dead, no URL is left, the crawl is over or does not
          dispatch, or the retries are exhausted.
        - Leases that no worker began, if the crawl is over.
        - Leases whose shard is too large for the broker.

        The shard is deleted from the stream while its lease still has the slot, so no later shard is deleted instead.
        """
        own = self._own
        now = own.clock.elapsed()
        await own.look_up(held.row.crawl_id for held in own.leases)
        ending = [
            held
            for held in own.leases
            if held.grant is None
            and (
                held.too_large is not None
                or (now - held.published_at > own.settings.republish_s and not own.crawls.going_on(held.row.crawl_id))
            )
        ]
        ending += [
            held
            for held in own.leases.expired(now)
            if held.orphan
            or not held.row.urls
            or not own.crawls.going_on(held.row.crawl_id)
            or ((crawl := own.crawls.get(held.row.crawl_id)) is not None and not crawl.dispatching)
            or held.too_large is not None
            or retries_exhausted(len(held.row.urls), held.row.expired, own.settings)
        ]
        if not ending:
            return
        through = await own.broker.last_report(own.partition, "outcome")
        if not await own.applied_outcomes(through, own.settings.barrier_s):
            return
        for held in ending:
            await self._drop(held)
        async with own.writing() as fence:
            now = own.clock.elapsed()
            batch = OutcomeBatch(
                own.leases, own.front, own.crawls, now, own.clock.unix_ms(), lambda: 0.5, own.changes()
            )
            ending = [held for held in ending if own.leases.get(held.row.lease_id) is held and not held.live(now)]
            for held in ending:
                if held.too_large is not None:
                    batch.split_or_give_up(held, f"the message with this URL alone is too large: {held.too_large}")
                elif retries_exhausted(len(held.row.urls), held.row.expired, own.settings):
                    batch.record_expiry(held, held.row.expired, own.settings)
                else:
                    batch.end(held)
            await own.store.apply(fence, own.position, batch.changes)
            batch.commit()
            await own.committed()

    async def _purge(self) -> None:
        """Purge the applied reports from the stream. The reader refuses if the stream may have been replaced.

        The position is read before the holds: reports that a later hold does not cover are in its holder's snapshot.
        """
        own = self._own
        position = own.position
        if position == self._purged or self._holds.standing(await own.store.report_holds(), own.clock.elapsed()):
            return
        for kind in KINDS:
            reader, through = own.readers.get(kind), position.of(kind)
            if through > self._purged.of(kind) and (reader is None or not await reader.purge(through)):
                return
        self._purged = position


async def _unless_full(step: Callable[[], Awaitable[object]]) -> None:
    """Run a step. If the disk is full, log that a later turn tries it again: the other steps write nothing."""
    try:
        await step()
    except ResourceFull as error:
        log.debug("sweep.postponed", error=str(error))
