"""Values that an owner reads from and writes to the frontier's tables: rows, changes and results.

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
from shared.domain.frontier.states import Fence, LetterKind, Position, UrlState
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision


class LeasedUrl(Struct):
    """A URL in a shard that was sent out, as its owner keeps it in memory.

    - `depth`: the depth that was sent to the worker.
    - `least`: the least depth known now. It is below `depth` if a shorter path to the URL was found since then.
    - `extra`: the number of extra hops (links beyond the scope) that was sent to the worker.
    - `flags`: bits that describe the URL, such as REVISIT (see the module `states`). Two of the bits are the least
      number of extra hops known now (`extra_hops_of`).
    - `attempt`: the number of the present attempt, from 1.
    - `hops`: the number of redirects in a row that led to the URL.
    - `last`: the stored fetch with which the next fetch is compared. None if there is no such fetch. Also None if
      dispatch did not read stored fetches (`LeaseRequest.compared` was False).
    """

    # After a change of the owner, `depth` and `extra` may be too low: SQL has the least numbers and a flag only.
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

    - `order`: the fingerprints of all URLs of the shard, in the order of the message.
    - `urls`: the URLs of the shard that have no outcome yet.
    - `grants`, `expired`: how many grants the lease has had, and how many of them expired.
    - `contexts`: the seed contexts of the URLs that have one.
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
    """The stored row of one crawl's queue on one host, joined with the row of the host.

    - `queued`, `waiting`, `leased`: how many URLs of the queue are in each state.
    - `pages`: how many pages of the host the crawl has stored. `next_due_ms`: when the first waiting URL is due.
    - `shard_cap`: the maximum of URLs in a shard, 0 for none.
    - `signals`: encoded HostSignals. `found_ms`: when a sitemap of the host last listed something new.
    - `operator_*`: what the host's policy sets. The row also has the fields of the host's HostHealth.
    """

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
    """What a new owner reads of its partition after its claim has committed.

    `next_host` and `next_lease`: the next free numbers. `commands`: the commands that are in progress.
    """

    fence: Fence
    position: Position
    next_host: int
    next_lease: int
    leases: tuple[LeaseRow, ...]
    commands: "tuple[CommandRun, ...]" = ()


class LeaseRequest(Struct, frozen=True):
    """A request to lease URLs of one crawl's queue on one host as one shard.

    - `max_revisits`: the maximum of stored pages that are due. They are leased first.
    - `requisites`: if True, queued requisites are leased next, without a maximum of their own.
    - `max_urls`: the maximum of other queued URLs. They are leased last, in order of rank.
    - `max_together`: the maximum of all these URLs. Not used if `max_revisits` is 0 and `requisites` is False. Example:
      it is 10, `max_revisits` 4, `max_urls` 8. With 4 due pages and 3 requisites, at most 3 other URLs are leased.
    - `compared`: also read the last fetch of each stored page, for a later comparison (`LeasedUrl.last`).
    - `due_until_ms`: lease a stored page only if it became due at this time or earlier. 0: no limit. Retries have none.
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
    """New values for the row of a URL after an outcome.

    `rank` is the sort key of a QUEUED URL or the due time of a WAITING URL.
    """

    crawl_id: CrawlId
    host_id: HostId
    fingerprint: Fingerprint
    state: UrlState
    rank: int
    attempts: int
    flags: int
    reason: str | None = None


class FetchRow(Struct, frozen=True):
    """The stored row of a URL's last fetch.

    - `page`: the fetch stored a page, and the page may appear in lists, exports and items. For example, a page with the
      robots directive `noindex` may not appear there (see `NotIndexed`).
    - `truncated`: why the body is incomplete, None if it is complete.
    - `links`: the number of accepted outlinks.
    - `links_found`: the number of all outlinks, None if they were not counted.
    - `left_out`: the encoded numbers of the page's excluded links by reason (see shared.domain.explain.excluded_links).
    - `recrawl`: the encoded PageHistory, None if there is none.
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
    """The changes of a queue's row in one transaction.

    `queued`, `waiting`, `leased`, `pages`: numbers to add. The other fields are new values; None keeps the stored one.
    """

    queued: int = 0
    waiting: int = 0
    leased: int = 0
    pages: int = 0
    next_due_ms: int | None = None
    active_at_ms: int | None = None
    shard_cap: int | None = None


class HostChange(Struct, frozen=True):
    """New values for a host's row: what its last visit showed, and the fields of its HostHealth."""

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
    """A dead letter to store: a URL or message that is given up. `evidence` says why.

    `url`: the URL, None for a message. `payload`: the message, None for a URL.
    """

    crawl_id: CrawlId | None
    kind: LetterKind
    at_ms: int
    evidence: str
    url: str | None = None
    payload: bytes | None = None


class MessageDeadLetter(Struct, frozen=True):
    """A stored dead letter that is a message. `id`: the number of the letter. `payload`: the bytes of the message."""

    id: int
    kind: str
    payload: bytes


QueueEnd = tuple[CrawlId, HostId, UrlState, str]
"""A host queue whose URLs are given up, as (crawl, host, state, reason).

The queued and waiting URLs of this crawl on this host get the state (FAILED or EXCLUDED) and the reason. With EXCLUDED,
URLs of stored pages that wait for their next fetch do not change."""


