"""Remove the rows of deleted crawls. A deletion that a crash interrupted is completed later.

A delete or reset is first committed to SQL. Then a command is published, which makes the owners remove the rows. If the
process dies between these steps, some owners may not receive the command. So the leader looks for deleted crawls that
still have rows in a partition, and publishes the command again with the same id. An owner applies it once. Items and
seed sets belong to no partition: the leader removes them itself.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from shared.domain.errors import ResourceFull
from shared.domain.frontier.commands import CommandKind, collection_of
from shared.domain.ids import CrawlId, Partition
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.ports.items import ItemTable
from shared.ports.store import Store
from shared.wire.messages import Command, encode

log = structlog.get_logger("orb.control")

AGAIN_S: Final = 600.0
"""Seconds after which a command is published again. By then the first command was applied, or its stream was lost."""

_ITEMS: Final = 5_000
_CHUNKS: Final = 10
"""Maximum transactions in which one pass (`once`) removes the items of a deleted crawl, at most `_ITEMS` in each.

A pass also removes the crawl's seed sets in at most this many transactions."""


class GarbageCollector:
    """Removes the rows of deleted crawls, on the leader. Each pass repeats what an earlier one could not complete."""

    def __init__(self, store: Store, items: ItemTable, broker: Broker, clock: Clock) -> None:
        self._store = store
        self._items = items
        self._broker = broker
        self._clock = clock
        self._published_at: dict[CrawlId, float] = {}

    async def once(self) -> None:
        """Run one pass over the deleted crawls. If it raises Transient, the caller may call again: nothing is lost.

        If rows of a crawl cannot be removed because a resource is full, raise ResourceFull at the end of the pass.
        """
        full = None
        for crawl_id, partitions in (await self._store.uncollected()).items():
            try:
                await self._collect(crawl_id, partitions)
            except ResourceFull as error:
                full = error
        if full is not None:
            raise full

    async def _collect(self, crawl_id: CrawlId, partitions: Sequence[Partition]) -> None:
        published_at = self._published_at.get(crawl_id)
        if not partitions:
            if await self._items_removed(crawl_id) and await self._sets_removed(crawl_id):
                self._published_at.pop(crawl_id, None)
                log.info("crawl.purged", crawl=crawl_id)
        elif published_at is None or self._clock.elapsed() - published_at >= AGAIN_S:
            for partition in partitions:
                await self._publish(crawl_id, partition)
            self._published_at[crawl_id] = self._clock.elapsed()

    async def _items_removed(self, crawl_id: CrawlId) -> bool:
        """Remove a bounded number of the crawl's items. Return True if none remains."""
        for _ in range(_CHUNKS):
            if await self._items.remove(crawl_id, _ITEMS):
                return True
        return False

    async def _sets_removed(self, crawl_id: CrawlId) -> bool:
        """Remove a bounded number of the crawl's seed sets. Return True if the whole crawl is now removed.

        The seed sets are the last that remains of a crawl: call this when all its other rows are removed. When no seed
        set remains, `Store.collected` records in SQL that the removal of the crawl is complete.
        """
        for _ in range(_CHUNKS):
            if await self._store.collected(crawl_id, self._clock.unix_ms()):
                return True
        return False

    async def _publish(self, crawl_id: CrawlId, partition: Partition) -> None:
        command_id = collection_of(crawl_id)
        data = encode(Command(command_id, crawl_id, CommandKind.DELETE))
        await self._broker.publish_command(partition, data, f"{command_id}.{partition}")
