"""The port to the message broker: visits out, reports and items in, questions and answers between.

Errors: Transient when the broker is away or did not answer in time (the message may or may not have been stored;
publish again with the same message id), Refused when a bounded subject is full, Permanent when the broker will never
take it, Unusable when it has shut us out for good.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, get_args

from shared.domain.ids import CrawlId, HostId, Partition

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
    """The reports stream as it is: when it was created (Unix ns) and its last sequence, over all subjects."""

    created_ns: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class ItemsState:
    """The stream of items as it is: when it was created (Unix ns), the oldest sequence kept and the last one given.

    An empty stream has `first == last + 1`.
    """

    created_ns: int
    first: int
    last: int


class QueuedVisit(NamedTuple):
    """A place in a pool's queue on which a shard stands, delivered or not."""

    pool: str
    host_id: HostId
    slot: int


@dataclass(frozen=True, slots=True)
class VisitOrigin:
    """Where a delivered shard stands: the place, the partition whose it is, and its sequence in the pool's stream."""

    partition: Partition
    place: QueuedVisit
    sequence: int


@dataclass(frozen=True, slots=True)
class StoredVisit:
    """A shard as it stands in its queue. Another one in its place has a greater sequence."""

    sequence: int
    data: bytes


class VisitMessage(Protocol):
    """A shard in hand. Exactly one of ack, nak settles it; until then `working` keeps it from coming back."""

    @property
    def data(self) -> bytes: ...

    @property
    def delivery(self) -> int:
        """1 at the first delivery."""
        ...

    @property
    def origin(self) -> VisitOrigin | None:
        """Where it stands; None when its subject names no place of ours."""
        ...

    async def ack(self) -> None:
        """Settle it and wait until the broker has confirmed; again is harmless.

        Transient: it may come again. A broker that was killed may have forgotten the delivery: it then never confirms,
        and delivers anew, counting from 1.
        """
        ...

    async def nak(self, delay_s: float) -> None:
        """Hand it back, to come again after delay_s."""
        ...

    async def working(self) -> None: ...


class ReportReader(Protocol):
    """Reads one report subject from a position on, in order, without gaps, for ever. Nothing is acknowledged."""

    async def read(self, most: int, wait_s: float) -> Sequence[Delivered]:
        """Up to `most` reports; waits up to wait_s for the first, never for the others; empty when none came.

        Raises Transient when the broker is away; reading again continues without a gap or a repeat. Raises
        StreamReplaced once the stream is another one, or came back shorter: open a new reader.
        """
        ...

    async def purge(self, through: int) -> bool:
        """Drop what was stored up to and including sequence `through` on the subject.

        Return False, and drop nothing, while the stream is to be compared with the position first.
        """
        ...

    async def close(self) -> None: ...


class Broker(Protocol):
    """One connection to the broker."""

    async def declare(self, pools: Sequence[str]) -> None:
        """Make streams, consumers and buckets be as declared; safe to repeat, never loses messages."""
        ...

    def stores_nothing(self) -> bool:
        """Whether it answers and has stored nothing of what this process published to some stream for a while."""
        ...

    async def publish_shard(self, pool: str, partition: Partition, host_id: int, slot: int, data: bytes) -> bool:
        """Durably queue a shard. False: the previous one of this host slot is still there (not an error)."""
        ...

    async def publish_report(self, partition: Partition, kind: ReportKind, data: bytes, message_id: str) -> int:
        """Durably store a report; its sequence. A repeat with the same id within two minutes is stored once."""
        ...

    async def pull_visits(self, pool: str, most: int, wait_s: float) -> Sequence[VisitMessage]:
        """Up to `most` shards; waits up to wait_s for the first only. One caller at a time for each pool."""
        ...

    async def read_reports(
        self, partition: Partition, kind: ReportKind, after: int, at_ns: int | None = None
    ) -> ReportReader:
        """Return a reader of what was stored after sequence `after`, whose message was stored at `at_ns`.

        Raises StreamReplaced if it was not stored then in the stream as it is (see `continues`). None: do not compare.
        """
        ...

    async def reports_state(self) -> StreamState: ...

    async def last_report(self, partition: Partition, kind: ReportKind) -> int:
        """Sequence of the newest report on this subject, purged or not where the broker knows it; 0 when none."""
        ...

    async def continues(self, sequence: int, at_ns: int) -> bool:
        """Return True if the reports stream is the one in which the report at `sequence` was stored at `at_ns`.

        It is another one if that report has another time, or if a later one stands at an earlier sequence.
        """
        ...

    async def purge_reports(self, partition: Partition, kind: ReportKind, through: int) -> None:
        """Drop what was stored up to and including sequence `through` on this subject."""
        ...

    async def queued_visits(self, partition: Partition) -> Sequence[QueuedVisit]:
        """Where shards of the partition stand, in every pool that has a queue, used by a crawl or not.

        At most 100,000 a pool, far beyond what dispatch lets out.
        """
        ...

    async def visit_at(self, partition: Partition, place: QueuedVisit) -> StoredVisit | None:
        """The shard that stands there now."""
        ...

    async def visit_waits(self, partition: Partition, place: QueuedVisit) -> bool:
        """Return True if a shard stands there that was never delivered: its turn in the pool's line has yet to come."""
        ...

    async def drop_visit(
        self, pool: str, partition: Partition, host_id: int, slot: int, *, through: int | None = None
    ) -> None:
        """Delete a queued shard whose lease is gone; with `through`, only one whose sequence is not beyond it."""
        ...

    async def pending_reports(self) -> int:
        """Reports stored and not yet purged, all partitions."""
        ...

    async def fullness(self, kind: ReportKind) -> float:
        """How full the fullest partition's subject of this kind is: 0 empty, 1 when it refuses."""
        ...

    async def publish_items(self, crawl_id: CrawlId, data: bytes, message_id: str) -> int:
        """Durably store items; their sequence. A repeat with the same id within two minutes is stored once."""
        ...

    async def read_items(self, after: int) -> ReportReader:
        """A reader of the items of all crawls that were stored after sequence `after`. What is older than the stream
        keeps is passed over: the sequences then have a gap."""
        ...

    async def items_state(self) -> ItemsState: ...

    async def ask(self, partition: Partition, data: bytes, wait_s: float) -> bytes:
        """Ask the partition's owner. Transient when nobody answered in time."""
        ...

    def answer(
        self, partition: Partition, reply: Callable[[bytes], Awaitable[bytes | None]]
    ) -> AbstractAsyncContextManager[None]:
        """Answer questions to the partition's owner while the context is open; None answers nothing."""
        ...

    async def get_robots(self, key: str) -> bytes | None: ...

    async def put_robots(self, key: str, value: bytes) -> None: ...

    async def tell(self, subject: str, data: bytes) -> None:
        """Send to whoever listens now (status, progress); nothing is stored."""
        ...

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """What others `tell`; the oldest are dropped when the listener is slow."""
        ...

    async def close(self) -> None: ...
