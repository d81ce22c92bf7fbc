"""The crawls in the form that visits use: compiled from their specs, once for each revision."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from functools import partial
from ipaddress import ip_network
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from shared.domain.archive.model import ArchivedCrawl
from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.host_specs import HostSpecs, compiled_scope
from shared.domain.crawl.media_spec import Media
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, user_agent
from shared.domain.frontier.politeness import host_delay
from shared.domain.frontier.states import UrlKind
from shared.domain.ids import CrawlId, Revision
from shared.domain.software import VERSION
from shared.domain.web.fetch import FetchLimits, FetchRequest
from shared.domain.web.robots import MAX_ROBOTS_BYTES, product_token
from shared.domain.web.url import host_of
from shared.ports.fetcher import Fetcher
from shared.ports.specs import PublishedSpec, SpecSource
from shared.wire.messages import ShardUrl
from workers.extract.page_rules import PageRules
from workers.fetch.egress import EgressRules
from workers.fetch.pool import FetcherPool
from workers.known_links import KnownLinks
from workers.outlinks import OutlinkResolver
from workers.parse.mime import UNDECLARED, media_type
from workers.revisits import conditions

log = structlog.get_logger(__name__)

_ACCEPT: Final = ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
_KEPT: Final = 256


class VisitCrawl(Struct, frozen=True, eq=False):
    """A crawl at one revision of its spec, compiled for visits.

    Two fields have the crawler's name (product token), from its User-Agent:

    - `token`: the name for robots.txt, such as `ExampleBot`.
    - `product`: the same name in lower case (`examplebot`), for robots directives of pages and headers.
    """

    crawl_id: CrawlId
    revision: Revision
    partitions: int
    spec: CrawlSpec
    host_specs: HostSpecs
    scope: CompiledScope
    outlinks: OutlinkResolver
    rules: PageRules
    token: str
    product: str
    headers: tuple[tuple[str, str], ...]
    limits: FetchLimits
    fetcher: Fetcher
    archived: ArchivedCrawl
    paused: bool = False
    skips_body: Callable[[int, str | None], bool] | None = None
    """Returns True for the status and Content-Type of a response whose body must be skipped. None: skip no body."""

    def obeys_robots(self, host: str) -> bool:
        """Return True if the crawl obeys the robots.txt and the robots directives of `host`."""
        return self.spec.politeness.obey_robots and not self.spec.robots.ignored_for(host)

    def delay_s(self, host: str) -> float:
        """Return the delay in seconds between requests to `host` that the spec sets."""
        return self.host_specs.of(host).politeness.delay_s

    def adaptive_delay_s(self, host: str, fetch_s: float) -> float:
        """Return the delay in seconds after a fetch from `host` that took `fetch_s`. Return 0 unless it is adaptive."""
        politeness = self.host_specs.of(host).politeness
        return host_delay(politeness, last_fetch_s=fetch_s) if politeness.adaptive else 0.0

    async def look_up(self, url: str) -> None:
        """Look up the addresses of the URL's host in advance, so that the request need not wait for the look-up."""
        await self.fetcher.look_up(url, limit_s=self.limits.connect_s, proxy=self.spec.fetch.proxy)

    def request(self, entry: ShardUrl, *, fresh: bool) -> FetchRequest:
        """Return the request for a URL of a shard.

        It is conditional if the ETag or Last-Modified of the stored page is known. `fresh`: use a new connection. The
        bodies of requisites, sitemaps and feeds are transferred whatever their type is.
        """
        headers = self.headers
        if entry.etag is not None or entry.last_modified is not None:
            headers += conditions(entry)
        fetch = self.spec.fetch
        request = FetchRequest(
            entry.url, headers, limits=self.limits, proxy=fetch.proxy, http2=fetch.http2, fresh=fresh
        )
        if self.skips_body is None or not is_page(UrlKind(entry.kind)):
            return request
        return replace(request, skips_body=self.skips_body)


