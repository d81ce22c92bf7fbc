"""The sweep: periodic repair of a partition's leases, hosts and streams. Every step may run at any time."""

from collections.abc import Awaitable, Callable

import structlog

from api.frontier.dispatch import Dispatch
from api.frontier.host_queues import LOOKED_AT
from api.frontier.ingest import Ingest
from api.frontier.leases import TrackedLease, subject_of
from api.frontier.orphans import OrphanedShards
from api.frontier.writer import PartitionWriter
from shared.domain.errors import ResourceFull, Transient
from shared.domain.frontier.purge_holds import ObservedHolds
from shared.ports.broker import KINDS, Broker

log = structlog.get_logger("orb.frontier")

_SOON_S = 60.0
_MAKE_ROOM_S = 10.0


class Sweep:
    """Repairs the state of one partition, about once a second: its leases, its host queues and its streams."""

    def __init__(self, writer: PartitionWriter, broker: Broker, ingest: Ingest, dispatch: Dispatch) -> None:
        self._own, self._hosts, self._crawls = writer.own, writer.own.hosts, writer.own.crawls
        self._writer, self._store, self._clock = writer, writer.store, writer.clock
        self._broker, self._ingest, self._dispatch = broker, ingest, dispatch
        self._orphans = OrphanedShards(writer, broker)
        self._purged = self._own.position
        self._holds = ObservedHolds()
        self._made_room_at = self._clock.elapsed()

    async def run(self) -> None:
        """Run all repair steps every `sweep_interval_s` seconds until cancelled.

        If a round leaves nothing to repair, the next round comes later: after an event that may need repair, or when a
        search for orphaned shards is due. If the broker is unavailable, the next round tries again.
        """
        own = self._own
        while True:
            settings_changed, repair_needed = own.settings_changed.revision, own.repair_needed.revision
            try:
                await self.once()
            except Transient as error:
                log.warning("sweep.delayed", partition=own.partition, error=str(error))
            if self._at_rest():
                await own.repair_needed.changed(repair_needed, self._orphans.wait_s())
            await own.settings_changed.changed(settings_changed, own.settings.sweep_interval_s)

    def _at_rest(self) -> bool:
        """Return True if there is nothing to repair, so that the next sweep may wait longer than usual."""
        own = self._own
        busy = not own.stopped() or len(own.leases) or self._hosts.incomplete() or own.orphans_suspected
        return not busy and own.position == self._purged

    async def once(self) -> None:
        """Run all repair steps once:

        - read the queues that are in SQL but not in memory
        - end leases that no worker will resume
        - publish shards again that the broker may have lost
        - remove hosts without URLs from memory
        - delete applied reports from the stream
        - remove shards that have no lease from the broker's streams
        """
        await self._refill()
        await _unless_full(self._reclaim)
        await self._republish()
        self._hosts.evict_idle(self._clock.elapsed(), self._crawls.longest_delay_s)
        await self._purge()
        await _unless_full(self._orphans.once)
        self._own.look()

    async def _refill(self) -> None:
        """Read queues that are not in memory from SQL, until memory has `max_hosts` hosts."""
        own = self._own
        for crawl_id in self._hosts.incomplete():
            if self._crawls.get(crawl_id) is None or not self._may_add_hosts():
                continue
            async with self._writer.writing():
                max_count = own.settings.max_hosts
                soon_ms = self._clock.unix_ms() + int(_SOON_S * 1000)
                rows = await self._store.queues_by_readiness(own.partition, crawl_id, max_count, soon_ms=soon_ms)
                self._hosts.mark_complete(crawl_id)
                self._writer.offer(rows)
                if len(rows) == max_count:
                    self._hosts.mark_incomplete(crawl_id)

    def _may_add_hosts(self) -> bool:
        """Return True if memory has room for another host.

        If memory is full, first remove hosts that cannot start a shard within `_SOON_S` seconds. One call examines at
        most `LOOKED_AT` hosts. A call soon after such a removal removes nothing.
        """
        hosts, now = self._hosts, self._clock.elapsed()
        part = min(1.0, LOOKED_AT / max(1, len(hosts)))
        if hosts.full() and now - self._made_room_at >= _MAKE_ROOM_S * part:
            self._made_room_at = now
            hosts.make_room(now, now + _SOON_S, self._crawls.longest_delay_s)
        return not hosts.full()

    async def _republish(self) -> None:
        """Publish shards again that no worker has begun or resumed in time: the broker may have lost them.

        The broker refuses a shard if it still has a message in the shard's place (pool, host, slot). The message is the
        same shard or an older one. There are two cases:

        - No worker has received the message yet. The message stays, because a worker will receive it.
        - A worker has received the message, but no visit goes on. Drop the message, and publish the shard again.
        """
        # A broker that was killed may keep a message that was acknowledged. A message that was never delivered keeps
        # its place in the queue.
        own = self._own
        for held in own.leases:
            if not own.to_publish(held, self._clock.elapsed()) or await self._dispatch.publish(held):
                continue
            if not await self._broker.visit_waits(own.partition, subject_of(held.row)) and await self._drop(held):
                self._writer.stats.replaced += 1
                log.debug("lease.republished", partition=own.partition, lease=held.row.lease_id, host=held.row.host)
                await self._dispatch.publish(held)

    async def _drop(self, held: TrackedLease) -> bool:
        """Delete from the broker any message in the place (pool, host, slot) where the lease's shard is published.

        The message may be the shard's own or an older one. If the lease is over or has a live grant, delete nothing and
        return False. Otherwise return True.
        """
        own, row = self._own, held.row
        if held not in own.leases or held.live(self._clock.elapsed()):
            return False
        await self._broker.drop_visit(row.pool, own.partition, row.host_id, row.slot)
        return True

    async def _reclaim(self) -> None:
        """Delete the shards of leases that no worker will resume (`Ownership.to_end`), then end these leases."""
        own, writer = self._own, self._writer
        await writer.look_up(held.row.crawl_id for held in own.leases)
        ending = own.to_end(self._clock.elapsed())
        if not ending:
            return
        if not await writer.applied_outcomes(await self._broker.last_report(own.partition, "outcome")):
            return
        for held in ending:  # While a lease has its slot, no other shard can be in the place.
            await self._drop(held)
        async with writer.writing():
            batch = writer.batch()
            for held in ending:
                if held not in own.leases or held.live(batch.now):
                    continue
                if held.too_large is not None:
                    batch.split_or_give_up(held, f"the message with this URL alone is too large: {held.too_large}")
                elif own.settings.retries_exhausted(len(held.row.urls), held.row.expired):
                    batch.record_failures(held, held.row.expired)
                else:
                    batch.end(held)
            await writer.commit(batch)

    async def _purge(self) -> None:
        """Delete the applied reports from the stream, unless a backup has asked to keep reports (a purge hold).

        Nothing is deleted if the stream may have been replaced.
        """
        # The position is read before the holds. So a backup that sets its hold later needs only reports after it.
        position = self._own.position
        if position == self._purged or self._holds.standing(await self._store.report_holds(), self._clock.elapsed()):
            return
        for kind in KINDS:
            through = position.of(kind)
            if through > self._purged.of(kind) and not await self._ingest.purge(kind, through):
                return
        self._purged = position


async def _unless_full(step: Callable[[], Awaitable[object]]) -> None:
    """Run a step of the sweep. If the disk is full, log that and return, so that the other steps run.

    A later sweep runs the step again.
    """
    try:
        await step()
    except ResourceFull as error:
        log.debug("sweep.postponed", error=str(error))
