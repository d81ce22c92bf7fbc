"""The port to the catalog: crawls as operators declare them, keys, the audit log, and bounded reads of the frontier.

Every method is one transaction. Errors of its own are below; Transient, Permanent and Unusable as for the store. Any
replica may call it; it never writes the frontier's rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.access import ApiKey
from shared.domain.crawl_state import Verb
from shared.domain.declared import (
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
from shared.domain.frontier import UrlState
from shared.domain.ids import CrawlId, Fingerprint, HostId, Revision
from shared.domain.items import ItemFilter, StoredItem
from shared.domain.ledger import Counters
from shared.domain.left_out import LeftOutExample
from shared.domain.url import Location
from shared.domain.views import HostView, KnownUrl, Page, PageView, SeedView, UrlView


class Missing(Exception):
    """There is nothing of that name."""


class Exists(Exception):
    """Something of that name is there already."""


class Full(Exception):
    """There are as many as there may be."""


class LastAdmin(Exception):
    """It is the last key with the role admin: without it no key could be given or taken over REST."""


class Stale(Exception):
    """It was changed since the caller saw it; `current` names the version that is there."""

    def __init__(self, current: str) -> None:
        super().__init__(f"the current version is {current}")
        self.current = current


class ReusedKey(Exception):
    """The idempotency key was used for another request."""


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """Where a listing of URLs goes on: behind this one."""

    host_id: HostId
    fingerprint: Fingerprint


class Catalog(Protocol):
    """See the module. `expected`: tags, one of which must be the current one, else Stale; None: any, or none there."""

    async def create(
        self,
        wanted: Declaration,
        *,
        start: bool,
        actor: Actor,
        now_ms: int,
        repeatable: Repeatable | None = None,
        most: int | None = None,
    ) -> DeclaredCrawl:
        """A new crawl; Exists, and Full where there would be more than `most` that are not deleted (those that others
        make in the same moment are not counted). A repeat gives the crawl as it was made; ReusedKey."""
        ...

    async def put(
        self,
        wanted: Declaration,
        *,
        expected: frozenset[str] | None,
        start: bool,
        actor: Actor,
        now_ms: int,
        most: int | None = None,
    ) -> tuple[DeclaredCrawl, bool]:
        """Make the crawl be as declared; whether it was created. `start` and `most` matter only for a new one."""
        ...

    async def turn(
        self, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[DeclaredCrawl, DeclaredCrawl]:
        """Apply a verb: the crawl before and after. Missing, Stale, IllegalTransition.

        After RESET it is another crawl id with the same spec; after DELETE its state is DELETED and its name free.
        """
        ...

    async def crawl(self, name: str) -> DeclaredCrawl:
        """Missing unless it is there and not deleted."""
        ...

    async def stamp(self, name: str) -> Stamp:
        """The stamp of `crawl`, for a part of what that costs. Missing as there."""
        ...

    async def crawls(
        self, which: CrawlFilter, *, after: str, most: int, specs: bool = False
    ) -> tuple[Sequence[DeclaredCrawl], bool]:
        """Return at most `most` crawls behind the name `after`, in the order of names, and whether there are more.

        Without `specs` each has the summary of its spec (SpecSummary) in place of the whole. With them there are fewer
        where their specs are large.
        """
        ...

    async def revisions(
        self, crawl_id: CrawlId, *, before: int, most: int, specs: bool = False
    ) -> Sequence[StoredRevision]:
        """Return at most `most` revisions below the number `before`, newest first.

        Without `specs` each has an empty one. With them there are fewer where they are large.
        """
        ...

    async def revision(self, crawl_id: CrawlId, revision: Revision) -> StoredRevision:
        """Missing."""
        ...

    async def stats(self, crawl_id: CrawlId) -> tuple[Counters, Mapping[str, Mapping[str, int]], Sequence[HostView]]:
        """Counters, tallies (kind -> key -> count) and the hosts with the most pages."""
        ...

    async def left_out(self, crawl_id: CrawlId) -> Mapping[str, Sequence[LeftOutExample]]:
        """Return examples of links that were left out, by reason: at most `left_out.MAX_EXAMPLES` of each."""
        ...

    async def urls(
        self,
        crawl_id: CrawlId,
        *,
        after: UrlPlace,
        state: UrlState | None,
        host: str | None,
        most: int,
        status: int | None = None,
    ) -> tuple[Sequence[KnownUrl], UrlPlace | None]:
        """Up to `most` URLs behind `after`, and where to go on (None at the end); `status`: of the last answer.

        It looks at a bounded number of rows, so a page may be short, or empty, before the end.
        """
        ...

    async def url(self, crawl_id: CrawlId, location: Location) -> UrlView | None: ...

    async def pages(
        self, crawl_id: CrawlId, *, after: UrlPlace, which: PageFilter, most: int
    ) -> tuple[Sequence[Page], UrlPlace | None]:
        """Up to `most` stored pages behind `after`, and where to go on, of a bounded number of rows: as `urls`."""
        ...

    async def page(self, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
        """None where no page is stored of that URL."""
        ...

    async def items(
        self, crawl_id: CrawlId, *, after: bytes, which: ItemFilter, most: int
    ) -> tuple[Sequence[StoredItem], bytes | None]:
        """Up to `most` items behind the id `after`, and where to go on, of a bounded number of rows: as `urls`."""
        ...

    async def item(self, crawl_id: CrawlId, item: bytes) -> StoredItem | None: ...

    async def seeds(self, crawl_id: CrawlId, *, after: UrlPlace, most: int) -> Sequence[SeedView]:
        """Seeds that the frontier has, of the spec and uploaded, behind `after`."""
        ...

    async def known_seeds(self, crawl_id: CrawlId, locations: Sequence[Location]) -> Mapping[Fingerprint, SeedView]:
        """Those of the given URLs that the frontier has, whatever led to them."""
        ...

    async def host(self, name: str, crawl_id: CrawlId | None) -> HostView | None:
        """What is known of a host, with its queue of one crawl (zeros without)."""
        ...

    async def hosts(self, crawl_id: CrawlId | None, *, after: int, most: int) -> Sequence[HostView]:
        """Hosts behind the host id `after`; of one crawl, or all."""
        ...

    async def host_queues(self, host_id: HostId, most: int) -> Sequence[HostQueue]:
        """What crawls have to do on a host, by their names."""
        ...

    async def dead_letters(
        self, crawl_id: CrawlId | None, *, before: int | None, most: int
    ) -> Sequence[DeadLetterView]:
        """Newest first, those below the number `before`."""
        ...

    async def dead_letter(self, letter: int) -> DeadLetterView | None: ...

    async def ask(
        self, command_id: str, crawl_id: CrawlId, kind: str, args: str, partitions: int, *, actor: Actor, now_ms: int
    ) -> None:
        """Keep that a command was asked for, before it is published."""
        ...

    async def command(self, command_id: str) -> CommandProgress | None: ...

    async def add_key(self, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
        """Exists when it repeats a create: the key was shown then, and only then."""
        ...

    async def add_first_key(self, key: ApiKey) -> bool:
        """Keep the key if there is none at all; whether it is kept. Who had no answer asks again with the same."""
        ...

    async def key(self, key_id: str) -> ApiKey | None: ...

    async def keys(self, *, after: str, most: int, revoked: bool = False) -> Sequence[ApiKey]:
        """Return keys by id, with those that were `revoked` or without."""
        ...

    async def revoke_key(
        self, key_id: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
    ) -> ApiKey:
        """Missing, Stale, LastAdmin. Again is harmless."""
        ...

    async def ping(self) -> None:
        """Whether the database answers."""
        ...
