"""The port to the catalog: crawls as operators declare them, keys, the audit log, and bounded reads of the frontier.

Every method is one transaction. It raises the errors below, and Transient, Permanent and Unusable as the store does.
Any master may call it. It never writes the frontier's rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.domain.archive.cdx_query import CdxQuery
from shared.domain.archive.cdxj import IndexRow
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.scope_change import ScopeChange
from shared.domain.crawl.state import Verb
from shared.domain.explain.excluded_links import ExcludedLinkExample
from shared.domain.frontier.page_history import ChangeKind
from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId, Fingerprint, HostId, Partition, Revision
from shared.domain.ops.access import ApiKey
from shared.domain.reads.changes import ChangePlace, PageChangeView, PageVersion
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
    """No crawl, key, revision or other object has that name."""


class Exists(Exception):
    """An object of that name exists already, so it cannot be created."""


class Full(Exception):
    """There are already as many crawls as allowed."""


class LastAdmin(Exception):
    """The key must not be revoked: it is the last with the role admin. Without it no key could be created over REST."""


class NoSecret(Exception):
    """The identity is a client certificate. It has no secret that its client knows, so it cannot become a key."""


class Stale(Exception):
    """The object changed since the caller read it. `current` is the tag (HTTP ETag) of its present version."""

    def __init__(self, current: str) -> None:
        super().__init__(f"the current version is {current}")
        self.current = current


class ReusedKey(Exception):
    """The request's idempotency key was used for a different request before."""


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """The URL after which a listing continues, by its host and fingerprint."""

    host_id: HostId
    fingerprint: Fingerprint


