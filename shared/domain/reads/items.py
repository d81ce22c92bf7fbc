"""Items as values in messages and in the table of items, and which of a page's several fetches counts."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Term


class TakenItem(NamedTuple):
    """An item as extracted from a page: its id in the crawl (16 bytes), its rule, its fields as a JSON object."""

    id: bytes
    rule: str
    data: bytes


class PageItems(NamedTuple):
    """The items extracted from one fetch of a page, perhaps none.

    The owner of a partition numbers a host's leases, and a lease's grants. So of two fetches of a page the one with the
    greater (lease, grant) was permitted later, whatever the clocks and the order of messages. `context`: that of the
    seed from which the page was found, in messages only.
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
    """The position in the stream of items up to which the table of items is written.

    It is the stream's creation time (Unix ns), which identifies the stream, and the last sequence.
    """

    stream_created_ns: int = 0
    sequence: int = 0


class ItemFence(Struct, frozen=True):
    """The condition of every transaction of the only writer of the table of items.

    It commits only under this term and directly after this version.
    """

    term: Term
    version: int


class CrawlItems(NamedTuple):
    """The pages with items of one message, all of one crawl."""

    crawl_id: CrawlId
    pages: tuple[PageItems, ...]


DROPPED: Final = ("unaccepted", "outdated", "deleted")
"""Why items are dropped.

"unaccepted": no outcome of their fetch was accepted as the page's. "outdated": the table has a later fetch of the page.
"deleted": their crawl is deleted.
"""


class ItemChanges(Struct, frozen=True):
    """How many items a transaction stored, by crawl, and dropped, by the reasons in DROPPED."""

    stored: Mapping[CrawlId, int]
    dropped: Mapping[str, int]


class ItemLetter(Struct, frozen=True):
    """A dead letter for a message of items that can never be applied."""

    at_ms: int
    evidence: str
    payload: bytes
    crawl_id: CrawlId | None = None


class StoredItem(Struct, frozen=True):
    """An item in the table of items. `at_ms`: when its page was fetched (Unix ms). `context`: that of its page."""

    id: bytes
    rule: str
    host_id: HostId
    fingerprint: Fingerprint
    url: str
    at_ms: int
    data: str
    context: SeedContext | None = None


class ItemFilter(Struct, frozen=True):
    """Which items of a crawl to list: those of this rule and this page. None: any."""

    rule: str | None = None
    page: Fingerprint | None = None
