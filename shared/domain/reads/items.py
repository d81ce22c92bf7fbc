"""Items extracted from pages: as workers send them in messages, and as the table of items stores them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Term


class TakenItem(NamedTuple):
    """An item as extracted from a page.

    `id` is its id in the crawl (16 bytes), `rule` the name of its rule, and `data` its fields as a JSON object.
    """

    id: bytes
    rule: str
    data: bytes


class PageItems(NamedTuple):
    """The items extracted from one fetch of a page, perhaps none.

    - `lease` and `grant`: those of the visit that fetched the page. Of two fetches of a page, the later one has the
      greater pair (lease, grant).
    - `at_ms`: when the page was fetched (Unix ms).
    - `context`: the page's seed context; set in messages only.
    """

    host_id: HostId
    fingerprint: Fingerprint
    url: str
    lease: LeaseId
    grant: int
    at_ms: int
    items: tuple[TakenItem, ...]
    context: SeedContext | None = None

    @property
    def version(self) -> tuple[int, int]:
        return self.lease, self.grant


class ItemPosition(Struct, frozen=True):
    """How far the stream of items has been written to the table of items.

    - `stream_created_ns`: the creation time of the stream (Unix ns).
    - `sequence`: the sequence number of the last message that was written.
    - `timed_sequence`, `at_ns`: the last message whose time is known, and when the stream stored it (Unix ns). They
      show whether the stream was restored to an earlier state. `at_ns` is 0 if no time is known.

    `timed_sequence` is less than `sequence` in two cases: messages were dropped unread, or a leader of an
    earlier release wrote the position.
    """

    stream_created_ns: int = 0
    sequence: int = 0
    timed_sequence: int = 0
    at_ns: int = 0

    def moved(self, sequence: int, at_ns: int) -> "ItemPosition":
        """Return the position after the message `sequence`, which the stream stored at `at_ns` (Unix ns)."""
        return ItemPosition(self.stream_created_ns, sequence, sequence, at_ns)


class ItemFence(Struct, frozen=True):
    """The fencing condition for writes to the table of items, which has a single writer.

    A transaction commits only if the database still stores this term and this version. It then increases the version
    by 1. Otherwise it raises OwnershipLost.
    """

    term: Term
    version: int


class CrawlItems(NamedTuple):
    """The content of one message of items: pages of one crawl, with their items."""

    crawl_id: CrawlId
    pages: tuple[PageItems, ...]


DROPPED: Final = ("unaccepted", "outdated", "deleted")
"""Why items are dropped.

"unaccepted": no owner accepted the outcome of the fetch that gave them. "outdated": the table has a later fetch of
the page. "deleted": their crawl is deleted.
"""


class ItemChanges(Struct, frozen=True):
    """What a transaction did with items: how many it stored, by crawl, and how many it dropped, by reason (DROPPED)."""

    stored: Mapping[CrawlId, int]
    dropped: Mapping[str, int]


class ItemLetter(Struct, frozen=True):
    """A dead letter for a message of items that can never be applied."""

    at_ms: int
    evidence: str
    payload: bytes
    crawl_id: CrawlId | None = None


class StoredItem(Struct, frozen=True):
    """An item in the table of items.

    `at_ms`: when its page was fetched (Unix ms). `context`: the seed context of its page.
    """

    id: bytes
    rule: str
    host_id: HostId
    fingerprint: Fingerprint
    url: str
    at_ms: int
    data: str
    context: SeedContext | None = None


class ItemFilter(Struct, frozen=True):
    """Which items of a crawl to list: those of a rule, of a page, or of both.

    A condition that is None admits every item.
    """

    rule: str | None = None
    page: Fingerprint | None = None
