"""The port to the table of items in the database. One process at a time fills it from the stream of items, in order.

Errors: OwnershipLost if another process has claimed the table. Transient if the transaction may or may not have been
committed. Permanent if the database will never accept the written rows.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from shared.domain.ids import CrawlId, Term
from shared.domain.reads.items import CrawlItems, ItemChanges, ItemFence, ItemLetter, ItemPosition


class ItemTable(Protocol):
    """Writes the table of items for the one process that has claimed it. Every method is one transaction."""

    async def claim(self, term: Term) -> tuple[ItemFence, ItemPosition]:
        """Make this process the table's only writer under `term`. Raise OwnershipLost if a later term is the writer.

        Return the fence to pass to the next transaction, and the position: the last message of the stream of items that
        was applied. Transactions with the fence of an earlier claim can no longer commit.
        """

    async def apply(
        self, fence: ItemFence, position: ItemPosition, messages: Sequence[CrawlItems], letters: Sequence[ItemLetter]
    ) -> ItemChanges:
        """Replace the items of each page in `messages`, store `letters` as dead letters, and set the stream position.

        Return the numbers of items that were stored and dropped.

        - Items of a fetch whose outcome an owner accepted are stored.
        - Items of a fetch whose outcome may still come become drafts: `resolve_drafts` stores or drops them later.
        - Items of all other fetches are dropped: their outcome was not accepted, or the table has items of a later
          fetch of the page.
        - Items of crawls that are deleted or do not exist are dropped.
        """

    async def resolve_drafts(
        self, fence: ItemFence, position: ItemPosition, max_count: int, evidence: str | None = None
    ) -> ItemChanges | None:
        """Store or drop drafts: items that `apply` set aside, because the outcome of their fetch was not known yet.

        A fetch is decided if an owner has accepted its outcome (accepted), or if its outcome can no longer come (not
        accepted). A call handles at most `max_count` decided fetches. Drafts of all other fetches do not change.

        - `evidence` is None: store the items of accepted fetches. Drop the items of fetches that were not accepted, and
          of deleted crawls.
        - `evidence` is a text, the reason why items cannot be stored: store and drop nothing. For each handled fetch,
          accepted or not, replace the draft by a dead letter with its items and this text.

        Return the numbers of items that were stored and dropped. With `evidence` both are 0. If no fetch is decided,
        write nothing and return None.
        """

    async def waiting(self, crawl_ids: Collection[CrawlId]) -> Collection[CrawlId]:
        """Return the crawls among `crawl_ids` that have items waiting for the outcome of their page."""

    async def position(self) -> ItemPosition: ...

    async def remove(self, crawl_id: CrawlId, max_count: int) -> bool:
        """Delete up to `max_count` rows of items of a deleted crawl. Return True if none remains."""
