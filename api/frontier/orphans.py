"""Orphaned shards: messages in a visit queue whose lease is gone.

They remain after a crawl was deleted, or if a shard was published late. In a pool without workers they would stay for
ever. The owner searches for them periodically, and at once after a deletion.

One search does not drop a shard. The owner drops a shard only if two searches in a row found the shard without a lease.
The reason: when a visit ends, its lease ends first, and its worker removes the shard from the queue a moment later.

A shard that a worker may still begin must not be dropped. So after the second search, the owner takes four steps:

1. Read the shard from the queue.
2. Check in SQL that this master still owns the partition. If not, drop nothing: a new owner may have published the
   shard.
3. Check that memory has no lease of the shard. An owner has each of its leases in memory before it publishes the shard,
   and lease numbers are never reused. So a lease that is missing is over for good.
4. Drop the shard by its sequence. A later shard in the same place has a higher sequence and stays.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from api.frontier.dead_letters import letter_of_shard
from api.frontier.leases import Leases, subject_of
from api.frontier.writer import PartitionWriter
from shared.domain.frontier.store_model import Changes, DeadLetterRow
from shared.domain.ids import LeaseId
from shared.ports.broker import Broker, QueuedVisit, StoredVisit
from shared.wire.messages import KEPT_BYTES, Malformed, ShardUnreadable, decode_shard

log = structlog.get_logger("orb.frontier")

AT_ONCE: Final = 64
"""Maximum shards that one call of `once` reads and drops. The others wait for a later call."""

_RESTS: Final = 6


def without_lease(listed: Iterable[QueuedVisit], leases: Leases) -> set[QueuedVisit]:
    """Return the listed places in visit queues whose shard has no lease."""
    held = {subject_of(each.row) for each in leases}
    return {place for place in listed if place not in held}


class OrphanedShards:
    """Finds and drops URL shards without a lease in the visit queues of one partition."""

    def __init__(self, writer: PartitionWriter, broker: Broker) -> None:
        self._own, self._writer, self._clock, self._broker = writer.own, writer, writer.clock, broker
        self._suspects: set[QueuedVisit] = set()
        self._searched = False
        self._look_at = self._clock.elapsed() + self._own.settings.orphans_interval_s

    def wait_s(self) -> float:
        """Return for how many seconds the owner's sweep may pause, if the sweep has nothing else to repair.

        - If there was no search yet: the seconds until the first search.
        - If the last search found a shard without a lease: the seconds until the next search. The next search drops
          the shard, if the shard is still without a lease then.
        - If the last search found none: a long pause of several search intervals.
        """
        if self._searched and not self._suspects:
            return self._own.settings.orphans_interval_s * _RESTS
        return max(0.0, self._look_at - self._clock.elapsed())

    async def once(self) -> int:
        """Search if a search is due, and drop orphaned shards. Return the number of dropped shards.

        Drop only shards that the previous search found without a lease, too. A shard that is found for the first time
        may be at the end of its visit. Its lease has ended, and its worker will acknowledge the shard in a moment.
        """
        own = self._own
        now = self._clock.elapsed()
        suspected = own.orphans_suspected
        if now < self._look_at and not suspected:
            return 0
        own.orphans_suspected = False
        unleased = without_lease(await self._broker.queued_visits(own.partition), own.leases)
        again = sorted(unleased & self._suspects)
        self._suspects, self._searched = unleased, True
        soon = (suspected and bool(unleased)) or len(again) > AT_ONCE
        self._look_at = now + (own.settings.sweep_interval_s if soon else own.settings.orphans_interval_s)
        return await self._drop(again[:AT_ONCE])

    async def _drop(self, places: list[QueuedVisit]) -> int:
        own = self._own
        stored = await asyncio.gather(*(self._broker.visit_at(own.partition, place) for place in places))
        if not any(stored) or not await self._writer.still_owner():
            return 0
        gone = [
            (place, shard)
            for place, shard in zip(places, stored, strict=True)
            if shard is not None and _lease_gone(shard, own.leases)
        ]
        await self._dead_letter(gone)
        await asyncio.gather(
            *(
                self._broker.drop_visit(place.pool, own.partition, place.host_id, place.slot, through=shard.sequence)
                for place, shard in gone
            )
        )
        if gone:
            log.info("orphaned_shards.dropped", partition=own.partition, shards=len(gone))
        return len(gone)

    async def _dead_letter(self, gone: Iterable[tuple[QueuedVisit, StoredVisit]]) -> None:
        """Store dead letters for the unreadable shards in `gone`. Readable shards get none.

        `gone`: the shards that the caller drops after this call.
        """
        letters = [letter for place, shard in gone if (letter := self._letter(place, shard)) is not None]
        if not letters:
            return
        async with self._writer.writing():
            await self._writer.apply(Changes(dead_letters=letters))
        self._writer.stats.dead_lettered(letters)

    def _letter(self, place: QueuedVisit, shard: StoredVisit) -> DeadLetterRow | None:
        try:
            decode_shard(shard.data)
        except Malformed as error:
            unreadable = ShardUnreadable(
                pool=place.pool,
                host_id=place.host_id,
                slot=place.slot,
                sequence=shard.sequence,
                worker="",
                reason=str(error),
                size=len(shard.data),
                data=shard.data[:KEPT_BYTES],
            )
            return letter_of_shard(self._own.partition, unreadable, self._clock.unix_ms())
        return None


def _lease_gone(shard: StoredVisit, leases: Leases) -> bool:
    """Return True if the shard's lease is over, or if the shard cannot be read."""
    try:
        return leases.get(LeaseId(decode_shard(shard.data).lease)) is None
    except Malformed:
        return True