class VisitCrawls:
    """A cache of the most recently used crawls by id, compiled, each with a fetcher under its egress rules."""

    def __init__(
        self,
        specs: SpecSource,
        known: KnownLinks,
        open_fetcher: Callable[[EgressRules], Fetcher],
        exclusions: Callable[[], Exclusions] = lambda: NO_EXCLUSIONS,
    ) -> None:
        """Create an empty cache. `exclusions` returns the exclusions in force now.

        When the exclusions change, `known` is emptied: links to URLs that are no longer excluded must be reported
        again.
        """
        self._specs = specs
        self._known = known
        self._exclusions = exclusions
        self._known_under = exclusions()
        self._fetchers = FetcherPool(open_fetcher, exclusions)
        self._active: OrderedDict[CrawlId, VisitCrawl] = OrderedDict()

    async def active(self, crawl_id: CrawlId, revision: Revision) -> VisitCrawl | None:
        """Return the crawl at `revision` or a later one. Return None if it was deleted.

        Raise Transient if that revision cannot be read now (SpecSource.spec).
        """
        if (exclusions := self._exclusions()) is not self._known_under:
            self._known_under = exclusions
            self._known.forget()
        return self._as_published(await self._specs.spec(crawl_id, revision))

    def excluded(self, url: str) -> bool:
        """Return True if an exclusion covers the canonical `url`. The fetchers then also refuse the URL."""
        exclusions = self._exclusions()
        return bool(exclusions) and exclusions.first(url, host_of(url)) is not None

    def now(self, crawl: VisitCrawl) -> VisitCrawl | None:
        """Return the crawl in its latest published state, None if it was deleted.

        Return `crawl` itself if it is up to date. Do the same if no spec of the crawl is published, or only an older
        revision.
        """
        published = self._specs.latest(crawl.crawl_id)
        if published is None or (published.revision < crawl.revision and not published.gone):
            return crawl
        paused = published.paused or crawl.scope.problem is not None
        if (published.revision, published.gone, paused) == (crawl.revision, False, crawl.paused):
            return crawl
        return self._as_published(published)

    def changes(self) -> AsyncIterator[None]:
        """Yield at once, and then each time a crawl may have changed. Never end.

        The caller then calls the method `now` to read the state of each of its crawls.
        """
        return self._specs.changes()

    def _as_published(self, published: PublishedSpec) -> VisitCrawl | None:
        crawl_id = published.crawl_id
        if published.gone:
            self._active.pop(crawl_id, None)
            return None
        known = self._active.get(crawl_id)
        if known is None or known.revision != published.revision:
            known = self._active[crawl_id] = self._compiled(published)
            while len(self._active) > _KEPT:
                self._active.popitem(last=False)
        elif known.paused != (paused := published.paused or known.scope.problem is not None):
            known = self._active[crawl_id] = replace(known, paused=paused)
        self._active.move_to_end(crawl_id)
        return known

    async def tidy(self) -> None:
        """Close the connections of fetchers that no crawl in the cache uses any more."""
        await self._fetchers.keep([crawl.fetcher for crawl in self._active.values()])

    async def close(self) -> None:
        """Close every connection of the crawls' fetchers."""
        await self._fetchers.close()

    def _compiled(self, published: PublishedSpec) -> VisitCrawl:
        spec, crawl_id, revision = published.spec, published.crawl_id, published.revision
        agent = user_agent(spec, VERSION)
        token = product_token(agent)
        scope = compiled_scope(spec)
        if scope.problem is not None:
            log.error("crawl_pattern.refused", crawl=crawl_id, revision=revision, reason=scope.problem)
        return VisitCrawl(
            crawl_id=crawl_id,
            revision=revision,
            partitions=published.partitions,
            spec=spec,
            host_specs=HostSpecs(spec),
            scope=scope,
            outlinks=OutlinkResolver(crawl_id, revision, scope, spec.extract, self._known),
            rules=PageRules(() if scope.problem else spec.extract.items, spec.extract.item_limits()),
            token=token,
            product=token.lower(),
            headers=_headers(spec, agent),
            limits=spec.fetch.limits(),
            fetcher=self._fetchers.under(_rules(spec)),
            archived=ArchivedCrawl(
                crawl_id=crawl_id,
                name=spec.name,
                robots="obey" if spec.politeness.obey_robots else "ignore",
                user_agent=agent,
                segment_bytes=spec.output.warc_segment_bytes,
            ),
            # With an invalid pattern no URL can be judged, so none is fetched: visits hand their URLs back.
            paused=published.paused or scope.problem is not None,
            skips_body=skips_body(spec.media),
        )

    def __repr__(self) -> str:
        return f"<Crawls {len(self._active)} {self._fetchers!r}>"


def _rules(spec: CrawlSpec) -> EgressRules:
    return EgressRules(allow=tuple(ip_network(network, strict=False) for network in sorted(spec.egress.allow)))


def robots_request(url: str, crawl: VisitCrawl) -> FetchRequest:
    """Return the request for the robots.txt at `url`."""
    # Read one byte more than is used, to distinguish a truncated file from one that ends there.
    limits = replace(crawl.limits, body_bytes=MAX_ROBOTS_BYTES + 1, decoded_bytes=MAX_ROBOTS_BYTES + 1)
    return FetchRequest(url, crawl.headers, limits=limits, proxy=crawl.spec.fetch.proxy, http2=crawl.spec.fetch.http2)


def is_page(kind: UrlKind) -> bool:
    """Return False if a URL was found as a requisite, sitemap or feed, else True."""
    return not (kind.listing or kind is UrlKind.REQUISITE)


def skips_body(media: Media) -> Callable[[int, str | None], bool] | None:
    """Return the function for `FetchRequest.skips_body`, which decides if the body of a response is not fetched.

    The function takes the HTTP status and the Content-Type. It returns True if the status is 2xx and `media` leaves out
    the type. If `media` leaves out no type, return None: every body is fetched.
    """
    return None if media.fetched is None else partial(_skips_body, media)


def _skips_body(media: Media, status: int, content_type: str | None) -> bool:
    """Return True if the status is 2xx and `media.fetched` leaves out the type. Return False if there is no type."""
    essence = media_type(content_type)
    return 200 <= status < 300 and essence not in UNDECLARED and not media.fetches(essence)


def _headers(spec: CrawlSpec, agent: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of every request: those of the spec, and User-Agent and Accept unless the spec sets them."""
    own = tuple(spec.fetch.headers.items())
    named = {name.lower() for name, _ in own}
    usual = (("User-Agent", agent), _ACCEPT)
    return tuple(pair for pair in usual if pair[0].lower() not in named) + own
