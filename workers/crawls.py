"""The crawls as visits see them: what follows from a spec, worked out once per revision."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Final

import structlog

from shared.domain.archive import ArchivedCrawl
from shared.domain.crawl import CrawlSpec, user_agent
from shared.domain.credentials import without_credentials
from shared.domain.fetch import FetchLimits
from shared.domain.ids import CrawlId, Revision
from shared.domain.robots import product_token
from shared.domain.scope import CompiledScope
from shared.domain.software import VERSION
from shared.ports.fetcher import Fetcher
from shared.ports.specs import PublishedSpec, SpecSource
from workers.extract.applying import PageRules
from workers.fetch.egress import EgressRules
from workers.fetch.ruled import Fetchers
from workers.outlinks import KnownLinks, OutlinkResolver

log = structlog.get_logger(__name__)

_ACCEPT: Final = ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
_KEPT: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class ActiveCrawl:
    """A crawl at one revision, `paused` or not. `token` is the product token that robots rules and directives are
    matched with."""

    crawl_id: CrawlId
    revision: Revision
    partitions: int
    spec: CrawlSpec
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

    @property
    def obeys_robots(self) -> bool:
        return self.spec.politeness.obey_robots


class Crawls:
    """Compiled crawls by id, the most recently used, each with the fetcher of its egress rules."""

    def __init__(self, specs: SpecSource, known: KnownLinks, open_fetcher: Callable[[EgressRules], Fetcher]) -> None:
        self._specs = specs
        self._known = known
        self._fetchers = Fetchers(open_fetcher)
        self._active: OrderedDict[CrawlId, ActiveCrawl] = OrderedDict()

    async def active(self, crawl_id: CrawlId, revision: Revision) -> ActiveCrawl | None:
        """The crawl at `revision` or later, None when it was deleted. Transient as `SpecSource.spec`."""
        published = await self._specs.spec(crawl_id, revision)
        if published is None:
            self._active.pop(crawl_id, None)
            return None
        return self._as_published(published)

    def now(self, crawl: ActiveCrawl) -> ActiveCrawl | None:
        """The crawl as it is seen by now: at a later revision, perhaps, or paused; None once it was deleted.

        The same object for as long as nothing of it has changed. What cannot be seen, or is older, changes nothing.
        """
        published = self._specs.latest(crawl.crawl_id)
        if published is None or (published.revision < crawl.revision and not published.gone):
            return crawl
        paused = published.paused or crawl.scope.problem is not None
        if (published.revision, published.gone, paused) == (crawl.revision, False, crawl.paused):
            return crawl
        return self._as_published(published)

    def changes(self) -> AsyncIterator[None]:
        """A turn at once, and one whenever `now` may say something else of any crawl; without end."""
        return self._specs.changes()

    def _as_published(self, published: PublishedSpec) -> ActiveCrawl | None:
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
        """Close the connections that were opened under rules which no crawl here has any more."""
        await self._fetchers.keep([crawl.fetcher for crawl in self._active.values()])

    async def close(self) -> None:
        """Close every connection."""
        await self._fetchers.close()

    def _compiled(self, published: PublishedSpec) -> ActiveCrawl:
        spec, crawl_id, revision = without_credentials(published.spec), published.crawl_id, published.revision
        if spec is not published.spec:
            log.warning("spec.credentials_not_sent", crawl=crawl_id, revision=revision)
        agent = user_agent(spec, VERSION)
        token = product_token(agent)
        scope = CompiledScope(spec)
        if scope.problem is not None:
            log.error("crawl.pattern_refused", crawl=crawl_id, revision=revision, reason=scope.problem)
        return ActiveCrawl(
            crawl_id=crawl_id,
            revision=revision,
            partitions=published.partitions,
            spec=spec,
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
            # Its URLs cannot be judged, so none is fetched: what a visit has of it goes back to the queue.
            paused=published.paused or scope.problem is not None,
        )

    def __repr__(self) -> str:
        return f"<Crawls {len(self._active)} {self._fetchers!r}>"


def _rules(spec: CrawlSpec) -> EgressRules:
    return EgressRules(allow=tuple(ip_network(network, strict=False) for network in sorted(spec.egress.allow)))


def _headers(spec: CrawlSpec, agent: str) -> tuple[tuple[str, str], ...]:
    """What every request says: the spec's own headers, and the usual ones it does not name itself."""
    own = tuple(spec.fetch.headers.items())
    named = {name.lower() for name, _ in own}
    usual = (("User-Agent", agent), _ACCEPT)
    return tuple(pair for pair in usual if pair[0].lower() not in named) + own
