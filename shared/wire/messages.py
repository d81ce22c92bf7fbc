"""The messages between masters and workers, as versioned msgspec structs.

Every message is one msgpack map with a `type` tag that ends in its version (`shard/1`). Unknown fields are ignored, so
a newer peer may add some; a message that does not decode is `Malformed`, which the reader turns into a dead letter.
Inner structs are arrays: fields may only be appended to them, each with a default. Durations are milliseconds; no
message carries a deadline on anyone's wall clock. `at_ms` fields are Unix milliseconds and say only when something
happened.
"""

from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")


class Malformed(ValueError):
    """Bytes that are no message of ours: a dead letter, never a reason to stop."""


# --- visits: owner -> worker ------------------------------------------------------------------------------------------


class ShardUrl(msgspec.Struct, frozen=True, array_like=True):
    """One URL of a shard. `attempt` counts from 1; `hops` counts redirects since the last page or seed."""

    url: str
    depth: int
    attempt: int = 1
    hops: int = 0
    etag: str | None = None
    last_modified: str | None = None


class Shard(msgspec.Struct, frozen=True, tag_field="type", tag="shard/1", omit_defaults=True):
    """URLs of one host of one crawl, leased together: at most 500.

    `spec` is the revision the shard was made under; a worker whose view is older waits or asks, and never takes
    "absent" for "deleted". `delay_ms` is the wait between the end of a response and the start of the next request.
    """

    lease: int
    crawl: int
    spec: int
    host_id: int
    host: str
    slot: int
    delay_ms: int
    urls: list[ShardUrl]


# --- grants: worker <-> owner, request and reply ----------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, tag_field="type", tag="begin/1", omit_defaults=True):
    """May I fetch what is left of this lease?

    `holder` names the asking visit; asking again with the same is harmless.
    """

    lease: int
    delivery: int
    holder: str


class Extend(msgspec.Struct, frozen=True, tag_field="type", tag="extend/1", omit_defaults=True):
    """May I go on? Answered `Go` with nothing in `remaining` and no `not_before_ms`, or `Gone`."""

    lease: int
    grant: int
    holder: str


class Go(msgspec.Struct, frozen=True, tag_field="type", tag="go/1", omit_defaults=True):
    """Yes: fetch the URLs at these positions of the shard.

    The first request may start `not_before_ms` after this answer arrived; none may start later than `expires_ms` after
    the *question was sent* (the asker's clock that counts suspended time). `delay_ms` is the host's delay as it is now;
    the longer one of it and the shard's holds. `stop`: start no further request, and hand back what is left.
    """

    grant: int
    expires_ms: int
    not_before_ms: int = 0
    remaining: list[int] = []
    delay_ms: int = 0
    stop: bool = False


class Wait(msgspec.Struct, frozen=True, tag_field="type", tag="wait/1", omit_defaults=True):
    """Not yet: hand the message back and let it return after `ms`."""

    ms: int


class Gone(msgspec.Struct, frozen=True, tag_field="type", tag="gone/1", omit_defaults=True):
    """The lease is over: acknowledge the message and drop it."""


class Superseded(msgspec.Struct, frozen=True, tag_field="type", tag="superseded/1", omit_defaults=True):
    """A later delivery holds this lease: leave the message alone."""


# --- reports: worker, seeder, operator -> owner -----------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Where the response record lies: segment name, offset and length in bytes."""

    segment: str
    offset: int
    length: int


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """Links of a page that were left out for one reason: how many, and URLs of some of them, cut to bounds.

    `reason` is a shared.domain.scope.ExclusionReason value, or one of shared.domain.left_out.
    """

    reason: str
    n: int
    examples: list[str] = []


class UrlOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one URL.

    `end` is a shared.domain.outcome.End value, `status` the HTTP status or 0, `reason` a failure kind, exclusion reason
    or empty, `digest` the payload's sha1 (20 bytes) or empty, `size` the payload in bytes, `links` the outlinks in
    scope, `retry_after_ms` what the server asked for (-1: nothing). `truncated` says why the body is not whole: a
    shared.domain.fetch.Truncation value, `decoded` if it was read in part only, or `undecodable` if its coding breaks
    off; empty if it is whole. `found` counts all outlinks of a page (-1: not counted), `left_out` those not taken.
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


class HostNote(msgspec.Struct, frozen=True, array_like=True):
    """What a visit learnt of its host.

    `crawl_delay_ms` is robots' (-1: none said). `failure` is set when the host itself could not be visited (robots
    unreachable, resolution, connection, 429, 503): a FailureKind or `http_503`-like text; nobody's attempt is used up.
    """

    crawl_delay_ms: int = -1
    latency_ms: int = 0
    ip: str = ""
    failure: str = ""
    detail: str = ""
    retry_after_ms: int = -1


