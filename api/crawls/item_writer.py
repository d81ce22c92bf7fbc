"""Copy the stream of items into the table of items.

Only the leader writes the table, because items belong to no partition. While there is no leader, the stream keeps the
items. One transaction writes the rows and moves the position. It begins with a fence (`ItemFence`) that fails for an
earlier leader, so an earlier leader writes nothing.

An item is stored once the outcome of its page is accepted. If the outcome is missing when the item is read, the item
waits in the table until `ItemTable.resolve_drafts` stores or drops it.

If the stream drops messages before they are read (`items_age_s`, `items_bytes`), their items are missing in the table.
This is logged, counted and raised as an alarm. A message that cannot be decoded, or that the database refuses for good,
becomes a dead letter. So the next ones are applied. If the disk is full, the write is retried.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import structlog
from msgspec import structs

from api.frontier.stats import OwnerStats
from shared.domain.errors import OwnershipLost, Permanent, Transient
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.reads.items import CrawlItems, ItemChanges, ItemFence, ItemLetter, ItemPosition
from shared.ports.broker import Broker, Delivered, ItemsState
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.runtime.retry import until_resource_available
from shared.wire.items import decode_items
from shared.wire.messages import Malformed

log = structlog.get_logger("orb.control")

MAX_COUNT: Final = 200
"""Maximum messages that one transaction applies. Their bytes are bounded, too (StreamSettings.read_bytes)."""

_READ_S: Final = 1.0
_SKIP_S: Final = 10.0
"""Interval at which a writer that gets no messages checks if the stream dropped unread messages."""

_OUTCOME_S: Final = 0.25
"""Usual time from when the items of a page arrive until the outcome of the page is applied."""

_AGAIN_S: Final = 0.5
_EVIDENCE_CHARS: Final = 2_000
_EVERY: Final = Partition(0)

Alarm = Callable[[Partition, str], None]


class ItemWriter:
    """Writes the table of items from the stream of items, while this master has a term as leader."""

    def __init__(self, table: ItemTable, broker: Broker, clock: Clock, tally: OwnerStats, alarm: Alarm) -> None:
        self._table = table
        self._broker = broker
        self._clock = clock
        self._tally = tally
        self._alarm = alarm
        self._fence: ItemFence | None = None
        self._position = ItemPosition()
        self._awaited: dict[CrawlId, ItemPosition] = {}

    def __repr__(self) -> str:
        return f"<ItemWriter {self._fence!r} at={self._position.sequence}>"

    async def run(self, term: Callable[[], Term | None]) -> None:
        """Write items until cancelled. `term` returns the term to write under, None while nothing may be written."""
        while True:
            current = term()
            if current is not None:
                try:
                    await self._serve(current, term)
                except OwnershipLost as error:
                    log.warning("item_writer.deposed", error=str(error))
                except Transient as error:
                    log.warning("item_writer.delayed", error=str(error))
                except Permanent as error:
                    log.error("item_writer.refused", error=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def is_complete(self, crawl_id: CrawlId) -> bool:
        """Return True if no item of the crawl is left to write: each was stored in the table or dropped for good.

        The first call for a crawl notes the present end of the stream. Items that reach the stream later do not count.
        """
        return bool(await self.complete([crawl_id]))

    async def complete(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return the crawls in `crawl_ids` that have no item left to write. Other crawls are missing in the result.

        The first call for a crawl notes the present end of the stream. A crawl is in the result if both are true:

        - The stream was read up to the noted end. Items after this end are not awaited.
        - No item of the crawl waits in the table for the outcome of its page.

        If the stream was restored to an earlier state, this writer reads the restored stream from its start. No crawl
        is in the result before that is done, unless the stream was empty when the crawl's end was noted.
        """
        if not crawl_ids:
            return ()
        state = await self._broker.items_state()
        now = ItemPosition(state.created_ns, state.last)
        awaited = {crawl_id: self._awaited.setdefault(crawl_id, now) for crawl_id in crawl_ids}
        position = await self._table.position()
        reached = [crawl_id for crawl_id, last in awaited.items() if _reached(last, position, state)]
        if reached and position.stream_created_ns == state.created_ns and not await self._continues(position, state):
            return ()  # The stream was restored to an earlier state, and will be read from its start.
        waiting = await self._table.waiting(reached) if reached else ()
        complete = {crawl_id for crawl_id in reached if crawl_id not in waiting}
        for crawl_id in complete:
            self._awaited.pop(crawl_id, None)  # Another caller may have removed it meanwhile.
        return complete

    async def _serve(self, serving: Term, term: Callable[[], Term | None]) -> None:
        """Become the table's only writer, under the term `serving`. Write items while `term` returns `serving`."""
        self._fence, self._position = await until_resource_available(lambda: self._table.claim(serving))
        await self._broker.declare(())  # Recreate the stream if it was deleted.
        await self._check_stream()
        position = self._position
        at_ns = position.at_ns if position.timed_sequence == position.sequence else 0
        reader = await self._broker.read_items(position.sequence, at_ns)
        skip_at = self._clock.elapsed()
        try:
            while term() == serving:
                messages = await reader.read(MAX_COUNT, _READ_S)
                if messages:
                    if len(messages) < MAX_COUNT:  # The outcomes of their pages usually come soon.
                        await asyncio.sleep(_OUTCOME_S)
                    self._look_for_gap(messages[0].sequence)
                    await self._apply(messages)
                # A finished crawl that waits for its items is not delayed by the interval.
                elif self._awaited or self._clock.elapsed() >= skip_at:
                    await self._skip_dropped()
                    skip_at = self._clock.elapsed() + _SKIP_S
                await until_resource_available(self._resolve_drafts)
        finally:
            await reader.close()

    async def _check_stream(self) -> None:
        """Compare the stream with the stored position.

        If the stream was replaced or came back shorter, raise an alarm and read from its start.
        """
        state, position = await self._broker.items_state(), self._position
        if position.stream_created_ns == state.created_ns and await self._continues(position, state):
            return
        if position.sequence:
            text = "the stream of items is another one than before, or came back shorter; reading it from its start"
            log.error("item_stream.replaced", position=str(position), created_ns=state.created_ns)
            self._alarm(_EVERY, text)
        await until_resource_available(partial(self._write, ItemPosition(state.created_ns), [], []))

    async def _continues(self, position: ItemPosition, state: ItemsState) -> bool:
        """Return False if the stream was restored to a state before the message at `position`, otherwise True.

        The result is also right if the restored stream has grown past `position` since.

        `state`: the present state of the stream. The caller has checked that `state` and `position` have the same
        creation time of the stream.
        """
        if state.last < position.sequence:
            return False
        return not position.at_ns or await self._broker.continues(position.timed_sequence, position.at_ns, "items")

    async def _skip_dropped(self) -> None:
        """Report the loss of messages if the stream is empty because it dropped all unread messages.

        Then move the position past the lost messages. If the stream has messages, do nothing: the next message that is
        read shows the loss.
        """
        # If the stream has messages, the next one that is read shows the gap.
        state = await self._broker.items_state()
        if state.first == state.last + 1 > self._position.sequence + 1:
            self._look_for_gap(state.first)
            position = structs.replace(self._position, sequence=state.last)
            await until_resource_available(partial(self._write, position, [], []))

    def _look_for_gap(self, sequence: int) -> None:
        missed = sequence - self._position.sequence - 1
        if missed > 0 and self._position.sequence:
            self._tally.items_missed += missed
            text = f"{missed} messages of items left their stream before they were in the table"
            log.error("items.missed", messages=missed, after=self._position.sequence)
            self._alarm(_EVERY, f"{text}: raise items_age_s or items_bytes")

    async def _apply(self, messages: Sequence[Delivered]) -> None:
        """Write the items of the messages to the table. A message that cannot be decoded becomes a dead letter.

        If the database refuses the messages for good, bisect until the one refused message becomes a dead letter.
        """
        read: list[CrawlItems] = []
        letters: list[ItemLetter] = []
        for message in messages:
            try:
                crawl_id, pages = decode_items(message.data)
            except Malformed as error:
                letters.append(_letter(message, f"cannot be read: {error}"))
            else:
                read.append(CrawlItems(crawl_id, tuple(pages)))
        position = self._position.moved(messages[-1].sequence, messages[-1].at_ns)
        try:
            await until_resource_available(partial(self._write, position, read, letters))
            self._observe_lag(messages)
        except Permanent as error:
            if len(messages) > 1:
                middle = len(messages) // 2
                await self._apply(messages[:middle])
                await self._apply(messages[middle:])
                return
            log.error("items.dead_lettered", sequence=messages[0].sequence, error=str(error))
            letters = [_letter(messages[0], str(error), read[0].crawl_id if read else None)]
            await until_resource_available(partial(self._write, position, [], letters))
        self._tally.dead_letters["items"] += len(letters)

    def _observe_lag(self, messages: Sequence[Delivered]) -> None:
        now_ns = self._clock.unix_ms() * 1_000_000
        for message in messages:
            self._tally.item_lag.observe(max(0, now_ns - message.at_ns) / 1e9)

    async def _write(
        self, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> None:
        assert self._fence is not None, "nothing is written before the table is claimed"
        changes = await self._table.apply(self._fence, position, messages, letters)
        self._position = position
        self._changed(changes)

    async def _resolve_drafts(self) -> None:
        """Store the waiting items whose page's outcome was applied. Drop the items whose outcome can no longer come."""
        assert self._fence is not None, "nothing is written before the table is claimed"
        max_count, evidence = MAX_COUNT, None
        while True:
            try:
                changes = await self._table.resolve_drafts(self._fence, self._position, max_count, evidence)
            except Permanent as error:
                if evidence is not None:
                    raise
                max_count, evidence = 1, None if max_count > 1 else str(error)[:_EVIDENCE_CHARS]
                continue
            if changes is None:
                return
            if evidence is not None:
                log.error("items.dead_lettered", error=evidence)
                self._tally.dead_letters["items"] += 1
            self._changed(changes)
            max_count, evidence = MAX_COUNT, None

    def _changed(self, changes: ItemChanges) -> None:
        assert self._fence is not None
        self._fence = ItemFence(self._fence.term, self._fence.version + 1)
        self._tally.items_stored += sum(changes.stored.values())
        self._tally.items_dropped.update(changes.dropped)


def _reached(awaited: ItemPosition, position: ItemPosition, state: ItemsState) -> bool:
    """Return True if no item up to `awaited` is left to read. Lost items are not left to read.

    The first case that holds decides:

    - The sequence of `awaited` is 0, because the stream was empty: True.
    - `awaited` and `position` are in the same stream: True if `position` has reached `awaited`. If the stream was
      restored to an earlier state, `state.last` may be less than `awaited`. Then True if `position` has reached
      `state.last`, because the messages between the two are lost.
    - The present stream is another one than the stream of `awaited`: True, because the unread items are lost.
    - Otherwise False: nothing of the present stream was read yet.

    `awaited`: the position to reach. `position`: how far items were read. `state`: the state of the present stream.
    """
    if awaited.sequence and position.stream_created_ns == awaited.stream_created_ns:
        return position.sequence >= min(awaited.sequence, state.last)
    return awaited.sequence == 0 or state.created_ns != awaited.stream_created_ns


def _letter(message: Delivered, evidence: str, crawl_id: CrawlId | None = None) -> ItemLetter:
    return ItemLetter(message.at_ns // 1_000_000, evidence[:_EVIDENCE_CHARS], message.data, crawl_id)
