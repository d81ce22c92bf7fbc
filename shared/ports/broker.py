"""The port to the message broker (NATS): URL shards to workers, reports and items from them, and requests to owners.

Errors:
- Transient: the broker is away or did not answer in time. The message may have been stored; publish it again with the
  same message id.
- Refused: the subject or stream is full.
- Permanent: the broker will never accept the message.
- Unusable: the broker refuses this client, and retries are no use.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, NamedTuple, Protocol, get_args

from msgspec import Struct

from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import CrawlId, HostId, Partition


class Backlog(Protocol):
    """Counts the reports in the broker that owners have not applied yet, over all partitions."""

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        """Return about how many reports are not applied yet, and the age of the oldest of these reports.

        - If all reports are applied, the number is 0.
        - Otherwise the number may be too high. It can include applied reports that the broker has not purged yet.

        `positions` maps a partition to the position up to which its reports are applied. The age is measured by the
        broker's clock. Raise Transient if the broker is away.
        """


ReportKind = Literal["outcome", "discovery"]
"""The two kinds of reports to a partition's owner. The owner reads outcomes before discoveries.

Operators' commands are in one sequence with the outcomes, and count as outcomes.
"""

KINDS: Final[tuple[ReportKind, ...]] = get_args(ReportKind)

TimedStream = Literal["reports", "items"]
"""A stream of which the reader notes the time of the last message that it read."""


class Delivered(Struct, frozen=True):
    """A message read from a stream: its sequence, the time when it was stored (Unix ns), its bytes and its subject."""

    sequence: int
    at_ns: int
    data: bytes
    subject: str = ""


class StreamState(Struct, frozen=True):
    """The state of the stream of reports: its creation time (Unix ns) and the sequence of its newest message."""

    created_ns: int
    last_sequence: int


class ItemsState(Struct, frozen=True):
    """The state of the stream of items: its creation time (Unix ns), and the sequences of its first and last message.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class QueuedVisit(NamedTuple):
    """The place of a URL shard in a pool's queue: the pool, the host, and one of the host's numbered slots.

    Each slot of a host contains at most one shard.
    """

    pool: str
    host_id: HostId
    slot: int


class VisitOrigin(Struct, frozen=True):
    """Where the broker stores a URL shard that it has delivered to a worker.

    - `place`: the pool, host and slot of the shard.
    - `sequence`: the number of the shard's message in the stream of the pool.
    """

    partition: Partition
    place: QueuedVisit
    sequence: int


class StoredVisit(Struct, frozen=True):
    """A URL shard as stored in its pool's queue. `sequence`: its number in the queue's stream."""

    sequence: int
    data: bytes


class VisitMessage(Protocol):
    """A URL shard that the broker delivered to this worker. The worker settles it by exactly one of `ack` and `nak`.

    Until it is settled, each call of `working` postpones the time at which the broker delivers it again.
    """

    @property
    def data(self) -> bytes: ...

    @property
    def delivery(self) -> int:
        """How many times the broker has delivered this shard: 1 for the first delivery."""

    @property
    def origin(self) -> VisitOrigin | None:
        """Where the shard is queued. None if the subject of the message is not that of a URL shard."""

    async def ack(self) -> None:
        """Acknowledge the shard, so that it is not delivered again, and wait until the broker confirms.

        Raise Transient if the broker does not confirm. The call may be repeated, but the shard may be delivered again.
        A broker that was killed may have forgotten the delivery. Then it never confirms, and delivers the shard again
        with `delivery` 1.
        """

    async def nak(self, delay_s: float) -> None:
        """Return the shard to the queue. The broker delivers it again after `delay_s` seconds."""

    async def working(self) -> None: ...


class ReportReader(Protocol):
    """Reads the messages of one subject or stream in order, starting after a position. It acknowledges nothing.

    Readers of a partition's reports and of the items have this protocol.
    """

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        """Return up to `max_count` messages in order.

        Wait up to `wait_s` seconds for the first; return none if none came. Raise Transient while the broker is away.
        The next call then continues without a gap or a repeat. Raise StreamReplaced if the stream was deleted and
        created again, or was restored to an earlier state. A new reader is needed then.
        """

    async def purge(self, through: int) -> bool:
        """Delete the messages of this reader's subjects up to and including sequence `through`.

        Return True if they are deleted. Return False, and delete nothing, if the broker's stream may have been replaced
        since this reader last checked it.
        """

    async def close(self) -> None: ...


