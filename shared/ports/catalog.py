"""The port to the catalog: crawls as operators declare them, keys, the audit log, and bounded reads of the frontier.

Every method is one transaction. It raises the errors below, and Transient, Permanent and Unusable as the store does.
Any replica may call it. It never writes the frontier's rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Missing(Exception):
    """No object has that name."""


class Exists(Exception):
    """An object of that name exists already."""


class Full(Exception):
    """The limit is reached."""


class LastAdmin(Exception):
    """It is the last key with the role admin. Without it no key could be created or revoked over REST."""


class Stale(Exception):
    """The object changed since the caller read it. `current` names its present version."""

    def __init__(self, current: str) -> None:
        super().__init__(f"the current version is {current}")
        self.current = current


class ReusedKey(Exception):
    """The idempotency key was used for another request."""


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """The URL after which a listing continues."""

    host_id: HostId
    fingerprint: Fingerprint


class Catalog(Protocol):
    """See the module. `expected`: tags, one of which must be current, else Stale. None accepts any, and none at all."""

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
        """Create a crawl.

        Raise Exists, or Full if there would be more than `max_count` crawls that are not deleted. Crawls created
        concurrently are not counted. A repeat returns the crawl as it was created. Raise ReusedKey if its key was used
        for another request.
        """
        ...

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
        """Create or update the crawl as declared. Return it, and True if it was created.

        `start` and `max_count` only apply to a new crawl.
        """
        ...

    async def turn(
        self, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[DeclaredCrawl, DeclaredCrawl]:
        """Apply a verb. Return the crawl before and after. Raise Missing, Stale or IllegalTransition.

        RESET gives a new crawl id with the same spec. DELETE gives the state DELETED and frees the name.
        """
        ...

    async def crawl(self, name: str) -> DeclaredCrawl:
        """Return the crawl. Raise Missing if it does not exist or is deleted."""
        ...

    async def stamp(self, name: str) -> Stamp:
        """Return the stamp of `crawl` at a part of its cost. Raise Missing as `crawl` does."""
        ...

    async def crawls(
        self, which: CrawlFilter, *, after: str, max_count: int, specs: bool = False
    ) -> tuple[Sequence[DeclaredCrawl], bool]:
        """Return at most `max_count` crawls after the name `after`, ordered by name, and True if there are more.

        Without `specs` each has a SpecSummary instead of its spec. With `specs` large specs make the page shorter.
        """
        ...

    async def revisions(
        self, crawl_id: CrawlId, *, before: int, max_count: int, specs: bool = False
    ) -> Sequence[StoredRevision]:
        """Return at most `max_count` revisions below the number `before`, newest first.

        Without `specs` each has an empty spec. With `specs` large specs make the page shorter.
        """
        ...

    async def revision(self, crawl_id: CrawlId, revision: Revision) -> StoredRevision:
        """Return the revision, or raise Missing."""
        ...

    async def stats(self, crawl_id: CrawlId) -> tuple[Counters, Mapping[str, Mapping[str, int]], Sequence[HostView]]:
        """Return the counters, the tallies (kind -> key -> count) and the hosts with the most pages."""
        ...

    async def left_out(self, crawl_id: CrawlId) -> Mapping[str, Sequence[ExcludedLinkExample]]:
        """Return examples of excluded links by reason, at most `excluded_links.MAX_EXAMPLES` for each."""
        ...

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
        """Return up to `max_count` URLs after `after`, and the place to continue from (None at the end).

        `status` is that of the last answer. A call examines a bounded number of rows, so a page may be short or empty
        before the end.
        """
        ...

    async def url(self, crawl_id: CrawlId, location: Location) -> UrlView | None: ...

    async def pages(
        self, crawl_id: CrawlId, *, after: UrlPlace, which: PageFilter, max_count: int
    ) -> tuple[Sequence[Page], UrlPlace | None]:
        """Return up to `max_count` stored pages after `after`, and the place to continue from. Bounded as `urls`."""
        ...

    async def page(self, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
        """Return the stored page of that URL, or None."""
        ...

    async def items(
        self, crawl_id: CrawlId, *, after: bytes, which: ItemFilter, max_count: int
    ) -> tuple[Sequence[StoredItem], bytes | None]:
        """Return up to `max_count` items after the id `after`, and the id to continue from (None at the end).

        A page is bounded in bytes, and in rows examined, as `urls`.
        """
        ...

    async def item(self, crawl_id: CrawlId, item: bytes) -> StoredItem | None: ...

    async def seeds(self, crawl_id: CrawlId, *, after: UrlPlace, max_count: int) -> Sequence[SeedView]:
        """Return seeds after `after` that the frontier has, both of the spec and uploaded."""
        ...

    async def known_seeds(self, crawl_id: CrawlId, locations: Sequence[Location]) -> Mapping[Fingerprint, SeedView]:
        """Return those of the given URLs that the frontier has, seeded or discovered."""
        ...

    async def host(self, name: str, crawl_id: CrawlId | None) -> HostView | None:
        """Return what is stored of a host, with its queue of one crawl (zeros without a crawl)."""
        ...

    async def hosts(self, crawl_id: CrawlId | None, *, after: int, max_count: int) -> Sequence[HostView]:
        """Return hosts after the host id `after`, of one crawl or of all."""
        ...

    async def host_queues(self, host_id: HostId, max_count: int) -> Sequence[HostQueue]:
        """Return the crawls' queues on a host, ordered by crawl name."""
        ...

    async def dead_letters(
        self, crawl_id: CrawlId | None, *, before: int | None, max_count: int
    ) -> tuple[Sequence[DeadLetterView], int | None]:
        """Return up to `max_count` dead letters below the number `before`, newest first.

        Also return the number to continue from (None at the end). A page is bounded in bytes, so it may be short before
        the end.
        """
        ...

    async def dead_letter(self, letter: int) -> DeadLetterView | None: ...

    async def ask(
        self, command_id: str, crawl_id: CrawlId, kind: str, args: str, partitions: int, *, actor: Actor, now_ms: int
    ) -> None:
        """Record a requested command. Call it before the command is published."""
        ...

    async def command(self, command_id: str) -> CommandProgress | None: ...

    async def add_key(self, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
        """Store the key. Raise Exists if this repeats a create: the key was shown only then."""
        ...

    async def add_first_key(self, key: ApiKey) -> bool:
        """Store the key if there is none at all. Return True if it is stored.

        A caller that got no answer repeats the call with the same key.
        """
        ...

    async def key(self, key_id: str) -> ApiKey | None: ...

    async def keys(self, *, after: str, max_count: int, revoked: bool = False) -> Sequence[ApiKey]:
        """Return keys after the id `after`, ordered by id. `revoked` includes the revoked keys."""
        ...

    async def revoke_key(
        self, key_id: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
    ) -> ApiKey:
        """Revoke the key. Raise Missing, Stale or LastAdmin. A repeat is harmless."""
        ...

    async def ping(self) -> None:
        """Return if the database answers; raise Transient if it does not."""
        ...
