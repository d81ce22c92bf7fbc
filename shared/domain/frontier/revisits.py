"""Values that an owner reads and writes for pages that are fetched again. Times are Unix ms."""

from msgspec import Struct

from shared.domain.frontier.page_history import PageHistory
from shared.domain.ids import CrawlId, Fingerprint, HostId


class LastFetch(Struct, frozen=True):
    """The fetch that stored a URL's page. The next fetch is compared with it.

    - `digest`: the SHA-1 of the payload.
    - `history`: what the fetches of the page showed so far.
    - `reason`: why lists of pages leave out this fetch, such as `sitemap` or `noindex`. Empty if they show it.
    """

    at_ms: int
    digest: bytes
    etag: str | None
    last_modified: str | None
    history: PageHistory
    reason: str = ""


class RevisitRow(Struct, frozen=True):
    """New values for the stored row of a page, after a fetch that brought no new version.

    - `recrawl`: the encoded history. `etag`, `last_modified`: the validators.
    - `items_at_ms`: the time of the fetch if its body came, so that the items in it replace those of the page.

    None keeps the stored value.
    """

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    recrawl: bytes
    etag: str | None = None
    last_modified: str | None = None
    items_at_ms: int | None = None


class Superseded(Struct, frozen=True):
    """The stored version of a page that a new version replaces. It is kept as an earlier version of the page.

    - `version`: the number of the replaced version.
    - `forget`: versions with this number or a lower one are deleted. With 0 or a negative number none is deleted.
    """

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    version: int
    forget: int
