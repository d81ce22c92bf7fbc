"""What is read back of a crawl for display and export: pages, URLs, hosts, fetches and seeds. Times are Unix ms."""

from collections.abc import Mapping

from msgspec import Struct, field

from shared.domain.archive.model import RecordLocation
from shared.domain.frontier.page_history import PageHistory
from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.frontier.states import UrlKind, UrlState
from shared.domain.ids import Fingerprint, HostId


class Page(Struct, frozen=True):
    """A stored page, for listings and exports. `digest` is the payload's SHA-1 (20 bytes, or empty).

    `truncated`: why the body is incomplete. `links_found` counts all outlinks, `links` those in scope. `gone`: the site
    has no such page any more, and this is what it was. `context`: that of the seed from which it was found.
    """

    host_id: HostId
    fingerprint: Fingerprint
    url: str
    host: str
    depth: int
    status: int
    mime: str | None
    digest: bytes
    size: int
    location: RecordLocation
    fetched_at_ms: int
    title: str | None
    truncated: str | None = None
    links: int | None = None
    links_found: int | None = None
    gone: bool = False
    context: SeedContext | None = None


class KnownUrl(Struct, frozen=True):
    """A URL that the crawl knows, for listings and exports. `status` and later fields are None until it was fetched."""

    url: str
    host: str
    state: UrlState
    reason: str | None
    depth: int
    attempts: int
    discovered_from: str | None
    status: int | None
    mime: str | None
    size: int | None
    fetched_at_ms: int | None
    redirect: str | None
    truncated: str | None = None


class HostView(Struct, frozen=True):
    """Everything stored of a host, with the numbers of its queue of one crawl.

    `operator_...`: what the policy of the host sets, 0 for nothing. `policy_reason`: the reason of its block.
    """

    host_id: HostId
    host: str
    queued: int
    waiting: int
    leased: int
    pages: int
    crawl_delay_ms: int
    operator_delay_ms: int
    latency_ms: int
    failures: int
    last_failure: str | None
    last_failure_ms: int
    blocked_until_ms: int
    visited_at_ms: int
    ip: str | None
    slowed_ms: int = 0
    operator_blocked_until_ms: int = 0
    operator_slots: int = 0
    policy_reason: str | None = None

    @property
    def held_until_ms(self) -> int:
        """Until when no request is sent to the host, in Unix ms, 0 if it was never blocked."""
        return max(self.blocked_until_ms, self.operator_blocked_until_ms)


class FetchView(Struct, frozen=True):
    """What is stored of the fetches of a URL: in full the last one, or the last that stored a page.

    `history` lists the others, the newest first, each `at_ms status reason`. One later than `at_ms` gave no page.
    `links` counts the outlinks in scope, `links_found` all (None if not counted), `left_out` the others by reason.
    """

    at_ms: int
    status: int
    page: bool
    reason: str | None
    detail: str | None
    latency_ms: int
    size: int
    mime: str | None
    digest: bytes
    location: RecordLocation | None
    etag: str | None
    last_modified: str | None
    redirect: str | None
    title: str | None
    links: int
    history: tuple[tuple[int, int, str], ...]
    truncated: str | None = None
    links_found: int | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


class PageView(Struct, frozen=True):
    """A stored page, with everything stored of the fetch that stored it."""

    page: Page
    fetch: FetchView


class SeedView(Struct, frozen=True):
    """A seed, or another URL looked up as one. `status` and `fetched_at_ms` are None until it was fetched."""

    host_id: HostId
    fingerprint: Fingerprint
    url: str
    priority: int
    state: UrlState
    reason: str | None
    status: int | None
    fetched_at_ms: int | None
    context: SeedContext | None = None


class UrlView(Struct, frozen=True):
    """Everything known of one URL. `chain` leads from the page where it was found back towards the seed.

    `history`: that of its stored page, if the page is fetched again. `kind`: what the URL was found as. `extra_hops`:
    how many hops beyond the scope it is. `context`: that of the seed from which it was found.
    """

    url: str
    fingerprint: Fingerprint
    state: UrlState
    reason: str | None
    depth: int
    hops: int
    priority: int
    attempts: int
    due_ms: int
    leased_at_ms: int | None
    host: HostView
    fetch: FetchView | None
    chain: tuple[str, ...]
    evidence: tuple[str, ...]
    history: PageHistory | None = None
    kind: UrlKind = UrlKind.PAGE
    extra_hops: int = 0
    context: SeedContext | None = None

    @property
    def is_sitemap(self) -> bool:
        """True for a sitemap or feed that is read again."""
        return self.history is not None and self.fetch is not None and self.fetch.reason == "sitemap"
