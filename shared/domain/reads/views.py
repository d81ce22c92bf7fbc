"""Values read from the database about a crawl, for display and export: pages, URLs, hosts, fetches and seeds.

Times are Unix ms.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from shared.domain.archive.model import RecordLocation
from shared.domain.frontier.page_history import PageHistory
from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.frontier.states import UrlKind, UrlState
from shared.domain.ids import Fingerprint, HostId


class Page(Struct, frozen=True):
    """A stored page, for listings and exports. `digest` is the payload's SHA-1 (20 bytes, or empty).

    - `truncated`: why the body is incomplete.
    - `links_found` counts all outlinks, `links` the accepted ones.
    - `gone`: the site no longer has the page. The other values are those of its last stored fetch.
    - `context`: the seed context of the page.
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
    """A URL that the crawl knows, for listings and exports.

    `status` and the fields after it are None before the first fetch.
    """

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
    """Everything stored about a host, with the numbers of URLs in its queue of one crawl.

    The fields `operator_...` are the values of the host policy; 0 means not set. `policy_reason`: why the policy blocks
    the host.
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
        """The time before which no request is sent to the host (Unix ms), by back-off or policy.

        It may lie in the past. 0: the host was never blocked.
        """
        return max(self.blocked_until_ms, self.operator_blocked_until_ms)


class FetchView(Struct, frozen=True):
    """What is stored about the fetches of a URL.

    All fields but `history` describe one fetch: the last that stored a page, or the last of all if no page is stored.

    - `page`: a page is stored.
    - `history`: the other fetches, newest first, each as (`at_ms`, status, reason).
    - `links` counts the accepted outlinks, `links_found` all outlinks (None if not counted).
    - `left_out` counts the outlinks that were not followed, by reason.
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
    """A stored page, and what is stored about its fetches."""

    page: Page
    fetch: FetchView


class SeedView(Struct, frozen=True):
    """One URL of a crawl, with the values that lists of seeds show.

    - In a list of the crawl's seeds (`Catalog.seeds`), each URL is a seed. `context` has the seed's labels and source.
      It is None if the seed has neither.
    - In an answer about URLs that the caller has named (`Catalog.known_seeds`), a URL may be a seed or a link. There
      `context` is not read, so it is None for every URL.

    `status` and `fetched_at_ms` are None before the first fetch.
    """

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
    """Everything stored about one URL.

    - `due_ms`: when the URL is tried again, if its state is WAITING (Unix ms). Else 0.
    - `chain`: the URLs of pages that led to the URL. The first is the page that links to the URL, the last is nearest
      to the seed.
    - `history`: what repeated fetches have shown. None if the crawl does not fetch the URL again.
    - `hops`: the number of redirects in a row that led to the URL.
    - `evidence`: why the URL became a dead letter: the texts of its dead letters, newest first.
    - `kind`: what the URL was found as, such as a page or a sitemap.
    - `extra_hops`: how many extra hops led to the URL, 0 if it is in scope.
    - `context`: the seed context of the URL.
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
    def is_recrawled_listing(self) -> bool:
        """True if the URL is a sitemap or feed that the crawl will fetch again.

        False for all other URLs: a page, or a sitemap or feed that will not be fetched again.
        """
        return self.history is not None and self.fetch is not None and self.fetch.reason == "sitemap"
