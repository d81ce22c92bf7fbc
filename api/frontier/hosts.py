"""A host in motion, what is known of it, and its queues. Pure; times are the owner's monotonic seconds."""

from dataclasses import dataclass, field

from shared.domain.ids import CrawlId, HostId
from shared.domain.ledger import QueueRow
from shared.domain.politeness import HostHealth

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of a host, as SQL has it. `visited`: a visit of it was reported, so its crawl-delay is known."""

    health: HostHealth
    crawl_delay_ms: int = 0
    operator_delay_ms: int = 0
    latency_ms: int = 0
    last_failure: str | None = None
    ip: str | None = None
    visited: bool = False


@dataclass(slots=True)
class Queue:
    """A host's queue of one crawl. `delay_s` is the host's delay for this crawl, `slots` how many shards may be out."""

    crawl_id: CrawlId
    delay_s: float
    slots: int
    queued: int = 0
    waiting: int = 0
    next_due: float = NEVER
    pages: int = 0
    leased: int = 0
    cap: int = 0
    armed_for: float | None = None

    @property
    def empty(self) -> bool:
        return self.queued == 0 and self.waiting == 0


@dataclass(slots=True)
class Host:
    """A host in motion. Its delay counts from `rested_from`.

    `taken`: each slot in use, with how many shards of the host may be out while its shard is.
    """

    host_id: HostId
    name: str
    facts: HostFacts
    rested_from: float
    last_delay_s: float = 0.0
    blocked_until: float = 0.0
    taken: dict[int, int] = field(default_factory=dict)
    queues: dict[CrawlId, Queue] = field(default_factory=dict)

    def rested_at(self, queue: Queue) -> float:
        """When a request of this queue may start: no crawl shortens another's delay."""
        return self.rested_from + max(queue.delay_s, self.last_delay_s)

    def free_slot(self, queue: Queue) -> int | None:
        """The least free slot, if the queue may use one: the strictest crawl with a shard out sets their number."""
        out = (other.slots for other in self.queues.values() if other.leased)
        most = min([queue.slots, *self.taken.values(), *out])
        if len(self.taken) >= most:
            return None
        return next(slot for slot in range(most) if slot not in self.taken)


def facts_of(row: QueueRow) -> HostFacts:
    """What a queue's row tells of its host."""
    return HostFacts(
        health=HostHealth(row.failures, row.unreachable, row.last_failure_ms, row.blocked_until_ms),
        crawl_delay_ms=row.crawl_delay_ms,
        operator_delay_ms=row.operator_delay_ms,
        latency_ms=row.latency_ms,
        visited=row.visited_at_ms > 0,
    )
