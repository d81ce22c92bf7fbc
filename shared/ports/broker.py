"""The port to the message broker (NATS): visits out, reports and items in, questions and answers between.

Errors:
- Transient: the broker is away or did not answer in time. The message may have been stored; publish it again with the
  same message id.
- Refused: a bounded subject is full.
- Permanent: the broker will never accept the message.
- Unusable: the broker refuses this client for good.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, NamedTuple, Protocol, get_args

from msgspec import Struct

from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import CrawlId, HostId, Partition


class Backlog(Protocol):
    """Counts the reports of all partitions that their owners have not applied yet."""

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        """Return the number of stored reports after these positions, and the age of the oldest by the broker's own
        clock.

        Zero is exact. For a partition with unapplied reports, applied reports not yet purged count too. Raise Transient
        if the broker is away.
        """


ReportKind = Literal["outcome", "discovery"]
"""The two kinds of a partition's reports; outcomes are read first, and commands with them."""

KINDS: Final[tuple[ReportKind, ...]] = get_args(ReportKind)


class Delivered(Struct, frozen=True):
    """A message read from a stream: its sequence, the broker's time of storing it (Unix ns), its bytes and subject."""

    sequence: int
    at_ns: int
    data: bytes
    subject: str = ""


class StreamState(Struct, frozen=True):
    """The state of the stream of reports: its creation time (Unix ns) and its last sequence over all subjects."""

    created_ns: int
    last_sequence: int


class ItemsState(Struct, frozen=True):
    """The state of the stream of items: its creation time (Unix ns), its oldest kept sequence and its last one.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class QueuedVisit(NamedTuple):
    """The place of a URL shard in a pool's queue: a host and one of its slots, which hold one shard at a time."""

    pool: str
    host_id: HostId
    slot: int


class VisitOrigin(Struct, frozen=True):
    """Where a delivered URL shard is queued: its place, its partition, and its sequence in the pool's stream."""

    partition: Partition
    place: QueuedVisit
    sequence: int


class StoredVisit(Struct, frozen=True):
    """A URL shard in its pool's queue. A later shard of the same host and slot has a greater sequence."""

    sequence: int
    data: bytes


class VisitMessage(Protocol):
    """A URL shard that the broker delivered to this worker. Exactly one of `ack` and `nak` settles it.

    Until then each `working` postpones its redelivery.
    """

    @property
    def data(self) -> bytes: ...

    @property
    def delivery(self) -> int:
        """How many times the broker has delivered this shard: 1 for the first delivery."""

    @property
    def origin(self) -> VisitOrigin | None:
        """Where the shard is queued; None if its subject does not have the form of a visit's subject."""

    async def ack(self) -> None:
        """Acknowledge the shard, so that it is not delivered again. Wait until the broker has confirmed. A repeat is
        harmless.

        After Transient the shard may be delivered again. A broker that was killed may have lost the delivery: it then
        never confirms, and delivers again, counting from 1.
        """

    async def nak(self, delay_s: float) -> None:
        """Hand the shard back, so that the broker delivers it again after `delay_s` seconds."""

    async def working(self) -> None: ...


class ReportReader(Protocol):
    """Reads one subject's reports (or all items) from a position on, in order, without end. It acknowledges nothing."""

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        """Return up to `max_count` messages. Wait up to `wait_s` seconds for the first only; return none if none came.

        Raise Transient while the broker is away; reading again continues without a gap or a repeat. Raise
        StreamReplaced once the stream is another one, or came back shorter: open a new reader.
        """

    async def purge(self, through: int) -> bool:
        """Delete the subject's messages up to and including sequence `through`.

        Return False, and delete nothing, while it is not certain that the stream is still the one that was read.
        """

    async def close(self) -> None: ...


