"""The catalog on SQL. Each method is one transaction of another module of this package."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, text

from shared.adapters.sql.catalog import access, declared, items, listing, pages, seeds
from shared.adapters.sql.engine.point_query import PointQuery
from shared.adapters.sql.frontier import excluded_links as left_out
from shared.domain.crawl.state import Verb
from shared.domain.explain.excluded_links import ExcludedLinkExample
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Fingerprint, HostId, Revision
from shared.domain.ops.access import ApiKey
from shared.domain.reads.declared import (
    Actor,
    CommandProgress,
    CrawlFilter,
    DeadLetterView,
    Declaration,
    DeclaredCrawl,
    HostQueue,
    PageFilter,
    Repeatable,
    Stamp,
    StoredRevision,
)
from shared.domain.reads.items import ItemFilter, StoredItem
from shared.domain.reads.views import HostView, KnownUrl, Page, PageView, SeedView, UrlView
from shared.domain.web.url import Location
from shared.ports.catalog import UrlPlace

T = TypeVar("T")


class Transactions(Protocol):
    """Runs transactions on a database and raises the errors that `mapped` of its engine makes."""

    async def write(self, transaction: Callable[[Connection], T]) -> T: ...

    async def read(self, query: Callable[[Connection], T]) -> T: ...

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]: ...


class SqlCatalog:
    """`shared.ports.catalog.Catalog`."""

    def __init__(self, transactions: Transactions) -> None:
        self._run = transactions

    def __repr__(self) -> str:
        return f"<SqlCatalog {self._run!r}>"

    async def create(
        self,
        wanted: Declaration,
        *,
        start: bool,
        actor: Actor,
        now_ms: int,
        repeatable: Repeatable | None = None,
        max_count: int | None = None,
    ) -> DeclaredCrawl:
        return await self._run.write(
            lambda c: declared.create(
                c, wanted, start=start, actor=actor, now_ms=now_ms, repeatable=repeatable, max_count=max_count
            )
        )

    async def put(
        self,
        wanted: Declaration,
        *,
        expected: frozenset[str] | None,
        start: bool,
        actor: Actor,
        now_ms: int,
        max_count: int | None = None,
    ) -> tuple[DeclaredCrawl, bool]:
        return await self._run.write(
            lambda c: declared.put(
                c, wanted, expected=expected, start=start, actor=actor, now_ms=now_ms, max_count=max_count
            )
        )

    async def turn(
        self, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[DeclaredCrawl, DeclaredCrawl]:
        return await self._run.write(
            lambda c: declared.turn(c, name, verb, expected=expected, actor=actor, now_ms=now_ms)
        )

    async def crawl(self, name: str) -> DeclaredCrawl:
        return declared.named(await self._run.glance(declared.BY_NAME, wanted_name=name), name)

    async def stamp(self, name: str) -> Stamp:
        return declared.stamped(await self._run.glance(declared.STAMP, wanted_name=name), name)

    async def crawls(
        self, which: CrawlFilter, *, after: str, max_count: int, specs: bool = False
    ) -> tuple[Sequence[DeclaredCrawl], bool]:
        return await self._run.read(lambda c: declared.listing(c, which, after, max_count, specs=specs))

    async def revisions(
        self, crawl_id: CrawlId, *, before: int, max_count: int, specs: bool = False
    ) -> Sequence[StoredRevision]:
        return await self._run.read(lambda c: declared.revisions(c, crawl_id, before, max_count, specs=specs))

    async def revision(self, crawl_id: CrawlId, revision: Revision) -> StoredRevision:
        return await self._run.read(lambda c: declared.revision(c, crawl_id, revision))

    async def left_out(self, crawl_id: CrawlId) -> Mapping[str, Sequence[ExcludedLinkExample]]:
        return await self._run.read(lambda c: left_out.examples(c, crawl_id))

    async def stats(self, crawl_id: CrawlId) -> tuple[Counters, Mapping[str, Mapping[str, int]], Sequence[HostView]]:
        return await self._run.read(lambda c: listing.stats(c, crawl_id))

    async def urls(
        self,
        crawl_id: CrawlId,
        *,
        after: UrlPlace,
        state: UrlState | None,
        host: str | None,
        max_count: int,
        status: int | None = None,
    ) -> tuple[Sequence[KnownUrl], UrlPlace | None]:
        return await self._run.read(lambda c: listing.urls(c, crawl_id, after, state, host, status, max_count))

    async def url(self, crawl_id: CrawlId, location: Location) -> UrlView | None:
        return await self._run.read(lambda c: listing.url(c, crawl_id, location))

    async def pages(
        self, crawl_id: CrawlId, *, after: UrlPlace, which: PageFilter, max_count: int
    ) -> tuple[Sequence[Page], UrlPlace | None]:
        return await self._run.read(lambda c: pages.pages(c, crawl_id, after, which, max_count))

    async def page(self, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
        return await self._run.read(lambda c: pages.page(c, crawl_id, at))

    async def items(
        self, crawl_id: CrawlId, *, after: bytes, which: ItemFilter, max_count: int
    ) -> tuple[Sequence[StoredItem], bytes | None]:
        return await self._run.read(lambda c: items.listing(c, crawl_id, after, which, max_count))

    async def item(self, crawl_id: CrawlId, item: bytes) -> StoredItem | None:
        return await self._run.read(lambda c: items.one(c, crawl_id, item))

    async def seeds(self, crawl_id: CrawlId, *, after: UrlPlace, max_count: int) -> Sequence[SeedView]:
        return await self._run.read(lambda c: seeds.seeds(c, crawl_id, after, max_count))

    async def known_seeds(self, crawl_id: CrawlId, locations: Sequence[Location]) -> Mapping[Fingerprint, SeedView]:
        return await self._run.read(lambda c: seeds.known(c, crawl_id, locations))

    async def host(self, name: str, crawl_id: CrawlId | None) -> HostView | None:
        return await self._run.read(lambda c: listing.host(c, name, crawl_id))

    async def hosts(self, crawl_id: CrawlId | None, *, after: int, max_count: int) -> Sequence[HostView]:
        return await self._run.read(lambda c: listing.hosts(c, crawl_id, after, max_count))

    async def host_queues(self, host_id: HostId, max_count: int) -> Sequence[HostQueue]:
        return await self._run.read(lambda c: listing.host_queues(c, host_id, max_count))

    async def dead_letters(
        self, crawl_id: CrawlId | None, *, before: int | None, max_count: int
    ) -> tuple[Sequence[DeadLetterView], int | None]:
        return await self._run.read(lambda c: listing.dead_letters(c, crawl_id, before, max_count))

    async def dead_letter(self, letter: int) -> DeadLetterView | None:
        return await self._run.read(lambda c: listing.dead_letter(c, letter))

    async def ask(
        self, command_id: str, crawl_id: CrawlId, kind: str, args: str, partitions: int, *, actor: Actor, now_ms: int
    ) -> None:
        await self._run.write(
            lambda c: access.ask(c, command_id, crawl_id, kind, args, partitions, actor=actor, now_ms=now_ms)
        )

    async def command(self, command_id: str) -> CommandProgress | None:
        return await self._run.read(lambda c: access.command(c, command_id))

    async def add_key(self, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
        await self._run.write(lambda c: access.add_key(c, key, actor=actor, repeatable=repeatable))

    async def add_first_key(self, key: ApiKey) -> bool:
        return await self._run.write(lambda c: access.add_first_key(c, key))

    async def key(self, key_id: str) -> ApiKey | None:
        return await self._run.read(lambda c: access.key(c, key_id))

    async def keys(self, *, after: str, max_count: int, revoked: bool = False) -> Sequence[ApiKey]:
        return await self._run.read(lambda c: access.keys(c, after, max_count, revoked=revoked))

    async def revoke_key(
        self, key_id: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
    ) -> ApiKey:
        return await self._run.write(
            lambda c: access.revoke_key(c, key_id, actor=actor, now_ms=now_ms, expected=expected)
        )

    async def ping(self) -> None:
        await self._run.read(lambda c: c.execute(text("SELECT 1")).scalar())
