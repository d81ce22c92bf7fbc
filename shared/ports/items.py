"""The port to the table of items in the database. One writer fills it from the stream of items, in the stream's order.

Errors as for the store: OwnershipLost if another writer has taken over, Transient if the write may or may not have
happened, Permanent if these rows can never be written.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from shared.domain.ids import CrawlId, Term
from shared.domain.reads.items import CrawlItems, ItemChanges, ItemFence, ItemLetter, ItemPosition


class ItemTable(Protocol):
    """The table of items, as its one writer fills it. Every method is one transaction."""

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        """Become the table's writer under `term`. Return the fence for the next transaction, and the stored stream
        position.

        Raise OwnershipLost if a later term is the writer. A transaction that began under an earlier claim can no longer
        commit.
        """

    async def apply(
        self, fence: ItemFence, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> ItemChanges:
        """Replace the pages' items by those of the messages, store the dead letters, and set the stream position.

        Items of an earlier fetch than the stored one are dropped, and items of absent or deleted crawls. Only items of
        a fetch whose outcome was accepted are stored. Items whose outcome may still come wait for `settle`; all others
        are dropped.
        """

    async def settle(
        self, fence: ItemFence, position: ItemPosition, max_count: int, evidence: str | None = None
    ) -> ItemChanges | None:
        """Store or drop the items of up to `max_count` waiting pages whose outcome came or can no longer come.

        Return None, and write nothing, if there is no such page. With `evidence`, make these pages dead letters with
        that text instead, since they can never be stored.
        """

    async def waiting(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls that have items waiting for the outcome of their page."""

    async def position(self) -> ItemPosition: ...

    async def remove(self, crawl_id: CrawlId, max_count: int) -> bool:
        """Remove up to `max_count` rows of a deleted crawl's items. Return True if none remains."""
