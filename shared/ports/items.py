"""The port to the table of items: filled from the stream of items by one writer, in the stream's order.

Errors as of the store: OwnershipLost when the fence refused, Transient when nobody knows whether it was written,
Permanent when these rows can never be.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from shared.domain.ids import CrawlId, Term
from shared.domain.items import CrawlItems, ItemFence, ItemLetter, ItemPosition


class ItemTable(Protocol):
    """Every method is one transaction."""

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        """Be the writer under `term`; OwnershipLost when a later one has it. No transaction begun before under an
        earlier claim can commit any more."""
        ...

    async def apply(
        self, fence: ItemFence, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> Mapping[CrawlId, int]:
        """Put the messages' items in place of what the table has of their pages, where they are of a later fetch or
        the same, keep the letters and move the position. Items stored, by crawl; those of crawls that are not there, or
        deleted, are not.

        Only items of a fetch whose outcome was accepted are stored. Those whose outcome may still come wait for
        `settle`; all others are dropped."""
        ...

    async def settle(
        self, fence: ItemFence, position: ItemPosition, most: int, evidence: str | None = None
    ) -> Mapping[CrawlId, int] | None:
        """Store or drop up to `most` pages that wait and whose outcome came, or cannot come any more. Items stored, by
        crawl; None where no page is decided, and nothing was written. With `evidence` these pages can never be stored:
        they become dead letters instead."""
        ...

    async def waiting(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return those of the crawls with items that wait for the outcome of their page."""
        ...

    async def position(self) -> ItemPosition: ...

    async def remove(self, crawl_id: CrawlId, most: int) -> bool:
        """Remove up to `most` rows of a deleted crawl; whether none is left."""
        ...
