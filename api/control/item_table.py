"""Keeps the table of items as the stream of items has it.

One writes it, the leader: items are of no partition, a single reader needs no more than one position, and a cluster
without a leader loses nothing, for the stream keeps them. The position is moved in the transaction that writes the
rows, which begins with a fence of its own (`ItemFence`), so a deposed leader writes nothing.

An item counts with the accepted outcome of its page, which comes shortly after it: a batch that is not full waits for
that. Items whose outcome is not applied by then wait in the table (`ItemTable.settle`).

What the stream gave up before it was read (`items_age_s`, `items_bytes`) is missing in the table; that is told and
counted. A message that can never be applied becomes a dead letter and stalls nothing. What a full disk refuses is tried
again where it stands; the fence is in every try.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from api.frontier.tally import FrontierTally
from shared.domain.errors import OwnershipLost, Permanent, Transient
from shared.domain.ids import CrawlId, Partition, Term
from shared.domain.items import CrawlItems, ItemFence, ItemLetter, ItemPosition
from shared.ports.broker import Broker, Delivered
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.retrying import until_there_is_room
from shared.wire.items import decode_items
from shared.wire.messages import Malformed

log = structlog.get_logger("orb.control")

MOST: Final = 200
"""Messages that one transaction applies; they are bounded in bytes, too (StreamSettings.read_bytes)."""

_READ_S: Final = 1.0
_OUTCOME_S: Final = 0.25
"""How long after its items the outcome of a page is usually applied."""

_AGAIN_S: Final = 0.5
_EVIDENCE_CHARS: Final = 2_000
_EVERY: Final = Partition(0)

Alarm = Callable[[Partition, str], None]


class ItemWriter:
    """Writes the table for as long as it is told a term."""

    def __init__(self, table: ItemTable, broker: Broker, clock: Clock, tally: FrontierTally, alarm: Alarm) -> None:
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
        """Until cancelled. `term`: the one to write under now, None while nothing may be written."""
        while True:
            current = term()
            if current is not None:
                try:
                    await self._serve(current, term)
                except OwnershipLost as error:
                    log.warning("items.deposed", reason=str(error))
                except Transient as error:
                    log.warning("items.waits", reason=str(error))
                except Permanent as error:
                    log.error("items.refused", reason=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def has(self, crawl_id: CrawlId) -> bool:
        """Whether everything is in the table that was in the stream when this was first asked of the crawl."""
        return bool(await self.complete([crawl_id]))

    async def complete(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls of which everything is in the table that was in the stream when this was first
        asked of them."""
        if not crawl_ids:
            return ()
        state = await self._broker.items_state()
        now = ItemPosition(state.created_ns, state.last)
        awaited = {crawl_id: self._awaited.setdefault(crawl_id, now) for crawl_id in crawl_ids}
        position = await self._table.position()
        reached = [crawl_id for crawl_id, last in awaited.items() if _reached(last, position, state.created_ns)]
        waiting = await self._table.waiting(reached) if reached else ()
        complete = {crawl_id for crawl_id in reached if crawl_id not in waiting}
        for crawl_id in complete:
            self._awaited.pop(crawl_id, None)  # another caller may have removed it meanwhile
        return complete

    async def _serve(self, serving: Term, term: Callable[[], Term | None]) -> None:
        """Claim the table and follow the stream, until the term is another."""
        self._fence, self._position = await until_there_is_room(lambda: self._table.claim(serving))
        await self._broker.declare(())  # whoever deletes the stream gets a new one
        await self._check_stream()
        reader = await self._broker.read_items(self._position.sequence)
        try:
            while term() == serving:
                messages = await reader.read(MOST, _READ_S)
                if messages:
                    if len(messages) < MOST:
                        await asyncio.sleep(_OUTCOME_S)
                    self._look_for_gap(messages[0].sequence)
                    await self._apply(messages)
                else:
                    await self._pass_what_is_gone()
                await until_there_is_room(self._settle)
        finally:
            await reader.close()

    async def _check_stream(self) -> None:
        """Begin at the start of a stream that is not the one our position is of."""
        state, position = await self._broker.items_state(), self._position
        if position.stream_created_ns == state.created_ns and state.last >= position.sequence:
            return
        if position.sequence:
            text = "the stream of items is another one than before; reading it from its start"
            log.error("items.new_stream", position=str(position), created=state.created_ns)
            self._alarm(_EVERY, text)
        await until_there_is_room(partial(self._write, ItemPosition(state.created_ns), [], []))

    async def _pass_what_is_gone(self) -> None:
        """Where nothing is left of what was not read, there is no message behind it that would show the gap."""
        state = await self._broker.items_state()
        if state.first == state.last + 1 > self._position.sequence + 1:
            self._look_for_gap(state.first)
            position = ItemPosition(self._position.stream_created_ns, state.last)
            await until_there_is_room(partial(self._write, position, [], []))

    def _look_for_gap(self, sequence: int) -> None:
        missed = sequence - self._position.sequence - 1
        if missed > 0 and self._position.sequence:
            self._tally.items_missed += missed
            text = f"{missed} messages of items left their stream before they were in the table"
            log.error("items.missed", messages=missed, after=self._position.sequence)
            self._alarm(_EVERY, f"{text}: raise items_age_s or items_bytes")

    async def _apply(self, messages: Sequence[Delivered]) -> None:
        """Apply them; of those that the database refuses, the culprit alone is buried."""
        read: list[CrawlItems] = []
        letters: list[ItemLetter] = []
        for message in messages:
            try:
                crawl_id, pages = decode_items(message.data)
            except Malformed as error:
                letters.append(_letter(message, f"cannot be read: {error}"))
            else:
                read.append(CrawlItems(crawl_id, tuple(pages)))
        position = ItemPosition(self._position.stream_created_ns, messages[-1].sequence)
        try:
            await until_there_is_room(partial(self._write, position, read, letters))
            self._told(messages)
        except Permanent as error:
            if len(messages) > 1:
                middle = len(messages) // 2
                await self._apply(messages[:middle])
                await self._apply(messages[middle:])
                return
            log.error("items.buried", sequence=messages[0].sequence, error=str(error))
            letters = [_letter(messages[0], str(error), read[0].crawl_id if read else None)]
            await until_there_is_room(partial(self._write, position, [], letters))
        self._tally.dead_letters["items"] += len(letters)

    def _told(self, messages: Sequence[Delivered]) -> None:
        now_ns = self._clock.unix_ms() * 1_000_000
        for message in messages:
            self._tally.item_lag.observe(max(0, now_ns - message.at_ns) / 1e9)

    async def _write(
        self, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> None:
        assert self._fence is not None, "nothing is written before the table is claimed"
        stored = await self._table.apply(self._fence, position, messages, letters)
        self._position = position
        self._stored(stored)

    async def _settle(self) -> None:
        """Store the items whose outcome came behind them, and drop those whose outcome cannot come any more."""
        assert self._fence is not None, "nothing is written before the table is claimed"
        most, evidence = MOST, None
        while True:
            try:
                stored = await self._table.settle(self._fence, self._position, most, evidence)
            except Permanent as error:
                if evidence is not None:
                    raise
                most, evidence = 1, None if most > 1 else str(error)[:_EVIDENCE_CHARS]
                continue
            if stored is None:
                return
            if evidence is not None:
                log.error("items.buried", error=evidence)
                self._tally.dead_letters["items"] += 1
            self._stored(stored)
            most, evidence = MOST, None

    def _stored(self, stored: Mapping[CrawlId, int]) -> None:
        assert self._fence is not None
        self._fence = ItemFence(self._fence.term, self._fence.version + 1)
        self._tally.items_stored += sum(stored.values())


def _reached(awaited: ItemPosition, position: ItemPosition, created_ns: int) -> bool:
    """Return True if the table is at the awaited place, or nothing was there, or it is gone with its stream."""
    if awaited.sequence and position.stream_created_ns == awaited.stream_created_ns:
        return position.sequence >= awaited.sequence
    return awaited.sequence == 0 or created_ns != awaited.stream_created_ns


def _letter(message: Delivered, evidence: str, crawl_id: CrawlId | None = None) -> ItemLetter:
    return ItemLetter(message.at_ns // 1_000_000, evidence[:_EVIDENCE_CHARS], message.data, crawl_id)
