"""The port to the message broker: visits out, reports and items in, questions and answers between.

Errors:
- Transient: the broker is away or did not answer in time. The message may have been stored; publish it again with the
  same message id.
- Refused: a bounded subject is full.
- Permanent: the broker will never accept the message.
- Unusable: the broker refuses this client for good.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, get_args

from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import CrawlId, HostId, Partition


class Backlog(Protocol):
    """Reports of all partitions."""

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        """Return the number of reports after the positions, and the age of the oldest by the broker's own clock.

        Zero is exact. For a partition with unapplied reports, applied reports not yet purged count too. Raise Transient
        if the broker is away.
        """
        ...


ReportKind = Literal["outcome", "discovery"]
"""The two subjects of a partition; outcomes are read first."""

KINDS: Final[tuple[ReportKind, ...]] = get_args(ReportKind)


@dataclass(frozen=True, slots=True)
class Delivered:
    """A stored report: its stream sequence and the broker's time of storing it (Unix nanoseconds)."""

    sequence: int
    at_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of the reports stream: its creation time (Unix ns) and its last sequence over all subjects."""

    created_ns: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class ItemsState:
    """The state of the items stream: its creation time (Unix ns), its oldest kept sequence and its last one.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class QueuedVisit(NamedTuple):
    """A place in a pool's queue that a shard occupies, delivered or not."""

    pool: str
    host_id: HostId
    slot: int


@dataclass(frozen=True, slots=True)
class VisitOrigin:
    """Where a delivered shard is queued: its place, its partition, and its sequence in the pool's stream."""

    partition: Partition
    place: QueuedVisit
    sequence: int


@dataclass(frozen=True, slots=True)
class StoredVisit:
    """A shard in its queue. A later shard in the same place has a greater sequence."""

    sequence: int
    data: bytes


class VisitMessage(Protocol):
    """A delivered shard. Exactly one of ack and nak settles it. Until then `working` prevents its redelivery."""

    @property
    def data(self) -> bytes: ...

    @property
    def delivery(self) -> int:
        """The delivery count, 1 at the first."""
        ...

    @property
    def origin(self) -> VisitOrigin | None:
        """Where the shard is queued; None if its subject does not name a place of ours."""
        ...

    async def ack(self) -> None:
        """Acknowledge the shard and wait until the broker has confirmed. A repeat is harmless.

        After Transient the shard may be delivered again. A broker that was killed may have lost the delivery: it then
        never confirms, and delivers again, counting from 1.
        """
        ...

    async def nak(self, delay_s: float) -> None:
        """Hand the shard back, to be delivered again after delay_s."""
        ...

    async def working(self) -> None: ...


class ReportReader(Protocol):
    """Reads one report subject from a position on, in order, without gaps or end. Nothing is acknowledged."""

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        """Return up to `max_count` reports, or none if none came within wait_s. Only the first is waited for.

        Raise Transient while the broker is away; reading again continues without a gap or a repeat. Raise
        StreamReplaced once the stream is another one, or came back shorter: open a new reader.
        """
        ...

    async def purge(self, through: int) -> bool:
        """Delete what was stored up to and including sequence `through` on the subject.

        Return False, and delete nothing, while the stream must first be compared with the position.
        """
        ...

    async def close(self) -> None: ...


class Broker(Protocol):
    """One connection to the broker."""

    async def declare(self, pools: Sequence[str]) -> None:
        """Create or update streams, consumers and buckets. Safe to repeat; never loses messages."""
        ...

    def stores_nothing(self) -> bool:
        """Return True if the broker answers, but for a while stored nothing this process published to some stream."""
        ...

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        """Queue a shard durably. Return False if the previous one of this host slot is still queued (no error)."""
        ...

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        """Store a report durably and return its sequence. A repeat with the same id within two minutes is dropped."""
        ...

    async def pull_visits(self, pool: str, max_count: int, wait_s: float) -> Sequence[VisitMessage]:
        """Return up to `max_count` shards. Wait up to wait_s for the first only. One caller at a time per pool."""
        ...

    async def read_reports(
        self, partition: Partition, kind: ReportKind, after: int, at_ns: int | None = None
    ) -> ReportReader:
        """Return a reader of what was stored after sequence `after`, whose message was stored at `at_ns`.

        Raise StreamReplaced if the stream does not continue that one (see `continues`). With None, do not compare.
        """
        ...

    async def reports_state(self) -> StreamState: ...

    async def last_report(self, partition: Partition, kind: ReportKind) -> int:
        """Return the sequence of the newest report on this subject, or 0.

        Purged reports count too, as far as the broker still has the number.
        """
        ...

    async def continues(self, sequence: int, at_ns: int) -> bool:
        """Return True if the reports stream is the one in which the report at `sequence` was stored at `at_ns`.

        The stream is another one if that report has another time, or if an earlier sequence has a later time.
        """
        ...

    async def purge_reports(self, partition: Partition, kind: ReportKind, through: int) -> None:
        """Delete what was stored up to and including sequence `through` on this subject."""
        ...

    async def queued_visits(self, partition: Partition) -> Sequence[QueuedVisit]:
        """Return the places of the partition's queued shards, in every pool that has a queue, used or not.

        At most 100,000 per pool, far more than dispatch sends out.
        """
        ...

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit | None:
        """Return the shard that is queued there now."""
        ...

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        """Return True if the shard queued there was never delivered: its turn in the pool's queue is yet to come."""
        ...

    async def drop_visit(
        self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int | None = None
    ) -> None:
        """Delete a queued shard whose lease is gone. With `through`, only if its sequence is at most that."""
        ...

    async def pending_reports(self) -> int:
        """Return the number of stored reports not yet purged, over all partitions."""
        ...

    async def fullness(self, kind: ReportKind) -> float:
        """Return how full the fullest partition's subject of this kind is: 0 is empty, 1 refuses reports."""
        ...

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        """Store items durably and return their sequence. A repeat with the same id within two minutes is dropped."""
        ...

    async def read_items(self, after: int) -> ReportReader:
        """Return a reader of all crawls' items stored after sequence `after`.

        Items that the stream no longer keeps are skipped: the sequences then have a gap.
        """
        ...

    async def items_state(self) -> ItemsState: ...

    async def ask(self, partition: Partition, data: bytes, wait_s: float) -> bytes:
        """Send a question to the partition's owner and return its answer. Raise Transient if none came in time."""
        ...

    def answer(
        self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]
    ) -> AbstractAsyncContextManager[None]:
        """Answer questions to the partition's owner while the context is open. A None from `reply` sends no answer."""
        ...

    async def get_robots(self, key: str) -> bytes | None: ...

    async def put_robots(self, key: str, value: bytes) -> None: ...

    async def tell(self, subject: str, data: bytes) -> None:
        """Send to the present listeners (status, progress). Nothing is stored."""
        ...

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield what other processes send by `tell`. If the listener is slow, the oldest messages are dropped."""
        ...

    async def close(self) -> None: ...
