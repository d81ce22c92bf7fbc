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
    """The bytes are no valid message. A reader makes them a dead letter and continues."""


# --- visits: owner -> worker ------------------------------------------------------------------------------------------


class ShardUrl(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One URL of a shard. `attempt` counts from 1; `hops` counts redirects since the last page or seed.

    A stored page has the sha1 of its payload (`digest`), and when its fetch began (`stored_ms`, Unix ms). An equal
    payload is not stored again. With `etag` or `last_modified` the request is conditional.
    `kind`: a shared.domain.frontier.states.UrlKind value. `extra`: how many hops beyond the scope it is.
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


class UrlShard(msgspec.Struct, frozen=True, tag_field="type", tag="shard/1", omit_defaults=True):
    """URLs of one host of one crawl, leased together and sent to a worker: at most 500.

    `spec` is the spec's revision that the shard was made under. A worker that knows only an older one waits. It never
    takes "absent" for "deleted". `delay_ms` is the wait between the end of a response and the start of the next
    request. `contexts`: the distinct contexts of seeds that its URLs have; `context_of`: the number of each URL's
    context, from 1, 0 for none. Both are empty if no URL has one.
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


# --- grants: worker <-> owner, request and reply ----------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, tag_field="type", tag="begin/1", omit_defaults=True):
    """A worker's request for a grant to fetch the rest of a lease. `holder` names the visit; a repeat is harmless."""

    lease: int
    delivery: int
    holder: str


class Extend(msgspec.Struct, frozen=True, tag_field="type", tag="extend/1", omit_defaults=True):
    """A worker's request to prolong a grant. The answer is `Gone`, or `Go` without `remaining` and `not_before_ms`."""

    lease: int
    grant: int
    holder: str


class Go(msgspec.Struct, frozen=True, tag_field="type", tag="go/1", omit_defaults=True):
    """An owner's answer: a grant to fetch the URLs at the positions `remaining` of the shard.

    The first request may start `not_before_ms` after this answer arrived. None may start later than `expires_ms` after
    the *question was sent*, by the worker's clock that counts suspended time. `delay_ms` is the host's present delay;
    the longer of it and the shard's applies. `stop`: start no further request, and hand back what is left.
    """

    grant: int
    expires_ms: int
    not_before_ms: int = 0
    remaining: list[int] = []
    delay_ms: int = 0
    stop: bool = False


class Wait(msgspec.Struct, frozen=True, tag_field="type", tag="wait/1", omit_defaults=True):
    """An owner's answer: no grant yet. The worker hands the shard back, so that it is delivered again after `ms`."""

    ms: int


class Gone(msgspec.Struct, frozen=True, tag_field="type", tag="gone/1", omit_defaults=True):
    """An owner's answer: the lease is over. The worker acknowledges the shard to the broker and drops it."""


class Superseded(msgspec.Struct, frozen=True, tag_field="type", tag="superseded/1", omit_defaults=True):
    """An owner's answer: a later delivery of the shard has its lease. The worker neither acks nor naks this one."""


# --- reports: worker, seeder, operator -> owner -----------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the archive has a stored response: segment (WARC file) name, offset and length in bytes."""

    segment: str
    offset: int
    length: int


class LeftOut(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Links of a page excluded for one reason: their number, and the truncated URLs of some.

    `reason` is a shared.domain.crawl.scope.ExclusionReason value, or one of shared.domain.explain.excluded_links.
    """

    reason: str
    n: int
    examples: list[str] = []


class UrlOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of one URL of a shard.

    - `end`: a shared.domain.frontier.states.UrlEnd value; `status`: the HTTP status or 0.
    - `reason`: a failure kind, an exclusion reason or empty.
    - `digest`: the payload's sha1 (20 bytes) or empty; `size`: the payload in bytes.
    - `links`: the outlinks in scope; `found`: all outlinks of the page (-1: not counted); `left_out`: those excluded.
    - `retry_after_ms`: what the server requested (-1: nothing).
    - `entries`: the entries of a sitemap or feed; -1 for everything else.
    - `truncated`: why the body is incomplete, empty if it is whole. It is a shared.domain.web.fetch.Truncation value,
      `decoded` if only a part was read, or `undecodable` if its coding breaks off.
    - `mark`: a hash of the page's text or items, if the crawl compares them; else empty.
    - `not_indexed`: a shared.domain.web.robots.NotIndexed value if a page belongs in no list or export, else empty.
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
    """What a visit measured of its host. `crawl_delay_ms` is that of robots.txt (-1: none).

    `failure` is set if the host itself could not be visited (robots.txt unreachable, name resolution, connection, 429,
    503). It is a FailureKind or text like `http_503`. No URL's attempt is used up by it.
    """

    crawl_delay_ms: int = -1
    latency_ms: int = 0
    ip: str = ""
    failure: str = ""
    detail: str = ""
    retry_after_ms: int = -1


class Outcome(msgspec.Struct, frozen=True, tag_field="type", tag="outcome/1", omit_defaults=True):
    """A worker's report on one lease: what became of its URLs, of some of them or of all (`final`).

    The URLs in `not_attempted` (fingerprints) return to the queue. `quiet_ms` is the time from the end of the last
    response to the making of this message (-1: no request was made): a lower bound of the host's idle time. `failed`:
    the visit ended by an error of the worker's own. Its grant ends now, and counts as expired.
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
    """A discovered URL. `hops`: how many redirects in a row led to it (0: an ordinary link or a seed).

    `kind`: what it was found as, a shared.domain.frontier.states.UrlKind value. `extra`: how many hops beyond the scope
    it is.
    """

    url: str
    depth: int
    hops: int = 0
    priority: int = 0
    kind: int = 0
    extra: int = 0


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A page, named by `host_id` and `fingerprint`, with the links found on it. For seeds, `fingerprint` is empty."""

    host_id: int
    fingerprint: bytes
    links: list[Link]


class Discoveries(msgspec.Struct, frozen=True, tag_field="type", tag="discoveries/1", omit_defaults=True):
    """URLs found or seeded, all of one crawl and one partition, for the partition's owner.

    A `producer` numbers its messages per (crawl, partition) from 1 (`n`) and publishes n + 1 only after n was
    acknowledged. `total` is its running count of URLs, this message included. So the owner can drop a repeat, detect a
    gap, and compute `accepted` from the messages alone. `contexts`: the distinct contexts of seeds that its origins
    have; `context_of`: the number of each origin's context, from 1, 0 for none.

    `lastmods`: for each origin, when its links changed last by a sitemap or feed, in the order of its links (Unix
    seconds, 0: not known). A list may be shorter than the links. Empty if nothing is known.

    `of_set`: they are seeds that a seed set has got.
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
    """A report that a worker could not read a shard. It acknowledges the shard once this report is stored.

    `pool`, `host_id` and `slot` name its place, `sequence` its number in the pool's stream. `reason` describes the
    defect. `data` is the beginning of its `size` bytes.
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
    """An operator's command to a partition's owner (shared.domain.frontier.commands), applied in order and once."""

    id: str
    crawl: int
    kind: str
    args: dict[str, Any] = {}


# --- status: no guarantee depends on these ----------------------------------------------------------------------------


class WorkerStatus(msgspec.Struct, frozen=True, tag_field="type", tag="worker/1", omit_defaults=True):
    """A worker's load and state, sent about every second: how many `visits` it can hold, and how many it holds.

    `pulling`: it takes further visits. `in_flight`: requests under way. `config`: the revision of its hot
    configuration. `pressure`: the resources that are nearly full, so that it takes no visit. `saturated`: its requests
    use every slot, and as many wait for one.
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
        """The number of further visits that the worker can take now, 0 while it takes none."""
        return max(0, self.visits - self.busy) if self.pulling and not self.saturated else 0


class MasterStatus(msgspec.Struct, frozen=True, tag_field="type", tag="master/1", omit_defaults=True):
    """A master's load and state, sent about every second and when it changes.

    `partitions`: how many it believes to own. `shards`: how many URL shards are leased from them. `config`: the
    revision of its hot configuration. `pressure`: the resources that are nearly full, so that it dispatches nothing.
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
    """A host of a crawl in work: the latency of its last fetch, its queued URLs, and how long it is still blocked."""

    host: str
    latency_ms: int
    queued: int = 0
    blocked_ms: int = 0


class HostWaiting(msgspec.Struct, frozen=True, array_like=True):
    """A host that is not asked for `wait_ms` more: shared.domain.explain.waits.HostWait, with times in ms."""

    host: str
    reason: str
    wait_ms: int
    urls: int
    delay_ms: int = 0
    cause: str = ""
    given_up_ms: int = -1
    asked: bool = False


class Progress(msgspec.Struct, frozen=True, tag_field="type", tag="progress/1", omit_defaults=True):
    """A crawl's progress. The master sends it about twice a second, and once more when the crawl finishes.

    - `counters`: the fields of shared.domain.frontier.store_model.Counters.
    - `tallies`: kind -> key -> count (kinds: status, failed, excluded).
    - `state`: a CrawlState; `active_ms`: the time the crawl was worked on, over all runs.
    - `waiting`: the first of the `hosts_waiting` hosts that wait; `standing`: no host is being fetched.
    - `hosts_left_ms`: the time that the slowest host needs (-1: unknown).
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
    """Return a function that returns the message of this kind in some bytes, or raises Malformed if they hold none.

    `decode` is the class of the decoder: of MessagePack or of JSON.
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
"""Decode a message of an outcome subject."""

decode_discoveries: Final[Callable[[bytes], Discoveries]] = decoder(Discoveries)
decode_status: Final[Callable[[bytes], WorkerStatus]] = decoder(WorkerStatus)
decode_master_status: Final[Callable[[bytes], MasterStatus]] = decoder(MasterStatus)
decode_progress: Final[Callable[[bytes], Progress]] = decoder(Progress)
