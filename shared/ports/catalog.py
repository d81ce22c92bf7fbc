"""The port to the catalog: crawls as operators declare them, API keys, the audit log, and reads of the frontier.

Every method is one transaction of bounded size. Any master may call it. No method writes the frontier's rows. A method
raises the errors below, and Transient, Permanent and Unusable with the meaning of the store's errors.
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
    """There is no crawl, key, revision or other object with the requested name or number."""


class Exists(Exception):
    """An object with this name exists already, so it cannot be created."""


class Full(Exception):
    """The number of objects of this type, such as crawls or schedules, is at its limit, so no other can be created.

    `remedy`: what an operator can do, as a phrase in the imperative.
    """

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


class LastAdmin(Exception):
    """The change is refused, because the cluster could be left without a valid admin key.

    The change would revoke an admin key, take its role away, or let it expire sooner. Such a change is allowed only if
    another admin key is valid for at least as long.

    Example: an admin key expires on 1 June. It may be revoked if another admin key expires on 1 June, later, or never.
    """


class NoSecret(Exception):
    """The change is refused: it would turn a client certificate into an API key, but there is no secret for the key.

    A secret is made only when a key is created, not when an identity is changed.
    """


class Stale(Exception):
    """The object has changed since the caller read it. `current` is the ETag of its present version."""

    def __init__(self, current: str) -> None:
        super().__init__(f"the current version is {current}")
        self.current = current


class ReusedKey(Exception):
    """The request's Idempotency-Key was used before, for a different request."""


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """A position in a list of URLs that is ordered by host id and fingerprint. The next part begins after this URL."""

    host_id: HostId
    fingerprint: Fingerprint


