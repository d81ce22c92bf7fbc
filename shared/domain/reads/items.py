"""Items in messages and in the table, and which of a page's several fetches counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Term


class TakenItem(NamedTuple):
    """An item: its id in the crawl (16 bytes), the rule that made it, its fields as a JSON object."""

    id: bytes
    rule: str
    data: bytes


class PageItems(NamedTuple):
    """The items of one fetch of a page, perhaps none.

    The owner of a partition numbers a host's leases, and a lease's grants. So of two fetches of a page the one with the
    greater (lease, grant) was permitted later, whatever the clocks and the order of messages.
    """

    host_id: HostId
    fingerprint: Fingerprint
    url: str
    lease: LeaseId
    grant: int
    at_ms: int
    items: tuple[TakenItem, ...]

    @property
    def version(self) -> tuple[int, int]:
        return self.lease, self.grant


@dataclass(frozen=True, slots=True)
class ItemPosition:
    """The position in the stream of items up to which the table is written: the stream (by its creation, Unix ns) and
    the last sequence.
    """

    stream_created_ns: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class ItemFence:
    """The condition of every transaction of the table's only writer.

    It commits only under this term and directly after this version.
    """

    term: Term
    version: int


class CrawlItems(NamedTuple):
    """The pages of one message."""

    crawl_id: CrawlId
    pages: tuple[PageItems, ...]


DROPPED: Final = ("unaccepted", "outdated", "deleted")
"""Why items are dropped.

"unaccepted": no outcome of their fetch was accepted as the page's. "outdated": the table has a later fetch of the page.
"deleted": their crawl is deleted.
"""


@dataclass(frozen=True, slots=True)
class ItemChanges:
    """The effect of a transaction on items. `stored`: by crawl. `dropped`: by the reasons in DROPPED."""

    stored: Mapping[CrawlId, int]
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ItemLetter:
    """A message that can never be applied, as a dead letter."""

    at_ms: int
    evidence: str
    payload: bytes
    crawl_id: CrawlId | None = None


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item in the table. `at_ms`: when its page was fetched."""

    id: bytes
    rule: str
    host_id: HostId
    fingerprint: Fingerprint
    url: str
    at_ms: int
    data: str


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Which items of a crawl to list. None: any."""

    rule: str | None = None
    page: Fingerprint | None = None
