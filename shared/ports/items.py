"""The port to the table of items. One writer fills it from the stream of items, in the stream's order.

Errors as for the store: OwnershipLost if the fence refused, Transient if the write may or may not have happened,
Permanent if these rows can never be written.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from shared.domain.ids import CrawlId, Term
from shared.domain.reads.items import CrawlItems, ItemChanges, ItemFence, ItemLetter, ItemPosition


class ItemTable(Protocol):
    """Every method is one transaction."""

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        """Claim the table as its writer under `term`. Raise OwnershipLost if a later term is the writer.

        A transaction that began under an earlier claim can no longer commit.
        """
        ...

    async def apply(
        self, fence: ItemFence, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> ItemChanges:
        """Replace the pages' items by those of the messages, store the letters and move the position.

        Items of an earlier fetch than the stored one are dropped, and items of absent or deleted crawls. Only items of
        a fetch whose outcome was accepted are stored. Items whose outcome may still come wait for `settle`; all others
        are dropped.
        """
        ...

    async def settle(
        self, fence: ItemFence, position: ItemPosition, max_count: int, evidence: str | None = None
    ) -> ItemChanges | None:
        """Store or drop up to `max_count` waiting pages whose outcome came or can no longer come.

        Return None, and write nothing, if no page is decided. With `evidence` these pages can never be stored: they
        become dead letters instead.
        """
        ...

    async def waiting(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls with items that wait for the outcome of their page."""
        ...

    async def position(self) -> ItemPosition: ...

    async def remove(self, crawl_id: CrawlId, max_count: int) -> bool:
        """Remove up to `max_count` rows of a deleted crawl. Return True if none remains."""
        ...
