"""Strays: shards that stand in a queue though their lease is gone, which no worker may ever come for.

A crawl that was deleted leaves them behind, and so does a shard that was published late; in a pool without workers
they would stand for ever. They are looked for now and then, and at once where a deletion made some.

Why no shard is dropped that somebody may still begin: a lease is committed and remembered before its shard is
published. So once the term is proven by a read that began after the shard was read, whatever published it was this
owner or one before it, and a lease that this owner does not remember then is over for good, since numbers of leases are
never given twice. Only that very message is dropped, by its sequence, and never what may have come into its place.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from api.frontier.burying import letter_of_shard
from api.frontier.leases import Leases, place_of
from api.frontier.ownership import Ownership
from shared.domain.ids import LeaseId
from shared.domain.ledger import Changes, DeadLetter
from shared.ports.broker import QueuedVisit, StoredVisit
from shared.wire.messages import KEPT_BYTES, Malformed, Unreadable, decode_shard

log = structlog.get_logger("orb.frontier")

AT_ONCE: Final = 64
"""Shards looked at and dropped in one turn; the others wait for the next."""


def unheld(listed: Iterable[QueuedVisit], leases: Leases) -> set[QueuedVisit]:
    """The places on which no shard of a lease should stand."""
    held = {place_of(each.row) for each in leases}
    return {place for place in listed if place not in held}


class Strays:
    """Keeps the queues of one partition free of shards without a lease."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self._suspects: set[QueuedVisit] = set()
        self._look_at = own.clock.elapsed() + own.settings.strays_s

    async def once(self) -> int:
        """One turn, in which there may be nothing to do; how many were dropped.

        A worker that has reported acknowledges a moment later, so a place is suspect only when it is found twice.
        """
        own = self._own
        now = own.clock.elapsed()
        suspected = own.strays_suspected
        if now < self._look_at and not suspected:
            return 0
        own.strays_suspected = False
        found = unheld(await own.broker.queued_visits(own.partition), own.leases)
        again = sorted(found & self._suspects)
        self._suspects = found
        soon = (suspected and bool(found)) or len(again) > AT_ONCE
        self._look_at = now + (own.settings.sweep_s if soon else own.settings.strays_s)
        return await self._drop(again[:AT_ONCE])

    async def _drop(self, places: list[QueuedVisit]) -> int:
        own = self._own
        standing = await asyncio.gather(*(own.broker.visit_at(own.partition, place) for place in places))
        if not any(standing) or not await self._term_proven():
            return 0
        gone = [
            (place, shard)
            for place, shard in zip(places, standing, strict=True)
            if shard is not None and _lease_gone(shard, own.leases)
        ]
        await self._bury(gone)
        await asyncio.gather(
            *(
                own.broker.drop_visit(place.pool, own.partition, place.host_id, place.slot, through=shard.sequence)
                for place, shard in gone
            )
        )
        if gone:
            log.info("strays.dropped", partition=own.partition, shards=len(gone))
        return len(gone)

    async def _bury(self, gone: Iterable[tuple[QueuedVisit, StoredVisit]]) -> None:
        """Keep what no worker came for and nobody can read as dead letters, before it is dropped."""
        own = self._own
        letters = [letter for place, shard in gone if (letter := self._letter(place, shard)) is not None]
        if not letters:
            return
        changes = Changes(dead_letters=letters)
        async with own.writing() as fence:
            await own.store.apply(fence, own.position, changes)
            await own.committed()
        own.tally.buried(letters)

    def _letter(self, place: QueuedVisit, shard: StoredVisit) -> DeadLetter | None:
        try:
            decode_shard(shard.data)
        except Malformed as error:
            found = Unreadable(
                pool=place.pool,
                host_id=place.host_id,
                slot=place.slot,
                sequence=shard.sequence,
                worker="",
                reason=str(error),
                size=len(shard.data),
                data=shard.data[:KEPT_BYTES],
            )
            return letter_of_shard(self._own.partition, found, self._own.clock.unix_ms())
        return None

    async def _term_proven(self) -> bool:
        """Whether no later owner had claimed the partition when this was asked."""
        return await self._own.store.still_owner(self._own.fence)


def _lease_gone(shard: StoredVisit, leases: Leases) -> bool:
    """Whether the shard's lease is over. One that cannot be read names none."""
    try:
        return leases.get(LeaseId(decode_shard(shard.data).lease)) is None
    except Malformed:
        return True