class Outcome(msgspec.Struct, frozen=True, tag_field="type", tag="outcome/1", omit_defaults=True):
    """Results of one lease, in part or (`final`) whole; `not_attempted` go back to the queue.

    `quiet_ms` is the time from the end of the last response to the making of this message (-1: no request was made):
    a lower bound of the host's rest, whenever the message is applied. `failed`: the visit ended by an error of the
    worker's own. Its grant ends now, and counts as one that expired.
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


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A discovered URL. `hops` > 0: found as a redirect's target."""

    url: str
    depth: int
    hops: int = 0
    priority: int = 0


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Links found on one page (`fingerprint` empty: seeds)."""

    host_id: int
    fingerprint: bytes
    links: list[Link]


class Discoveries(msgspec.Struct, frozen=True, tag_field="type", tag="discoveries/1", omit_defaults=True):
    """URLs found or seeded, all of one partition and one crawl.

    A `producer` numbers its messages per (crawl, partition) from 1 (`n`) and publishes n + 1 only after n was
    acknowledged; `total` is its running count of URLs, this message included. So the owner drops a repeat, sees a gap,
    and `accepted` is known from the messages themselves.
    """

    crawl: int
    spec: int
    producer: str
    n: int
    total: int
    origins: list[Origin]


KEPT_BYTES: Final = 64 * 1024
"""Of a shard that cannot be read: so much of it is kept as evidence."""


class Unreadable(msgspec.Struct, frozen=True, tag_field="type", tag="unreadable/1", omit_defaults=True):
    """A shard that its worker could not read, and acknowledges once this is stored.

    `pool`, `host_id`, `slot` name the place where it stood, `sequence` its number in the pool's stream. `reason` says
    what is wrong with it. `data` is its beginning, of `size` bytes.
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
    """An operator's verb, applied in order and once per partition.

    `id` is unique; kinds are in shared.domain.command.
    """

    id: str
    crawl: int
    kind: str
    args: dict[str, Any] = {}


# --- status: no promise rests on these --------------------------------------------------------------------------------


class WorkerStatus(msgspec.Struct, frozen=True, tag_field="type", tag="worker/1", omit_defaults=True):
    """A worker's load, sent about every second: visits it can hold, holds, and whether it still pulls.

    `in_flight`: requests under way. `config`: the revision of the hot configuration it runs. `short`: of what it has
    too little to take a visit, in words.
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
    short: str = ""


class MasterStatus(msgspec.Struct, frozen=True, tag_field="type", tag="master/1", omit_defaults=True):
    """A master's load, sent about every second and when it changes: the partitions it owns by its own account, URL
    shards that are out of them, the revision of the hot configuration it runs. `held`: why it sends nothing out."""

    master: str
    partitions: int
    leading: bool = False
    draining: bool = False
    shards: int = 0
    uptime_ms: int = 0
    config: int = 0
    held: str = ""


class HostProgress(msgspec.Struct, frozen=True, array_like=True):
    """A host in motion: its name, the latency of its last fetch, what is queued, how long it is still blocked."""

    host: str
    latency_ms: int
    queued: int = 0
    blocked_ms: int = 0


class HostWaiting(msgspec.Struct, frozen=True, array_like=True):
    """A host that waits `wait_ms`: shared.domain.waits.HostWait, with times in ms."""

    host: str
    reason: str
    wait_ms: int
    urls: int
    delay_ms: int = 0
    cause: str = ""
    given_up_ms: int = -1
    asked: bool = False


class Progress(msgspec.Struct, frozen=True, tag_field="type", tag="progress/1", omit_defaults=True):
    """How a crawl stands, told about twice a second by the master and once more when it finishes.

    `counters` are shared.domain.ledger.Counters' fields, `tallies` kind -> key -> count (kinds: status, failed,
    excluded). `state` is a CrawlState; `active_ms` the time the crawl was worked on, over all runs. `waiting`: the
    first of the `hosts_waiting` hosts that wait; `standing`: no host is asked now. `hosts_left_ms`: the time that the
    slowest host needs, -1 where it is not known.
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


Report = Outcome | Command | Unreadable
Answer = Go | Wait | Gone | Superseded
Question = Begin | Extend
Message = (
    Shard
    | Begin
    | Extend
    | Go
    | Wait
    | Gone
    | Superseded
    | Outcome
    | Discoveries
    | Command
    | Unreadable
    | WorkerStatus
    | MasterStatus
    | Progress
)

_encode = msgspec.msgpack.Encoder().encode
_shard = msgspec.msgpack.Decoder(Shard)
_question: "msgspec.msgpack.Decoder[Question]" = msgspec.msgpack.Decoder(Question)
_answer: "msgspec.msgpack.Decoder[Answer]" = msgspec.msgpack.Decoder(Answer)
_report: "msgspec.msgpack.Decoder[Report]" = msgspec.msgpack.Decoder(Report)
_discoveries = msgspec.msgpack.Decoder(Discoveries)
_progress = msgspec.msgpack.Decoder(Progress)
_status = msgspec.msgpack.Decoder(WorkerStatus)
_master = msgspec.msgpack.Decoder(MasterStatus)


def encode(message: Message) -> bytes:
    """The message's bytes."""
    return _encode(message)


def decode_shard(data: bytes) -> Shard:
    """A message of a visits stream. Raises Malformed."""
    return _decoded(_shard, data)


def decode_question(data: bytes) -> Question:
    """What a worker asks an owner. Raises Malformed."""
    return _decoded(_question, data)


def decode_answer(data: bytes) -> Answer:
    """What an owner answers. Raises Malformed."""
    return _decoded(_answer, data)


def decode_report(data: bytes) -> Report:
    """A message of an outcome subject. Raises Malformed."""
    return _decoded(_report, data)


def decode_discoveries(data: bytes) -> Discoveries:
    """A message of a discovery subject. Raises Malformed."""
    return _decoded(_discoveries, data)


def decode_status(data: bytes) -> WorkerStatus:
    """A worker's status. Raises Malformed."""
    return _decoded(_status, data)


def decode_master_status(data: bytes) -> MasterStatus:
    """A master's status. Raises Malformed."""
    return _decoded(_master, data)


def decode_progress(data: bytes) -> Progress:
    """A master's progress. Raises Malformed."""
    return _decoded(_progress, data)


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", data: bytes) -> "T":
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # Text that is no UTF-8 and nesting without end are not msgspec's own errors.
        raise Malformed(str(error)) from error
