"""What an owner reads and writes of pages that are fetched again, as values. Times are Unix ms."""

from msgspec import Struct

from shared.domain.frontier.page_history import PageHistory
from shared.domain.ids import CrawlId, Fingerprint, HostId


class LastFetch(Struct, frozen=True):
    """The fetch that stored a URL's page, for a fetch that is compared with it. `digest` is the payload's SHA-1."""

    at_ms: int
    digest: bytes
    etag: str | None
    last_modified: str | None
    history: PageHistory


class RevisitRow(Struct, frozen=True):
    """What a fetch that brought no new version changes in the row of a stored page. None keeps a stored validator."""

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    recrawl: bytes
    etag: str | None = None
    last_modified: str | None = None


class Superseded(Struct, frozen=True):
    """A page whose stored version becomes the earlier version `version`. Versions up to `forget` are deleted."""

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    version: int
    forget: int