class Broker(Protocol):
    """One connection to the broker, with all that masters and workers send and receive by it."""

    async def declare(self, pools: Sequence[str]) -> None:
        """Create or update the streams, consumers and buckets, also of `pools`. Safe to repeat; no message is lost."""

    def stores_nothing(self) -> bool:
        """Return True if the broker answers, but for a while stored nothing this process published to some stream."""

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        """Queue a URL shard durably. Return False (no error) if the previous one of this host slot is still queued."""

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        """Store a report durably. Return its sequence. A repeat with the same id within two minutes is dropped."""

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> int:
        """Store a command to the partition's owner durably, in order with the outcomes. Workers have no right to this.

        Return its sequence. A repeat with the same id within two minutes is dropped.
        """

    async def pull_visits(self, pool: str, max_count: int, wait_s: float) -> Sequence[VisitMessage]:
        """Return up to `max_count` URL shards of a pool. Wait up to `wait_s` seconds for the first only.

        Only one caller at a time may pull from a pool.
        """

    async def read_reports(
        self, partition: Partition, kind: ReportKind, after: int, at_ns: int | None = None
    ) -> ReportReader:
        """Return a reader of the reports of one kind after sequence `after`.

        `at_ns`: when the report at `after` was stored (Unix ns). Raise StreamReplaced if the present stream does not
        continue the one with that report (see `continues`). With None, do not compare.
        """

    async def reports_state(self) -> StreamState: ...

    async def last_report(self, partition: Partition, kind: ReportKind) -> int:
        """Return the sequence of the newest report of this kind for the partition, or 0 if there is none.

        Commands count as outcomes. Purged reports count too, as far as the broker still has the number.
        """

    async def continues(self, sequence: int, at_ns: int) -> bool:
        """Return True if the present stream of reports is the one in which the report at `sequence` was stored at
        `at_ns`.

        The stream is another one if that report has another time, or if an earlier sequence has a later time.
        """

    async def purge_reports(self, partition: Partition, kind: ReportKind, through: int) -> None:
        """Delete the partition's reports of this kind up to and including sequence `through`."""

    async def queued_visits(self, partition: Partition) -> Sequence[QueuedVisit]:
        """Return the places that the partition's queued URL shards occupy, in every pool that has a queue, used or not.

        At most 100,000 per pool, far more than dispatch sends out.
        """

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit | None:
        """Return the URL shard that is queued at `place` (a pool, a host and a slot of it) now, or None."""

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        """Return True if the broker has never delivered the URL shard in this place of a pool's queue.

        Its turn in the queue is then yet to come.
        """

    async def drop_visit(
        self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int | None = None
    ) -> None:
        """Delete a queued URL shard whose lease is gone. With `through`, only if its sequence is at most that."""

    async def pending_reports(self) -> int:
        """Return the number of reports in the broker, over all partitions. Applied ones count until they are purged."""

    async def fullness(self, kind: ReportKind) -> float:
        """Return how full the fullest partition is with reports of this kind: 0 is empty, 1 refuses further ones."""

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        """Store items durably. Return their sequence. A repeat with the same id within two minutes is dropped."""

    async def read_items(self, after: int) -> ReportReader:
        """Return a reader of all crawls' items stored after sequence `after`.

        Items that the stream no longer keeps are skipped: the sequences then have a gap.
        """

    async def items_state(self) -> ItemsState: ...

    async def ask(self, partition: Partition, data: bytes, wait_s: float) -> bytes:
        """Send a question to the partition's owner and return its answer. Raise Transient if none came in time."""

    def answer(
        self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]
    ) -> AbstractAsyncContextManager[None]:
        """During the `with` block, answer questions to the partition's owner by `reply` (None: send no answer)."""

    async def get_robots(self, key: str) -> bytes | None: ...

    async def put_robots(self, key: str, value: bytes) -> None: ...

    async def tell(self, subject: str, data: bytes) -> None:
        """Send a message to the processes that listen on the subject now. Nothing is stored."""

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield the messages that other processes `tell` on the subject. A slow listener loses the oldest."""

    async def close(self) -> None: ...
