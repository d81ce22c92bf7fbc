"""What an owner reads from and writes to the frontier's tables, as values: rows, changes and results.

Times are Unix ms unless a name has another unit.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import asdict

from shared.domain.explain.excluded_links import ExcludedLink
from shared.domain.frontier.counters import Counters as Counters
from shared.domain.frontier.page_history import PageChange
from shared.domain.frontier.revisits import LastFetch, RevisitRow, Superseded
from shared.domain.frontier.seed_contexts import NO_CONTEXT, SeedContext
from shared.domain.frontier.states import Fence, Position, UrlState
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision


class LeasedUrl(Struct):
    """A URL in a shard that was sent out. `least` is the least depth found since it was sent.

    `depth` is the depth that it was sent with. After a takeover it is only known to be at least `least`. `extra` is the
    number of hops beyond the scope that it was sent with; `flags` have the least number found since.
    """

    url: str
    depth: int
    least: int
    attempt: int
    hops: int
    priority: int
    flags: int
    rank: int
    last: LastFetch | None = None
    extra: int = 0


class LeaseRow(Struct):
    """A lease as stored: a URL shard that was sent out.

    `order` has the shard's fingerprints in order, `urls` those URLs that are not settled yet. `grants` and `expired`
    count its grants, and those that expired. `contexts`: the contexts of those URLs that have one.
    """

    lease_id: LeaseId
    crawl_id: CrawlId
    spec: Revision
    host_id: HostId
    host: str
    slot: int
    pool: str
    delay_ms: int
    order: tuple[Fingerprint, ...]
    urls: dict[Fingerprint, LeasedUrl]
    grants: int = 0
    expired: int = 0
    issued_at_ms: int = 0
    contexts: Mapping[Fingerprint, SeedContext] = field(default_factory=dict)


class QueueRow(Struct, frozen=True):
    """A host's queue of one crawl as stored, with what is stored of the host."""

    crawl_id: CrawlId
    host_id: HostId
    host: str
    queued: int
    waiting: int
    next_due_ms: int
    pages: int
    leased: int
    shard_cap: int
    crawl_delay_ms: int
    operator_delay_ms: int
    latency_ms: int
    failures: int
    unreachable: int
    last_failure_ms: int
    blocked_until_ms: int
    visited_at_ms: int
    recent: int = 1
    slowed_ms: int = 0
    asked_ms: int = 0
    silent_since_ms: int = 0
    signals: bytes | None = None
    found_ms: int = 0
    operator_blocked_until_ms: int = 0
    operator_slots: int = 0


FIRST_HOST: Final = 1
"""The number that a partition allots to its first host. If it is still free, the partition never had a host."""


class Claimed(Struct, frozen=True):
    """What a new owner reads of its partition after its claim committed: fence, position, leases and commands.

    `next_host` and `next_lease` are the next free numbers.
    """

    fence: Fence
    position: Position
    next_host: int
    next_lease: int
    leases: tuple[LeaseRow, ...]
    commands: "tuple[CommandRun, ...]" = ()


class LeaseRequest(Struct, frozen=True):
    """A request to lease up to `max_urls` URLs of a host's queue, those of the least rank first.

    `max_revisits`: up to how many pages that are due are leased besides, and before them. `max_together` limits all.
    `compared`: the last fetch of each page that is stored is needed. `due_until_ms`: pages that became due later are
    not leased, unless they are tried again; 0 leases all that are due.
    """

    lease_id: LeaseId
    crawl_id: CrawlId
    spec: Revision
    host_id: HostId
    host: str
    slot: int
    pool: str
    delay_ms: int
    max_urls: int
    max_revisits: int = 0
    max_together: int = 0
    compared: bool = False
    due_until_ms: int = 0
    requisites: bool = False


class UrlChange(Struct, frozen=True):
    """The new values of a URL's row after an outcome. `rank`: the queue order if QUEUED, the due time if WAITING."""

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    state: UrlState
    rank: int
    attempts: int
    flags: int
    reason: str | None = None


class FetchRow(Struct, frozen=True):
    """A URL's last fetch, as stored. `page`: it stored a page, whose record belongs in the index.

    `truncated`: why the body is incomplete. `left_out`: as shared.domain.explain.excluded_links encodes it.
    """

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    at_ms: int
    status: int
    page: bool
    reason: str | None = None
    detail: str | None = None
    latency_ms: int = 0
    size: int = 0
    mime: str | None = None
    digest: bytes | None = None
    segment: str | None = None
    offset: int | None = None
    length: int | None = None
    etag: str | None = None
    last_modified: str | None = None
    location: str | None = None
    title: str | None = None
    links: int = 0
    truncated: str | None = None
    links_found: int | None = None
    left_out: str | None = None
    recrawl: bytes | None = None