class Catalog(Protocol):
    """Declared crawls, their seeds, URLs, pages and items, hosts, dead letters, commands and API keys.

    `expected` in a method: tags (HTTP ETags), one of which the object's present version must have, else Stale. None
    sets no condition.
    """

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
        """Create a crawl, and with `start` begin it. Return it.

        Raise Exists, or Full if there would be more than `max_count` crawls that are not deleted. Crawls created
        concurrently are not counted. A repeat returns the crawl as it was created. Raise ReusedKey if its key was used
        for another request.
        """

    async def put(
        self,
        wanted: Declaration,
        *,
        expected: frozenset[str] | None,
        start: bool,
        actor: Actor,
        now_ms: int,
        max_count: int | None = None,
        enforce: bool = True,
    ) -> tuple[DeclaredCrawl, bool]:
        """Create the crawl of that name, or update it, as declared. Return it, and True if it was created.

        `start` and `max_count` only apply to a new crawl. `enforce`: also start or pause a crawl that is not as it is
        declared to be (`status_as_desired`).
        """

    async def turn(
        self, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[DeclaredCrawl, DeclaredCrawl]:
        """Apply an operator's verb to a crawl. Return the crawl before and after. Raise Missing, Stale or
        IllegalTransition.

        RESET gives a new crawl id with the same spec. DELETE gives the state DELETED and frees the name.
        """

    async def crawl(self, name: str) -> DeclaredCrawl:
        """Return the crawl of that name. Raise Missing if it does not exist or is deleted."""

    async def stamp(self, name: str) -> Stamp:
        """Return the crawl's stamp, which changes with anything shown of it, at less cost than `crawl`. Raise
        Missing.
        """

    async def crawls(
        self, which: CrawlFilter, *, after: str, max_count: int, specs: bool = False
    ) -> tuple[Sequence[DeclaredCrawl], bool]:
        """Return at most `max_count` crawls that match, after the name `after`, ordered by name, and True if there are
        more.

        Without `specs` each has a SpecSummary instead of its spec. With `specs` large specs make the page shorter.
        """

    async def revisions(
        self, crawl_id: CrawlId, *, before: int, max_count: int, specs: bool = False
    ) -> Sequence[StoredRevision]:
        """Return at most `max_count` revisions of a crawl's spec below the number `before`, newest first.

        Without `specs` each has an empty spec. With `specs` large specs make the page shorter.
        """

    async def revision(self, crawl_id: CrawlId, revision: Revision) -> StoredRevision:
        """Return that revision of the crawl's spec. Raise Missing if it does not exist."""

    async def stats(self, crawl_id: CrawlId) -> tuple[Counters, Mapping[str, Mapping[str, int]], Sequence[HostView]]:
        """Return a crawl's counters, its tallies (kind -> key -> number), and the hosts with the most pages."""

    async def commands_in_progress(self, crawl_id: CrawlId) -> Mapping[str, int]:
        """Return how many partitions still apply each kind of command of the crawl. Finished kinds are left out."""
        ...

    async def scope_change(self, crawl_id: CrawlId, scope: CompiledScope) -> ScopeChange:
        """Return which of the crawl's queued URLs `scope` would exclude, from a sample of bounded size."""

    async def left_out(self, crawl_id: CrawlId) -> Mapping[str, Sequence[ExcludedLinkExample]]:
        """Return examples of links that the crawl's rules excluded, by reason: `MAX_EXAMPLES` for each at most."""

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
        """Return up to `max_count` URLs of a crawl that match, after `after`, and the place to continue from (None at
        the end).

        `status` is that of the last response. A call examines a bounded number of rows, so a page may be short or empty
        before the end.
        """

    async def url(self, crawl_id: CrawlId, location: Location) -> UrlView | None: ...

    async def pages(
        self, crawl_id: CrawlId, *, after: UrlPlace, which: PageFilter, max_count: int
    ) -> tuple[Sequence[Page], UrlPlace | None]:
        """Return up to `max_count` stored pages that match, after `after`, and the place to continue from (None at the
        end).

        A call examines a bounded number of rows, as in `urls`.
        """

    async def page(self, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
        """Return the stored page of that URL, or None if none is stored."""

    async def changes(
        self, crawl_id: CrawlId, *, after: ChangePlace, kinds: Collection[ChangeKind], max_count: int
    ) -> tuple[Sequence[PageChangeView], ChangePlace | None]:
        """Return up to `max_count` changes of pages after `after`, in the order of time, and the place to continue from
        (None at the end).

        A call examines a bounded number of rows, so there may be fewer before the end.
        """

    async def changes_deleted_ms(self, crawl_id: CrawlId) -> int | None:
        """Return the time (Unix ms) of the newest change of a page that retention has deleted. None: it deleted none.

        All earlier changes are deleted, too.
        """

    async def versions(self, crawl_id: CrawlId, at: UrlPlace) -> Sequence[PageVersion]:
        """Return the versions of a stored page that are listed, the newest first. Empty if no page is stored there."""

    async def captures(self, crawl_id: CrawlId, query: CdxQuery, partition: Partition) -> Sequence[IndexRow] | None:
        """Return the captures among which a query of the CDX server selects, unsorted. `partition`: its host's.

        A call reads a bounded number of rows. Return None if the query would have to read more.
        """

    async def items(
        self, crawl_id: CrawlId, *, after: bytes, which: ItemFilter, max_count: int
    ) -> tuple[Sequence[StoredItem], bytes | None]:
        """Return up to `max_count` items that match, after the item id `after`, and the id to continue from (None at
        the end).

        The bytes returned and the rows examined are bounded, so there may be fewer before the end.
        """

    async def item(self, crawl_id: CrawlId, item: bytes) -> StoredItem | None: ...

    async def seeds(self, crawl_id: CrawlId, *, after: UrlPlace, max_count: int) -> Sequence[SeedView]:
        """Return up to `max_count` seeds after `after` that the frontier has, both of the spec and uploaded."""

    async def known_seeds(self, crawl_id: CrawlId, locations: Sequence[Location]) -> Mapping[Fingerprint, SeedView]:
        """Return what the frontier knows of these URLs, by fingerprint. Those that it does not know are left out."""

    async def host(self, name: str, crawl_id: CrawlId | None) -> HostView | None:
        """Return what is stored of a host, with the numbers of its queue of one crawl (zeros if `crawl_id` is None)."""

    async def hosts(self, crawl_id: CrawlId | None, *, after: int, max_count: int) -> Sequence[HostView]:
        """Return up to `max_count` hosts after the host id `after`, of one crawl, or of all if `crawl_id` is None."""

    async def host_queues(self, host_id: HostId, max_count: int) -> Sequence[HostQueue]:
        """Return up to `max_count` queues on a host, one for each crawl that has URLs of it, ordered by crawl name."""

    async def dead_letters(
        self, crawl_id: CrawlId | None, *, before: int | None, max_count: int
    ) -> tuple[Sequence[DeadLetterView], int | None]:
        """Return up to `max_count` dead letters below the number `before`, of one crawl or of all, newest first.

        Also return the number to pass as `before` next (None at the end). The bytes returned are bounded, so there may
        be fewer before the end.
        """

    async def dead_letter(self, letter: int) -> DeadLetterView | None: ...

    async def ask(
        self, command_id: str, crawl_id: CrawlId, kind: str, args: str, partitions: int, *, actor: Actor, now_ms: int
    ) -> None:
        """Record a requested command and its audit entry, before the command is published. A repeat changes nothing."""

    async def command(self, command_id: str) -> CommandProgress | None: ...

    async def add_key(self, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
        """Store a new API key. Raise Exists if its name or its certificate belongs to another one.

        Raise Exists also if this repeats a create (`repeatable`): the secret was shown only then.
        """

    async def add_first_key(self, key: ApiKey) -> bool:
        """Store the API key if there is none at all. Return True if it is stored.

        A caller that got no answer repeats the call with the same key.
        """

    async def put_key(
        self, wanted: ApiKey, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[ApiKey, bool]:
        """Create the key `wanted`, or replace what the key of its name declares. Return it, and True if it is new.

        A key that exists keeps its id, its secret, and its creation. If nothing differs, nothing changes. Raise Stale,
        Exists if another identity has its certificate, NoSecret if a certificate would become a key, or LastAdmin.
        """

    async def revoke_key(
        self, name: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
    ) -> ApiKey:
        """Revoke the API key of that name and return it. Raise Missing, Stale or LastAdmin."""

    async def key(self, key_id: str) -> ApiKey | None:
        """Return the API key with this id, revoked or not, or None if there is none."""

    async def key_named(self, name: str) -> ApiKey:
        """Return the API key of that name that is not revoked. Raise Missing if there is none."""

    async def keys(self, *, after: tuple[str, str], max_count: int, revoked: bool = False) -> Sequence[ApiKey]:
        """Return up to `max_count` API keys after a name and an id, ordered by these. `revoked` includes revoked keys.

        A name may have any number of revoked keys.
        """

    async def key_of_certificate(self, certificate_names: frozenset[str]) -> ApiKey | None:
        """Return the identity that one of these names of a certificate proves, by itself; None if there is none.

        A fingerprint comes before other names.
        """

    async def note_uses(self, uses: Mapping[str, int]) -> None:
        """Record the last use of keys, in Unix ms by id. An earlier time than the recorded one changes nothing."""

    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes that all masters of the cluster share, made at the first call."""

    async def ping(self) -> None:
        """Ask the database for a response. Raise Transient if it does not answer."""
