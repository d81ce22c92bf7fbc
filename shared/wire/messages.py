"""The messages between masters and workers, as versioned msgspec structs.

Every message is one msgpack map with a `type` tag that ends in its version (`shard/1`). Unknown fields are ignored, so
a newer peer may add some. A message that does not decode is `Malformed`: the reader turns it into a dead letter.
Inner structs are arrays: fields may only be appended to them, each with a default. Durations are milliseconds. No
message carries a wall-clock deadline. `at_ms` fields are Unix milliseconds and only date an event.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.ops.watermarks import Pressure


class Malformed(ValueError):
    """The bytes are not a valid message. A reader stores them as a dead letter and continues."""


# --- visits: owner -> worker ------------------------------------------------------------------------------------------


class ShardUrl(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One URL of a shard, and what a worker needs to fetch it.

    - `attempt`: the number of this attempt, from 1; `hops`: as in `Link`.
    - `etag`, `last_modified`: the validators of the stored page, for a conditional request.
    - `stored_ms`: when the fetch of the stored page began (Unix ms), 0 if no page is stored.
    - `digest`: the sha1 of the stored page's payload, empty if no page is stored.
    - `kind`: a shared.domain.frontier.states.UrlKind value; `extra`: the number of extra hops on the way to the URL.
    - `reason`: why lists of pages leave out the stored fetch, such as `sitemap` or `noindex`. Empty if they show it.
    """

    url: str
    depth: int
    attempt: int = 1
    hops: int = 0
    etag: str | None = None
    last_modified: str | None = None
    stored_ms: int = 0
    digest: bytes = b""
    kind: int = 0
    extra: int = 0
    reason: str = ""


class UrlShard(msgspec.Struct, frozen=True, tag_field="type", tag="shard/1", omit_defaults=True):
    """At most 500 URLs of one host of one crawl, which are leased together and sent to a worker.

    - `spec`: the revision of the spec with which the shard was made. A worker that has only an older revision waits.
    - `delay_ms`: the wait between the end of a response and the start of the next request.
    - `contexts`: the distinct seed contexts of the URLs. `context_of`: for each URL, the number of its context in
      `contexts` (from 1), or 0. Both are empty if no URL has a context.
    - `lease_hash`: hash of the lease's crawl and URLs. Empty if an earlier release made the shard.
    """

    lease: int
    crawl: int
    spec: int
    host_id: int
    host: str
    slot: int
    delay_ms: int
    urls: list[ShardUrl]
    contexts: list[SeedContext] = []
    context_of: list[int] = []
    lease_hash: bytes = b""


# --- grants: worker <-> owner, request and reply ----------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, tag_field="type", tag="begin/1", omit_defaults=True):
    """A worker's request for a grant to fetch the remaining URLs of a lease. A repeated request is harmless.

    `delivery`: how often the broker has delivered the shard. `holder`: a name of the visit. `lease_hash`: the shard's.
    """

    lease: int
    delivery: int
    holder: str
    lease_hash: bytes = b""


class Extend(msgspec.Struct, frozen=True, tag_field="type", tag="extend/1", omit_defaults=True):
    """A worker's request to prolong a grant. The answer is `Gone` or a `Go` without `remaining` and `not_before_ms`."""

    lease: int
    grant: int
    holder: str


class Go(msgspec.Struct, frozen=True, tag_field="type", tag="go/1", omit_defaults=True):
    """An owner's answer: a new grant (to `Begin`) or a prolonged grant (to `Extend`), or the order to stop (`stop`).

    - `remaining`: in the answer to `Begin`, the URLs that are left to fetch, by their index in the shard (from 0). In
      the answer to `Extend` the list is empty: the worker goes on with the URLs that it still has.
    - `expires_ms`: how long the grant lasts after the worker sent its request. Time in machine suspend counts as well.
    - `not_before_ms`: no request may start earlier than this many ms after the answer arrived.
    - `delay_ms`: the host's present delay. The longer one of this delay and the shard's delay applies.
    - `stop`: True if the worker may fetch nothing more, and must return the remaining URLs.
    """

    grant: int
    expires_ms: int
    not_before_ms: int = 0
    remaining: list[int] = []
    delay_ms: int = 0
    stop: bool = False