class QueueDelta(Struct):
    """What one transaction changes in a queue's row: numbers to add, and new values (None keeps the stored one)."""

    queued: int = 0
    waiting: int = 0
    leased: int = 0
    pages: int = 0
    next_due_ms: int | None = None
    active_at_ms: int | None = None
    shard_cap: int | None = None


class HostChange(Struct, frozen=True):
    """The new values of a host's row."""

    host_id: HostId
    crawl_delay_ms: int
    latency_ms: int
    failures: int
    unreachable: int
    last_failure_ms: int
    last_failure: str | None
    blocked_until_ms: int
    visited_at_ms: int
    ip: str | None
    recent: int = 1
    slowed_ms: int = 0
    asked_ms: int = 0
    silent_since_ms: int = 0


class DeadLetterRow(Struct, frozen=True):
    """A dead letter to store: a URL or message that is given up, with the evidence."""

    crawl_id: CrawlId | None
    kind: str
    at_ms: int
    evidence: str
    url: str | None = None
    payload: bytes | None = None


class MessageDeadLetter(Struct, frozen=True):
    """A dead letter that is a whole message: its number, the kind of message, and its bytes."""

    id: int
    kind: str
    payload: bytes


QueueEnd = tuple[CrawlId, HostId, UrlState, str]
"""The end of a queue: crawl, host, final state (FAILED or EXCLUDED) and reason of all its queued and waiting URLs."""


