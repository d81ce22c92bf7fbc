"""The sweep: keeps a partition's leases, front and streams from drifting apart. Everything here may run at any time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from api.frontier.dispatch import Dispatch
from api.frontier.front import LOOKED_AT
from api.frontier.leases import Held, place_of
from api.frontier.ownership import Ownership
from api.frontier.settle import Draft, worn_out
from api.frontier.strays import Strays
from shared.domain.errors import NoRoom, Transient
from shared.domain.holds import SeenHolds
from shared.ports.broker import KINDS

log = structlog.get_logger("orb.frontier")

_SOON_S = 60.0
_MAKE_ROOM_S = 10.0


class Sweep:
    """Runs about once a second for one partition."""

    def __init__(self, own: Ownership, dispatch: Dispatch) -> None:
        self._own = own
        self._dispatch = dispatch
        self._strays = Strays(own)
        self._purged = own.position
        self._holds = SeenHolds()
        self._made_room_at = own.clock.elapsed()

    async def run(self) -> None:
        """Sweep until cancelled. A broker that is away is tried again at the next turn."""
        while True:
            try:
                await self.once()
            except Transient as error:
                log.warning("sweep.waits", partition=self._own.partition, error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._own.settings.sweep_s):
                    await self._own.tuned.wait()
            self._own.tuned.clear()

    async def once(self) -> None:
        """One turn."""
        own = self._own
        await self._refill()
        await _if_there_is_room(self._reclaim)
        await self._republish()
        own.front.forget_rested(own.clock.elapsed(), own.crawls.longest_delay_s)
        await self._purge()
        await _if_there_is_room(self._strays.once)
        own.work.set()

    async def _refill(self) -> None:
        """Read queues from SQL that had no place in the front."""
        own = self._own
        for crawl_id in own.front.incomplete():
            if own.crawls.get(crawl_id) is None or not self._room():
                continue
            async with own.writing():
                most = own.settings.most_hosts
                soon_ms = own.clock.unix_ms() + int(_SOON_S * 1000)
                rows = await own.store.ready_queues(own.partition, crawl_id, most, soon_ms=soon_ms)
                own.front.mark_complete(crawl_id)
                for row in rows:
                    own.offer(row)
                if len(rows) == most:
                    own.front.mark_incomplete(crawl_id)

    def _room(self) -> bool:
        """Whether the front takes in hosts. Now and then, those that can do nothing soon make room in a full one, of
        which no more is gone over at a sweep than takes some hundredths of a second."""
        own, now = self._own, self._own.clock.elapsed()
        part = min(1.0, LOOKED_AT / max(1, len(own.front)))
        if own.front.full() and now - self._made_room_at >= _MAKE_ROOM_S * part:
            self._made_room_at = now
            own.front.make_room(now, now + _SOON_S, own.crawls.longest_delay_s)
        return not own.front.full()

    async def _republish(self) -> None:
        """Publish again what nobody began, or nobody came back for: the broker may have lost it.

        What still stands in its place goes first: a broker that was killed may remember that a shard was acknowledged
        and not that it was removed, and then neither delivers it nor lets another in. A shard that was never delivered
        keeps its place in the line: replaced, it would go behind all others again and again.
        """
        own = self._own
        for held in own.leases:
            if not self._late(held) or await self._dispatch.publish(held):
                continue
            if not await own.broker.visit_waits(own.partition, place_of(held.row)) and await self._drop(held):
                own.tally.replaced += 1
                log.debug("lease.replaced", partition=own.partition, lease=held.row.lease_id, host=held.row.host)
                await self._dispatch.publish(held)

    def _late(self, held: Held) -> bool:
        """Return True if the lease lives and its shard is to be published again."""
        own, now = self._own, self._own.clock.elapsed()
        if own.leases.get(held.row.lease_id) is not held or now - held.published_at <= own.settings.republish_s:
            return False
        return held.grant is None or now > held.grant.until + own.settings.ack_wait_s

    async def _drop(self, held: Held) -> bool:
        """Drop what stands in the lease's place, unless the lease is over or its grant lives: then it is another's.

        Return True if it was dropped.
        """
        own, row = self._own, held.row
        if own.leases.get(row.lease_id) is not held or held.live(own.clock.elapsed()):
            return False
        await own.broker.drop_visit(row.pool, own.partition, row.host_id, row.slot)
        return True

    async def _reclaim(self) -> None:
        """End leases that no worker will come back for.

        These are expired ones whose worker is proven dead, whose crawl is stopping, or whose shard could not be read so
        often. Further, those of a crawl that is over which no worker began, and those whose shard is too large for the
        broker.

        The shard leaves the stream while its lease still keeps the slot, so that no later shard can be meant by it.
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
            or worn_out(len(held.row.urls), held.row.expired, own.settings)
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
            draft = Draft(own.leases, own.front, own.crawls, now, own.clock.unix_ms(), lambda: 0.5, own.changes())
            ending = [held for held in ending if own.leases.get(held.row.lease_id) is held and not held.live(now)]
            for held in ending:
                if held.too_large is not None:
                    draft.cut(held, f"the message with this URL alone is too large: {held.too_large}")
                elif worn_out(len(held.row.urls), held.row.expired, own.settings):
                    draft.struck(held, held.row.expired, own.settings)
                else:
                    draft.end(held)
            await own.store.apply(fence, own.position, draft.changes)
            draft.commit()
            await own.committed()

    async def _purge(self) -> None:
        """Drop from the stream what is applied for good. Its reader refuses where the stream may be another by now.

        The position is noted before holds are looked for: what a hold came too late for is in its holder's snapshot.
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


async def _if_there_is_room(step: Callable[[], Awaitable[object]]) -> None:
    """Leave to a later turn what a full disk refuses: the other steps write nothing."""
    try:
        await step()
    except NoRoom as error:
        log.debug("sweep.no_room", error=str(error))