class Changes(Struct):
    """What one transaction of an owner writes, besides the fence and the position.

    Deltas are added to stored numbers. Rows replace stored rows.

    - `freed`: leases to end. `expired`: the new number of expired grants of a lease.
    - `give_up`: queues whose URLs are given up. One transaction gives up a limited number of URLs. `Store.apply`
      returns the queues that have further ones.
    - `letters_sent`: ids of dead letters to delete, because their messages were published again.
    - `commands_given_up`: ids of commands in progress that can never be applied.
    - `stream_replaced`: give all commands in progress the sequence 0, before all reports of the stream.
    - `marks`: the number of each crawl's newest command in progress. The transaction writes this number into the rows
      of URLs that it writes. A command skips rows that have its own number or a higher one.
    - `losses_to_replace`: new fetches of URLs with the flag LOSSES_COUNTED. Losses are what a fetch left out, such as
      excluded links. The crawl counts only the losses of a URL's newest fetch. If the earlier fetch excluded 5 links
      and the new one 3, the crawl's count falls by 2. Exception: an earlier fetch stored a page, and the new one did
      not. The crawl's counts then stay the same.
    - `page_changes`: entries for the log of changes, made at `at_ms`.
    - `signals`: for each queue, how reliable the dates in the host's sitemaps are now (an encoded HostSignals).
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
    losses_to_replace: list[FetchRow] = field(default_factory=list)
    revisited: list[RevisitRow] = field(default_factory=list)
    superseded: list[Superseded] = field(default_factory=list)
    page_changes: dict[CrawlId, list[PageChange]] = field(default_factory=dict)
    at_ms: int = 0
    signals: dict[tuple[CrawlId, HostId], bytes] = field(default_factory=dict)
    left_out: list[ExcludedLink] = field(default_factory=list)
    dead_letters: list[DeadLetterRow] = field(default_factory=list)
    letters_sent: list[int] = field(default_factory=list)
    commands_given_up: list[str] = field(default_factory=list)
    stream_replaced: bool = False
    marks: Mapping[CrawlId, int] = field(default_factory=dict)

    def queue(self, crawl_id: CrawlId, host_id: HostId) -> QueueDelta:
        """Return the QueueDelta of this queue, an empty one at the first call. The caller changes it in place."""
        delta = self.queues.get((crawl_id, host_id))
        if delta is None:
            delta = self.queues[crawl_id, host_id] = QueueDelta()
        return delta


class DiscoveredLink(Struct, frozen=True):
    """A link or seed to insert into the frontier. Its host is known by name only.

    - `via_host`, `via`: the host id and fingerprint of the page that has the link. 0 and empty for a seed.
    - `hops`: the number of redirects in a row that led to the URL.
    - `kind`: what the URL was found as (UrlKind).
    - `outside`: the rule of the crawl's present scope that excludes the link, empty if none does.
    - `extra`: the number of extra hops that led to the URL, 0 if it is in scope.
    - `lastmod`: when the page last changed according to a sitemap or feed (Unix seconds), 0 if unknown.
    - `of_set`: it is a seed that was added to a seed set.
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
    """A DiscoveredLink with a seed context: its own if it is a seed, else that of the seed from which it was found."""

    context: SeedContext = NO_CONTEXT


def with_context(link: DiscoveredLink, context: SeedContext) -> LinkWithContext:
    """Return `link` as a LinkWithContext that has this context."""
    return LinkWithContext(**asdict(link), context=context)


class ProducerMark(Struct, frozen=True):
    """Identifies one message with discovered URLs, so that a message that comes twice is applied once.

    A producer numbers its messages to each partition and crawl.

    - `producer`: the name of the sender of these messages, such as a worker in one week, or one upload of seeds.
    - `n`: the number of the message, from 1.
    - `total`: how many URLs the producer has sent, including those of this message.
    - `spec`: the revision of the spec under which the producer judged the links.
    """

    crawl_id: CrawlId
    producer: str
    n: int
    total: int
    spec: int = 0


class DiscoveryTransaction(Struct, frozen=True):
    """Messages with discoveries to apply in one transaction, in order of arrival.

    - `messages`: for each message its ProducerMark, its links, and how many further links of it could not be queued.
    - `excluded`: the URLs that an exclusion covers. New ones are stored as excluded. Known ones do not change.
    - `with_contexts`: some links are LinkWithContext.
    """

    messages: tuple[tuple[ProducerMark, tuple[DiscoveredLink, ...], int], ...]
    dead_letters: tuple[DeadLetterRow, ...] = ()
    excluded: frozenset[Fingerprint] = frozenset()
    with_contexts: bool = False


class DiscoveryResult(Struct):
    """What a DiscoveryTransaction changed. The owner updates its memory from it.

    - `queues`: how many URLs were added to each queue. `host_names`: the names of the hosts, by id.
    - `lowered`: leased URLs that were found at a lesser depth, each with this depth.
    - `hops`: leased URLs whose number of extra hops changed, each with the new number.
    - `also_pages`: leased requisites that were now also found as pages.
    - `requisites`: the queues to which requisites were added. `next_host`: the number for the next new host.
    - `with_contexts`: the crawls with new seed contexts. `new`, `known`, `refused`: what to add to these counters.
    - `repeats`: how many of the messages had been applied before.
    - `gaps`: how many messages came after a missing number of their producer (`ProducerMark.n`).
    - `due`: the queues with pages that are due sooner now, each with the earliest due time.
    - `counts`: what to add to the counts of pages, by crawl, kind (`recrawl_pages.COUNTED`) and bucket.
    - `listing`: the queues of hosts whose sitemaps listed something new. `listing_ms`: when that was.
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
    """A command in progress in one partition.

    - `number`: orders the commands of a partition and is never reused.
    - `sequence`: the sequence of the command's message in the reports stream. 0: that stream was replaced since then.
    - `through`: only for REPLAY and DISCARD, which apply to dead letters. It is the number of the newest dead letter at
      the moment when the owner accepted the command. Later dead letters are not affected. 0 for other commands.
    - `after`: the place from which the next transaction of the command continues. 0 for the first one.
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