class Changes(Struct):
    """Everything that one owner transaction writes, besides the fence. Deltas are added; rows replace stored ones.

    `give_up`: queues to end. One transaction ends a limited number of their URLs; `Store.apply` returns the queues that
    have more. `letters_sent`: dead letters whose messages were published again. `commands_given_up`: ids of commands in
    progress that can never be applied. `marks`: per crawl the newest command in progress, which affects none of `urls`.
    `losses_again`: those of `fetches` whose losses replace what an earlier fetch of the URL counted in `tallies`.
    `page_changes`: entries for the log of changes, made at `at_ms`. `signals`: new values of `QueueRow.signals`.
    """

    urls: list[UrlChange] = field(default_factory=list)
    fetches: list[FetchRow] = field(default_factory=list)
    queues: dict[tuple[CrawlId, HostId], QueueDelta] = field(default_factory=dict)
    hosts: dict[HostId, HostChange] = field(default_factory=dict)
    freed: list[LeaseId] = field(default_factory=list)
    expired: dict[LeaseId, int] = field(default_factory=dict)
    give_up: list[QueueEnd] = field(default_factory=list)
    counters: dict[CrawlId, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    tallies: dict[tuple[CrawlId, str, str], int] = field(default_factory=lambda: defaultdict(int))
    losses_again: list[FetchRow] = field(default_factory=list)
    revisited: list[RevisitRow] = field(default_factory=list)
    superseded: list[Superseded] = field(default_factory=list)
    page_changes: dict[CrawlId, list[PageChange]] = field(default_factory=dict)
    at_ms: int = 0
    signals: dict[tuple[CrawlId, HostId], bytes] = field(default_factory=dict)
    left_out: list[ExcludedLink] = field(default_factory=list)
    dead_letters: list[DeadLetterRow] = field(default_factory=list)
    letters_sent: list[int] = field(default_factory=list)
    commands_given_up: list[str] = field(default_factory=list)
    marks: Mapping[CrawlId, int] = field(default_factory=dict)

    def queue(self, crawl_id: CrawlId, host_id: HostId) -> QueueDelta:
        """Return the QueueDelta of this queue, to which the caller adds. It is empty at first."""
        delta = self.queues.get((crawl_id, host_id))
        if delta is None:
            delta = self.queues[crawl_id, host_id] = QueueDelta()
        return delta

    def empty(self) -> bool:
        """Return True if there is nothing to write."""
        return not (
            self.urls
            or self.fetches
            or self.queues
            or self.hosts
            or self.freed
            or self.expired
            or self.give_up
            or self.counters
            or self.tallies
            or self.dead_letters
            or self.letters_sent
            or self.commands_given_up
        )


class DiscoveredLink(Struct, frozen=True):
    """A link or seed to insert, whose host is known by name only. `via_host` and `via` name the page that has the link.

    A seed has `via_host` 0 and an empty `via`. `kind`: what the URL was found as (UrlKind). `outside`: the rule of the
    crawl's present scope that excludes the link, empty if none does. `extra`: how many hops beyond the scope it leads.
    `lastmod`: when the page changed last by a sitemap (Unix seconds), 0 if that is not known. `of_set`: it is a seed
    that a seed set has got.
    """

    crawl_id: CrawlId
    url: str
    host: str
    fingerprint: Fingerprint
    depth: int
    hops: int
    priority: int
    via_host: int
    via: bytes
    kind: int = 0
    outside: str = ""
    extra: int = 0
    lastmod: int = 0
    of_set: bool = False


class LinkWithContext(DiscoveredLink, frozen=True):
    """A link of a page that has the context of a seed, or a seed with labels or a source."""

    context: SeedContext = NO_CONTEXT


def with_context(link: DiscoveredLink, context: SeedContext) -> LinkWithContext:
    """Return the link with a context."""
    return LinkWithContext(**asdict(link), context=context)


class ProducerMark(Struct, frozen=True):
    """How far a sender of discoveries has come: its message `n`, and its URLs so far (`total`), this one's included.

    `spec`: the revision under which the sender judged the links of this message.
    """

    crawl_id: CrawlId
    producer: str
    n: int
    total: int
    spec: int = 0


class DiscoveryTransaction(Struct, frozen=True):
    """Messages with discoveries to apply in one transaction, in order of arrival.

    Each has its sender's mark, its links, and the number of its links that could not be queued. `excluded`: the URLs
    that an exclusion covers. They are excluded if they are new, and otherwise stay as they are. `with_contexts`: some
    links are LinkWithContext.
    """

    messages: tuple[tuple[ProducerMark, tuple[DiscoveredLink, ...], int], ...]
    dead_letters: tuple[DeadLetterRow, ...] = ()
    excluded: frozenset[Fingerprint] = frozenset()
    with_contexts: bool = False


class DiscoveryResult(Struct):
    """What applying a DiscoveryTransaction changed.

    `queues`: how many URLs were added to each queue. `lowered`: leased URLs that were found at a lesser depth, with it.
    `hops`: leased URLs whose number of hops beyond the scope changed, with it.
    `also_pages`: leased requisites that are linked as pages. `requisites`: the queues that have further requisites.
    `with_contexts`: crawls with new contexts of seeds. `new`, `known`, `refused`: what to add to these counters.
    `repeats`, `gaps`: messages that came twice, or are missing.
    `due`: queues with pages that are due sooner, and when. `counts`: what to add to the counts of pages, by crawl, kind
    (`recrawl_pages.COUNTED`) and bucket. `listing`: the hosts whose sitemaps listed something new, at `listing_ms`.
    """

    queues: dict[tuple[CrawlId, HostId], int] = field(default_factory=dict)
    host_names: dict[HostId, str] = field(default_factory=dict)
    lowered: list[tuple[LeaseId, Fingerprint, int]] = field(default_factory=list)
    hops: list[tuple[LeaseId, Fingerprint, int]] = field(default_factory=list)
    also_pages: list[tuple[LeaseId, Fingerprint]] = field(default_factory=list)
    requisites: set[tuple[CrawlId, HostId]] = field(default_factory=set)
    with_contexts: set[CrawlId] = field(default_factory=set)
    new: int = 0
    known: int = 0
    refused: int = 0
    repeats: int = 0
    gaps: int = 0
    next_host: int = 0
    due: dict[tuple[CrawlId, HostId], int] = field(default_factory=dict)
    counts: dict[tuple[CrawlId, str, int], int] = field(default_factory=dict)
    listing: set[tuple[CrawlId, HostId]] = field(default_factory=set)
    listing_ms: int = 0


class CommandRun(Struct, frozen=True):
    """A command as one partition applies it.

    `number` orders the commands of a partition and is never reused. `sequence` is the position of its message in the
    reports stream: messages with a smaller one were accepted before it. `through` is the newest dead letter that it
    includes. `after` is where its next chunk begins, 0 for the first.
    """

    id: str
    crawl_id: CrawlId
    kind: str
    args: dict[str, object]
    partition: Partition
    number: int = 0
    sequence: int = 0
    through: int = 0
    after: int = 0