class Catalog(Protocol):
    """Reads and writes declared crawls and API keys. Reads seeds, URLs, pages, items, hosts, commands and dead letters.

    `expected` in a method: tags (HTTP ETags). Raise Stale if the object's present version has none of them. None: no
    condition.
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
        """Create a crawl and return it. With `start`, also start it.

        - `repeatable`: the request's Idempotency-Key. If the same request was made with it before, return the crawl as
          it was created then. Raise ReusedKey if the key was used for another request.
        - `max_count`: raise Full if at least this many crawls exist that are not deleted. Concurrent requests may
          create a few more. None: no limit.

        Raise Exists if the name is taken.
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
        """Create the crawl `wanted`, or update the crawl of that name. Return the crawl, and True if it was created.

        Write nothing if an existing crawl has this declaration already, and no change of its state is needed.

        - `expected`: raise Missing if there is no such crawl, or Stale if its ETag is not one of these. None: do not
          check.
        - `start`: for a new crawl. True: also start the crawl, unless `wanted.desired` is set.
        - `max_count`: for a new crawl. Raise Full if at least this many crawls exist already. None: no limit.
        - `enforce`: for an existing crawl. True: also start, resume or pause the crawl if it does not do what
          `wanted.desired` says. False: store `wanted.desired`, but do not act on it.
        """

    async def turn(
        self, name: str, verb: Verb, *, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> tuple[DeclaredCrawl, DeclaredCrawl]:
        """Apply an operator's verb to the crawl. Return the crawl before and after.

        RESET creates a new crawl id with the same spec. DELETE frees the name. Raise Missing, Stale if its present ETag
        is not in `expected`, or IllegalTransition if the crawl's state does not allow the verb.
        """

    async def crawl(self, name: str) -> DeclaredCrawl:
        """Return the crawl of that name. Raise Missing if it does not exist or is deleted."""

    async def stamp(self, name: str) -> Stamp:
        """Return the crawl's stamp, a value that changes whenever the result of `crawl` would change.

        Raise Missing if the crawl does not exist or is deleted.

        It costs less than `crawl`, so a caller can check for changes.
        """

    async def crawls(
        self, which: CrawlFilter, *, after: str, max_count: int, specs: bool = False
    ) -> tuple[Sequence[DeclaredCrawl], bool]:
        """Return up to `max_count` crawls that match `which`, with names after `after`, and True if there are more.

        They are ordered by name. Without `specs` each crawl has a SpecSummary in place of its spec. With `specs` each
        has its spec. Fewer crawls may then be returned, because the total size of the specs is bounded.
        """

    async def revisions(
        self, crawl_id: CrawlId, *, before: int, max_count: int, specs: bool = False
    ) -> Sequence[StoredRevision]:
        """Return up to `max_count` revisions of a crawl's spec with numbers below `before`, newest first.

        Without `specs` the specs are empty (`{}`). With `specs`, fewer revisions may be returned, because the total
        size of the specs is bounded.
        """

    async def revision(self, crawl_id: CrawlId, revision: Revision) -> StoredRevision:
        """Return revision `revision` of the crawl's spec. Raise Missing if it does not exist."""

    async def stats(self, crawl_id: CrawlId) -> tuple[Counters, Mapping[str, Mapping[str, int]], Sequence[HostView]]:
        """Return a crawl's counters, its counts by reason, and its ten hosts with the most pages.

        The counts map a kind and a key to a number, such as "status" -> "200" -> 17.
        """

    async def partitions_with_commands(self, crawl_id: CrawlId) -> Mapping[str, int]:
        """Return in how many partitions a command of the crawl is in progress, for each kind of command.

        Example: `{"rescope": 3}`. In 3 partitions the owner has accepted a `rescope` and not finished it. No command of
        another kind is in progress. Several commands of one kind in one partition count as one.
        """
        ...

    async def scope_change(self, crawl_id: CrawlId, scope: CompiledScope) -> ScopeChange:
        """Estimate how many of the crawl's queued URLs `scope` would exclude, by rule.

        Only a bounded sample of them is read.
        """

    async def left_out(self, crawl_id: CrawlId) -> Mapping[str, Sequence[ExcludedLinkExample]]:
        """Return examples of links that the crawl's rules excluded, by reason. A reason has at most `MAX_EXAMPLES`."""

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
        """Return up to `max_count` URLs of a crawl after the place `after`, and the place to continue from.

        The place is None at the end. A call examines a bounded number of rows. So it may return few URLs or none before
        the end.

        `state`, `host`, `status`: return only URLs in this state, on this host, whose last response had this HTTP
        status. None: any.
        """

    async def url(self, crawl_id: CrawlId, location: Location) -> UrlView | None: ...

    async def pages(
        self, crawl_id: CrawlId, *, after: UrlPlace, which: PageFilter, max_count: int
    ) -> tuple[Sequence[Page], UrlPlace | None]:
        """Return up to `max_count` stored pages that match `which`, after `after`, and the place to continue from.

        The place is None at the end. A call examines a bounded number of rows. So it may return few pages or none
        before the end.
        """

    async def page(self, crawl_id: CrawlId, at: UrlPlace | Location) -> PageView | None:
        """Return the stored page of the URL at `at`. Return None if no page of it is stored."""

    async def changes(
        self, crawl_id: CrawlId, *, after: ChangePlace, kinds: Collection[ChangeKind], max_count: int
    ) -> tuple[Sequence[PageChangeView], ChangePlace | None]:
        """Return up to `max_count` changes of pages of these `kinds` after `after`, and the place to continue from.

        The changes are in the order of time. The place is None at the end. A call examines a bounded number of rows. So
        it may return few changes or none before the end.
        """

    async def changes_deleted_ms(self, crawl_id: CrawlId) -> int | None:
        """Return the time (Unix ms) up to which retention has deleted the crawl's log of changes.

        It is the time of the newest deleted entry. Return None if no entry was deleted.
        """

    async def versions(self, crawl_id: CrawlId, at: UrlPlace) -> Sequence[PageVersion]:
        """Return the stored versions of the page at `at`, the newest first. Empty if no page is stored there.

        Only a limited number of versions is kept for each page.
        """

    async def captures(self, crawl_id: CrawlId, query: CdxQuery, partition: Partition) -> Sequence[IndexRow] | None:
        """Return the captures (stored responses) from which a query of the CDX server selects its results, unsorted.

        Return None if the query would have to read more rows than one call may. `partition`: the partition of the
        query's host.
        """

    async def items(
        self, crawl_id: CrawlId, *, after: bytes, which: ItemFilter, max_count: int
    ) -> tuple[Sequence[StoredItem], bytes | None]:
        """Return up to `max_count` items that match `which`, after the item id `after`, and the id to continue from.

        The id is None at the end. The bytes returned and the rows examined are bounded. So a call may return few items
        or none before the end.
        """

    async def item(self, crawl_id: CrawlId, item: bytes) -> StoredItem | None: ...

    async def seeds(self, crawl_id: CrawlId, *, after: UrlPlace, max_count: int) -> Sequence[SeedView]:
        """Return up to `max_count` seeds of the crawl after the place `after`: seeds of the spec and uploaded ones.

        Seeds that owners have not applied yet are missing.
        """

    async def known_seeds(self, crawl_id: CrawlId, locations: Sequence[Location]) -> Mapping[Fingerprint, SeedView]:
        """Return what the frontier stores about each URL in `locations`, by fingerprint.

        URLs that the crawl does not have are left out.
        """

    async def host(self, name: str, crawl_id: CrawlId | None) -> HostView | None:
        """Return what is stored of the host `name`, with its numbers of URLs and pages in one crawl.

        If `crawl_id` is None, these numbers are 0. Return None if the host is unknown.
        """

    async def hosts(self, crawl_id: CrawlId | None, *, after: int, max_count: int) -> Sequence[HostView]:
        """Return up to `max_count` hosts with ids greater than `after`, ordered by id.

        `crawl_id`: return the hosts of this crawl, with their numbers of URLs and pages in it. None: return all hosts.
        These numbers are then 0.
        """

    async def host_queues(self, host_id: HostId, max_count: int) -> Sequence[HostQueue]:
        """Return the queues of a host, one for each crawl that has URLs on it, ordered by the crawl's name.

        At most `max_count` queues are returned.
        """

    async def dead_letters(
        self, crawl_id: CrawlId | None, *, before: int | None, max_count: int
    ) -> tuple[Sequence[DeadLetterView], int | None]:
        """Return up to `max_count` dead letters with numbers below `before`, newest first.

        Also return the number to pass as `before` in the next call, or None at the end. The bytes returned are bounded,
        so there may be fewer letters before the end.

        - `crawl_id`: return only letters of this crawl. None: of all crawls.
        - `before`: None begins with the newest letter.
        """

    async def dead_letter(self, letter: int) -> DeadLetterView | None: ...

    async def ask(
        self, command_id: str, crawl_id: CrawlId, kind: str, args: str, partitions: int, *, actor: Actor, now_ms: int
    ) -> None:
        """Record an operator's command, and a line about it in the audit log. Call this before publishing the command.

        If `command_id` is recorded already, change nothing. `args` is a JSON object. `partitions`: how many partitions
        must apply the command.
        """

    async def command(self, command_id: str) -> CommandProgress | None: ...

    async def add_key(self, key: ApiKey, *, actor: Actor, repeatable: Repeatable | None = None) -> None:
        """Store a new API key.

        Raise Exists if its name is taken, or if another key has the same client certificate. Raise Exists also if the
        same request (`repeatable`) created the key before, because its secret cannot be shown again.
        """

    async def add_first_key(self, key: ApiKey) -> bool:
        """Store the API key if the database has no key at all. Return True if this key is stored.

        If the answer was lost, the caller may repeat the call with the same key. The result is True again.
        """

    async def put_key(
        self, wanted: ApiKey, *, expected: frozenset[str] | None, actor: Actor, now_ms: int, new: bool = False
    ) -> tuple[ApiKey, bool]:
        """Create the key `wanted`, or replace the declared values of the key with the same name.

        Return the key, and True if it was created. An existing key keeps its id, its secret and its creation time. If
        nothing differs, change nothing. Errors:
        - Missing: `expected` is given, but no key has this name.
        - Stale: the key's present ETag is not in `expected`, or the key exists and the caller wants a new one (`new`).
        - Exists: another key has the same client certificate.
        - NoSecret: the existing key has only a client certificate, but `wanted` is a key with a secret.
        - LastAdmin: an admin key would lose its role or expire earlier, and no other admin key is valid for as long.
        """

    async def revoke_key(
        self, name: str, *, actor: Actor, now_ms: int, expected: frozenset[str] | None = None
    ) -> ApiKey:
        """Revoke the API key of that name and return it.

        Raise Missing if there is none, and Stale if its present ETag is not in `expected`. Raise LastAdmin if it is an
        admin key that has not expired, and no other admin key is valid for as long.
        """

    async def key(self, key_id: str) -> ApiKey | None:
        """Return the API key with this id, revoked or not, or None if there is none."""

    async def key_named(self, name: str) -> ApiKey:
        """Return the API key of that name that is not revoked. Raise Missing if there is none."""

    async def keys(self, *, after: tuple[str, str], max_count: int, revoked: bool = False) -> Sequence[ApiKey]:
        """Return up to `max_count` API keys after the name and id in `after`, ordered by name and id.

        With `revoked`, include revoked keys. Any number of these may have the same name.
        """

    async def key_of_certificate(self, certificate_names: frozenset[str]) -> ApiKey | None:
        """Return the key that is declared for a client certificate with one of these names.

        `certificate_names`: the names in the certificate, and its fingerprint. Revoked keys are ignored. If several
        keys match, the key declared for the fingerprint comes first, and then the others in the order of their names.
        Return the first of them, or None if no key matches.
        """

    async def note_uses(self, uses: Mapping[str, int]) -> None:
        """Record when keys were last used. `uses` maps key ids to Unix ms.

        A time before the recorded one changes nothing.
        """

    async def secret(self, name: str) -> bytes:
        """Return the 32 random bytes stored as `name`, which all masters of the cluster share.

        The first call creates them.
        """

    async def ping(self) -> None:
        """Check that the database answers a query. Raise Transient if it does not."""