class Broker(Protocol):
    """One connection to the broker. Masters and workers send and receive all their messages over it."""

    async def declare(self, pools: Sequence[str]) -> None:
        """Create or update all streams, consumers and buckets, including a queue for each of `pools`.

        It may be repeated. It never deletes URL shards or reports: raise Permanent if the broker could apply the
        settings only by deleting some.
        """

    def stores_nothing(self) -> bool:
        """Return True if publishes to a stream have failed for some seconds, although the broker is reachable."""

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        """Queue a URL shard durably in the pool's queue, at slot `slot` of the host. Return True if it is queued.

        Return False, and queue nothing, if the previous shard of this slot is still queued or delivered to a worker.
        """

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        """Store a report durably and return its sequence.

        A repeat with the same `message_id` within two minutes is not stored.
        """

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        """Store a command for the partition's owner durably, and return its sequence.

        Workers have no permission for this. The owner reads commands and outcomes in the order in which they were
        stored. A repeat with the same `message_id` within two minutes is not stored.
        """

    async def pull_visits(self, pool: str, max_count: int, wait_s: float) -> Sequence[VisitMessage]:
        """Return up to `max_count` URL shards of a pool.

        Wait up to `wait_s` seconds for the first; return none if none came. Calls for the same pool must not overlap.
        """

    async def read_reports(
        self, partition: Partition, kind: ReportKind, after: int, at_ns: int | None = None
    ) -> ReportReader:
        """Return a reader of a partition's reports of one kind after sequence `after`.

        Commands are read together with the outcomes.

        `at_ns`: the time when the report at sequence `after` was stored (Unix ns). With it, raise StreamReplaced if the
        stream was replaced since then: it was created again, or restored to an earlier state. None: do not check.
        """

    async def reports_state(self) -> StreamState: ...

    async def last_report(self, partition: Partition, kind: ReportKind) -> int:
        """Return the sequence of the partition's newest stored report of this kind, or 0 if none is stored.

        Commands count as outcomes. Purged reports do not count.
        """

    async def last_command(self, partition: Partition) -> int:
        """Return the sequence of the newest stored command to the partition's owner, or 0 if none is stored."""

    async def continues(self, sequence: int, at_ns: int, stream: TimedStream = "reports") -> bool:
        """Return True if the stream of reports, or of items, has not been replaced since `at_ns` (Unix ns).

        At this time the stream stored the message with the number `sequence`. Return False if the stream was created
        again, or restored to an earlier state.
        """

    async def purge_reports(self, partition: Partition, kind: ReportKind, through: int) -> None:
        """Delete the partition's reports of this kind up to and including sequence `through`."""

    async def queued_visits(self, partition: Partition) -> Sequence[QueuedVisit]:
        """Return the places (pool, host and slot) of all queued URL shards of the partition, in every pool's stream.

        Pools that are no longer configured are included. At most 100,000 places are returned for a pool.
        """

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit | None:
        """Return the URL shard that is queued at `place` (pool, host and slot) now, or None if the place is empty."""

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        """Return True if a URL shard is queued at `place` and the broker has not delivered it to any worker yet."""

    async def drop_visit(
        self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int | None = None
    ) -> None:
        """Delete the URL shard that is queued at slot `slot` of the host in a pool's queue.

        Do nothing if there is none. `through`: delete the shard only if its sequence is at most this number. None:
        delete it in any case.
        """

    async def pending_reports(self) -> int:
        """Return the number of reports in the broker, over all partitions.

        It includes applied reports until they are purged.
        """

    async def fullness(self, kind: ReportKind) -> float:
        """Return the number of reports of this kind in the fullest partition, divided by the limit for a partition.

        0 means that there are none. At 1 the broker refuses further ones.
        """

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        """Store a message with items of a crawl durably, and return its sequence.

        A repeat with the same `message_id` within two minutes is not stored.
        """

    async def read_items(self, after: int, at_ns: int | None = None) -> ReportReader:
        """Return a reader of the items of all crawls, starting after sequence `after`.

        `at_ns`: the time when the message at sequence `after` was stored (Unix ns), as in `read_reports`. 0: this time
        is not known, so the reader checks only from the next message on. None: do not check.

        The stream deletes old messages. The reader skips those that are gone, so the sequences may have gaps.
        """

    async def items_state(self) -> ItemsState: ...

    async def ask(self, partition: Partition, data: bytes, wait_s: float) -> bytes:
        """Send `data` as a request to the partition's owner, and return the owner's answer.

        Raise Transient if no master answers for the partition, or if no answer comes within `wait_s` seconds.
        """

    def answer(
        self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]
    ) -> AbstractAsyncContextManager[None]:
        """Answer the requests that `ask` sends to the partition's owner, until the `with` block ends.

        `reply` returns the answer for the bytes of a request. None: send no answer.
        """

    async def get_robots(self, key: str) -> bytes | None: ...

    async def put_robots(self, key: str, value: bytes) -> None: ...

    async def tell(self, subject: str, data: bytes) -> None:
        """Send a message to all processes that `listen` on the subject at this moment. The broker does not store it."""

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Subscribe to `subject` for the `with` block.

        The value of the block iterates over the messages sent by `tell`. If the caller reads too slowly, the oldest
        unread messages are dropped.
        """

    async def close(self) -> None: ...
