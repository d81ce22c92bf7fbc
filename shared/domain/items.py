"""Items as they travel and are stored, and which of a page's several fetches holds."""

from dataclasses import dataclass
from typing import NamedTuple

from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Term


class TakenItem(NamedTuple):
    """An item: its name in the crawl (16 bytes), the rule that made it, its fields as a JSON object."""

    id: bytes
    rule: str
    data: bytes


class PageItems(NamedTuple):
    """The items that one fetch of a page gave, perhaps none.

    A host's leases are numbered by its partition's owner and a lease's grants by it, too, so of two fetches of a page
    the one with the greater (lease, grant) was permitted later, whatever clocks say and whichever message comes first.
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
    """How far the stream of items is in the table: which stream (its creation, Unix ns) and the last sequence."""

    stream_created_ns: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class ItemFence:
    """What every transaction of the table's one writer begins with: it commits only under this term, directly after
    this version."""

    term: Term
    version: int


class CrawlItems(NamedTuple):
    """Pages of one message."""

    crawl_id: CrawlId
    pages: tuple[PageItems, ...]


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
    """Which items of a crawl; None: whatever it is."""

    rule: str | None = None
    page: Fingerprint | None = None
