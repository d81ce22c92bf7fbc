"""The rows of deleted crawls, removed at last whatever died in between.

An operator's delete or reset is done when SQL says so; that the owners remove the rows is told them by a command, and
whoever tells may die before it is said to all. So the leader looks for deleted crawls that some partition has not
removed, and tells it again: the command is the same one, by its id, and is applied once. Items are of no partition:
the leader removes them itself.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from shared.domain.command import CommandKind, collection_of
from shared.domain.errors import NoRoom
from shared.domain.ids import CrawlId, Partition
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.store import Store
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.control")

AGAIN_S: Final = 600.0
"""A command that was acknowledged is told again after so long: by then it was applied, or its stream was lost."""


_ITEMS: Final = 5_000
_CHUNKS: Final = 10
"""Rows of items that one transaction removes, and transactions of a pass for one crawl."""


class Collecting:
    """Keeps at it until every deleted crawl is collected."""

    def __init__(self, store: Store, items: ItemTable, broker: Broker, clock: Clock) -> None:
        self._store = store
        self._items = items
        self._broker = broker
        self._clock = clock
        self._told_at: dict[CrawlId, float] = {}

    async def once(self) -> None:
        """One pass. Transient: the next one goes on; NoRoom when all is done for which there was room."""
        full = None
        for crawl_id, partitions in (await self._store.uncollected()).items():
            try:
                await self._collect(crawl_id, partitions)
            except NoRoom as error:
                full = error
        if full is not None:
            raise full

    async def _collect(self, crawl_id: CrawlId, partitions: Sequence[Partition]) -> None:
        told_at = self._told_at.get(crawl_id)
        if not partitions:
            if await self._items_removed(crawl_id):
                await self._store.collected(crawl_id, self._clock.unix_ms())
                self._told_at.pop(crawl_id, None)
                log.info("crawl.collected", crawl=crawl_id)
        elif told_at is None or self._clock.elapsed() - told_at >= AGAIN_S:
            for partition in partitions:
                await self._tell(crawl_id, partition)
            self._told_at[crawl_id] = self._clock.elapsed()

    async def _items_removed(self, crawl_id: CrawlId) -> bool:
        """Whether none of its items is left, after a bounded part of them was removed."""
        for _ in range(_CHUNKS):
            if await self._items.remove(crawl_id, _ITEMS):
                return True
        return False

    async def _tell(self, crawl_id: CrawlId, partition: Partition) -> None:
        command_id = collection_of(crawl_id)
        data = encode(Command(command_id, crawl_id, CommandKind.DELETE))
        await self._broker.publish_report(partition, "outcome", data, f"{command_id}.{partition}")