class Wait(msgspec.Struct, frozen=True, tag_field="type", tag="wait/1", omit_defaults=True):
    """An owner's answer: no grant yet. The worker returns the shard to the broker for a redelivery after `ms`."""

    ms: int


class Gone(msgspec.Struct, frozen=True, tag_field="type", tag="gone/1", omit_defaults=True):
    """An owner's answer: the lease no longer exists. The worker acknowledges the shard to the broker and drops it."""


class Superseded(msgspec.Struct, frozen=True, tag_field="type", tag="superseded/1", omit_defaults=True):
    """An owner's answer: a later delivery of the shard has the lease. The worker does not ack or nak this delivery."""


# --- reports: worker, seeder, operator -> owner -----------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of a stored response in the archive: the segment (WARC file), and offset and length in bytes."""

    segment: str
    offset: int
    length: int


class LeftOut(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The links of a page that were excluded for one reason: their number `n`, and a few examples (truncated URLs).

    `reason` is a value of shared.domain.crawl.scope.ExclusionReason, or a name in shared.domain.explain.excluded_links.
    """

    reason: str
    n: int
    examples: list[str] = []


class UrlOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of one URL of a shard.

    - `end`: a shared.domain.frontier.states.UrlEnd value; `status`: the HTTP status, or 0.
    - `reason`: a failure kind, an exclusion reason, or empty.
    - `digest`: the payload's sha1 (20 bytes), or empty; `size`: the payload in bytes.
    - `links`: the number of outlinks in scope or within `scope.extra_hops`.
    - `found`: the number of all outlinks (-1: unknown). `left_out`: how many outlinks each reason excluded.
    - `retry_after_ms`: the requested wait (-1: none); `entries`: how many a sitemap or feed has (-1: it is neither).
    - `truncated`: why the body is incomplete, empty if it is complete. It is a shared.domain.web.fetch.Truncation
      value, `decoded` if the decompressed body exceeds its limit, or `undecodable` if decompression failed.
    - `mark`: a hash of the page's text or items if the crawl compares them, else empty.
    - `not_indexed`: the shared.domain.web.robots.NotIndexed value that keeps the page out of lists, or empty.
    """

    fingerprint: bytes
    end: int
    at_ms: int
    status: int = 0
    reason: str = ""
    detail: str = ""
    latency_ms: int = 0
    size: int = 0
    mime: str = ""
    digest: bytes = b""
    record: Record | None = None
    etag: str | None = None
    last_modified: str | None = None
    location: str | None = None
    title: str | None = None
    links: int = 0
    retry_after_ms: int = -1
    truncated: str = ""
    found: int = -1
    left_out: list[LeftOut] = []
    mark: bytes = b""
    entries: int = -1
    not_indexed: str = ""


class HostNote(msgspec.Struct, frozen=True, array_like=True):
    """What a visit measured of its host. `crawl_delay_ms`: robots.txt requires this delay (0: none; -1: not read).

    `failure` (in words: `detail`): why the host's robots.txt is unreachable, such as `robots_dns`. Empty: no failure.
    If only http or only https fails, `failure` is empty too: the outcomes of that origin's URLs have the reason.
    """

    crawl_delay_ms: int = -1
    latency_ms: int = 0
    ip: str = ""
    failure: str = ""
    detail: str = ""
    retry_after_ms: int = -1


class Outcome(msgspec.Struct, frozen=True, tag_field="type", tag="outcome/1", omit_defaults=True):
    """A worker's report on one lease: what became of some of its URLs.

    - `not_attempted`: fingerprints of URLs that return to the queue.
    - `final`: the visit has ended, so the owner ends the lease.
    - `quiet_ms`: the time from the end of the last response to this message (-1: no request was made).
    - `failed`: an error of the worker itself ended the visit. The owner ends the grant now and counts it as expired.
    """

    lease: int
    crawl: int
    grant: int
    host_id: int
    results: list[UrlOutcome] = []
    not_attempted: list[bytes] = []
    final: bool = False
    quiet_ms: int = -1
    note: HostNote | None = None
    failed: bool = False


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A discovered URL. `hops`: how many redirects, sitemap indexes or stylesheets in a row led to it.

    A seed or an ordinary link of a page has 0 `hops`. `kind` is what the URL was found as (a value of
    shared.domain.frontier.states.UrlKind). `extra` is the number of extra hops on the way to the URL.
    """

    url: str
    depth: int
    hops: int = 0
    priority: int = 0
    kind: int = 0
    extra: int = 0


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """URLs and the page on which they were found. Seeds have no page: `host_id` is 0, and `fingerprint` is empty."""

    host_id: int
    fingerprint: bytes
    links: list[Link]


class Discoveries(msgspec.Struct, frozen=True, tag_field="type", tag="discoveries/1", omit_defaults=True):
    """URLs found or seeded, all of one crawl and one partition, for the partition's owner.

    A sender (`producer`) numbers its messages for a crawl and partition: `n` is 1, 2, 3, ... Message n + 1 is published
    only after message n was acknowledged. So the owner can drop repeats and detect gaps.

    - `origins`: the URLs, grouped by the page on which they were found. Seeds are grouped by their labels and source.
    - `spec`: the revision of the crawl's spec by which the sender decided which links to send.
    - `total`: the number of URLs in the messages 1 to `n` of this producer, for the same crawl and partition.
    - `contexts`: labels and source of the seeds that led to the origins, one entry for each distinct combination.
    - `context_of`: for each origin, which entry of `contexts` belongs to it (1: the first entry, 0: none).
    - `lastmods`: for each origin a list: when each of its links last changed, as a sitemap or feed says (Unix seconds,
      0: unknown). Zeros at the end of a list may be left out. `lastmods` is empty if all times are unknown.
    - `of_set`: the URLs are seeds that were added to a seed set.
    """

    crawl: int
    spec: int
    producer: str
    n: int
    total: int
    origins: list[Origin]
    contexts: list[SeedContext] = []
    context_of: list[int] = []
    lastmods: list[list[int]] = []
    of_set: bool = False


KEPT_BYTES: Final = 64 * 1024
"""How many bytes of an unreadable shard are kept as evidence."""


class ShardUnreadable(msgspec.Struct, frozen=True, tag_field="type", tag="unreadable/1", omit_defaults=True):
    """A worker's report that it could not decode a shard. The worker acks the shard once this report is stored.

    - `pool`, `host_id`, `slot`, `sequence`: where the shard was queued, and its sequence in the pool's stream.
    - `size`, `data`: the shard's number of bytes, and its first bytes (at most KEPT_BYTES).
    """

    pool: str
    host_id: int
    slot: int
    sequence: int
    worker: str
    reason: str
    size: int
    data: bytes


class Command(msgspec.Struct, frozen=True, tag_field="type", tag="command/1", omit_defaults=True):
    """An operator's command (shared.domain.frontier.commands). A partition's owner applies each once, in order."""

    id: str
    crawl: int
    kind: str
    args: dict[str, Any] = {}


# --- status: no guarantee depends on these ----------------------------------------------------------------------------


class WorkerStatus(msgspec.Struct, frozen=True, tag_field="type", tag="worker/1", omit_defaults=True):
    """A worker's load and state, sent about every second.

    - `visits`, `busy`: how many visits the worker can have at once, and how many it has.
    - `pages`, `bytes`: how many responses it has archived since its start, and the bytes of their bodies.
    - `pulling`: the worker takes further visits; `in_flight`: the number of requests in progress.
    - `config`: the revision of the hot configuration. `pressure`: the resources that are nearly full.
    - `saturated`: at least as many visits wait for a request slot as there are slots.
    """

    worker: str
    pool: str
    visits: int
    busy: int
    pulling: bool = True
    pid: int = 0
    pages: int = 0
    bytes: int = 0
    in_flight: int = 0
    uptime_ms: int = 0
    version: str = ""
    draining: bool = False
    config: int = 0
    pressure: tuple[Pressure, ...] = ()
    saturated: bool = False

    @property
    def free(self) -> int:
        """The number of further visits that the worker can take now, 0 if it is not `pulling` or is `saturated`."""
        return max(0, self.visits - self.busy) if self.pulling and not self.saturated else 0


class MasterStatus(msgspec.Struct, frozen=True, tag_field="type", tag="master/1", omit_defaults=True):
    """A master's load and state, sent about every second and when it changes.

    - `partitions`, `shards`: how many partitions the master owns, and how many of their URL shards are leased.
    - `config`: the revision of the hot configuration that the master uses.
    - `pressure`: the resources that are nearly full. The master dispatches nothing because of them.
    """

    master: str
    partitions: int
    leading: bool = False
    draining: bool = False
    shards: int = 0
    uptime_ms: int = 0
    config: int = 0
    pressure: tuple[Pressure, ...] = ()


class HostProgress(msgspec.Struct, frozen=True, array_like=True):
    """A host that a crawl fetches now: its last latency, its queued URLs, and how long it is still blocked."""

    host: str
    latency_ms: int
    queued: int = 0
    blocked_ms: int = 0


class HostWaiting(msgspec.Struct, frozen=True, array_like=True):
    """A host that gets no request for the next `wait_ms`: a shared.domain.explain.waits.HostWait with times in ms."""

    host: str
    reason: str
    wait_ms: int
    urls: int
    delay_ms: int = 0
    cause: str = ""
    given_up_ms: int = -1
    asked: bool = False


class Progress(msgspec.Struct, frozen=True, tag_field="type", tag="progress/1", omit_defaults=True):
    """A crawl's progress. The master sends it about twice a second, and when the crawl finishes.

    - `counters`: the fields of shared.domain.frontier.store_model.Counters.
    - `tallies`: kind -> key -> count (kinds: status, failed, excluded).
    - `state`: a CrawlState; `active_ms`: how long the crawl was worked on, over all runs.
    - `waiting`: some of the hosts that wait; `hosts_waiting`: the number of all hosts that wait.
    - `standing`: the crawl is at a standstill. It makes no request, because each host that has URLs must wait.
    - `hosts_left_ms`: the time that the slowest host needs for its URLs (-1: unknown).
    """

    crawl: int
    name: str
    revision: int
    state: str
    finished_reason: str | None = None
    counters: dict[str, int] = {}
    tallies: dict[str, dict[str, int]] = {}
    active_ms: int = 0
    hosts_in_motion: int = 0
    hosts_known: int = 0
    leases: int = 0
    reports_pending: int = 0
    slowest: list[HostProgress] = []
    workers: list[WorkerStatus] = []
    dead_letters: int = 0
    alarms: list[str] = []
    waiting: list[HostWaiting] = []
    hosts_waiting: int = 0
    standing: bool = False
    hosts_left_ms: int = -1


Report = Outcome | Command | ShardUnreadable
Answer = Go | Wait | Gone | Superseded
Question = Begin | Extend
Message = UrlShard | Question | Answer | Report | Discoveries | WorkerStatus | MasterStatus | Progress

encode: "Final[Callable[[Message], bytes]]" = msgspec.msgpack.Encoder().encode
"""Return the message as MessagePack bytes, with its type tag."""


def decoder(kind: Any, decode: Callable[..., Any] = msgspec.msgpack.Decoder) -> Callable[[bytes], Any]:
    """Return a function that decodes bytes as a message of the type `kind`, and raises Malformed if they are not one.

    `decode` is the msgspec class of the decoder: for MessagePack or for JSON.
    """
    read = decode(kind).decode

    def decoded(data: bytes) -> Any:
        try:
            return read(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            # Invalid UTF-8 and endless nesting raise no msgspec error.
            raise Malformed(str(error)) from error

    return decoded


decode_shard: Final[Callable[[bytes], UrlShard]] = decoder(UrlShard)
decode_question: Final[Callable[[bytes], Question]] = decoder(Question)
decode_answer: Final[Callable[[bytes], Answer]] = decoder(Answer)
decode_report: Final[Callable[[bytes], Report]] = decoder(Report)
"""Decode an Outcome, Command or ShardUnreadable. Raise Malformed if the bytes are none of them."""

decode_discoveries: Final[Callable[[bytes], Discoveries]] = decoder(Discoveries)
decode_status: Final[Callable[[bytes], WorkerStatus]] = decoder(WorkerStatus)
decode_master_status: Final[Callable[[bytes], MasterStatus]] = decoder(MasterStatus)
decode_progress: Final[Callable[[bytes], Progress]] = decoder(Progress)
