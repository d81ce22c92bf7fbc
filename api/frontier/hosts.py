"""A host in motion, what is known of it, and its queues. Pure; times are the owner's monotonic seconds."""

from dataclasses import dataclass, field

from api.frontier.turns import NEVER, Queue, Turns
from shared.domain.ids import CrawlId, HostId
from shared.domain.ledger import QueueRow
from shared.domain.politeness import HostHealth


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
class Shard:
    """A slot in use. `slots`: shards of the host that may be out while this one is. `queue`: whose it is, None while no
    lease took the slot. `since`: when it was leased. `estimate`: host time that `queue` was charged for it."""

    slots: int
    queue: Queue | None = None
    since: float = 0.0
    estimate: float = 0.0


@dataclass(slots=True)
class Host:
    """A host in motion. Its delay counts from `rested_from`.

    `taken`: the slots in use. `turns`: the order of its crawls, None while only one has a queue. `virtual`: the virtual
    time of the shard that started last. `armed_for`: when the front looks at the host next. `turn_until`: how long the
    other crawls wait for the one whose turn it is.
    """

    host_id: HostId
    name: str
    facts: HostFacts
    rested_from: float
    last_delay_s: float = 0.0
    blocked_until: float = 0.0
    taken: dict[int, Shard] = field(default_factory=dict)
    queues: dict[CrawlId, Queue] = field(default_factory=dict)
    turns: Turns | None = None
    virtual: float = 0.0
    armed_for: float = NEVER
    turn_until: float = 0.0

    def rested_at(self, queue: Queue) -> float:
        """When a request of this queue may start: no crawl shortens another's delay."""
        return self.rested_from + max(queue.delay_s, self.last_delay_s)

    def due(self, queue: Queue) -> float:
        """When the queue's next shard may start."""
        return max(self.rested_at(queue), self.blocked_until, queue.content_at())

    def free_slot(self, queue: Queue) -> int | None:
        """The least free slot, if the queue may use one: the strictest crawl with a shard out sets their number."""
        if not self.taken:
            return 0 if queue.slots else None
        most = queue.slots
        for shard in self.taken.values():
            most = min(most, shard.slots if shard.queue is None else min(shard.slots, shard.queue.slots))
        if len(self.taken) >= most:
            return None
        return next(slot for slot in range(most) if slot not in self.taken)

    def add(self, queue: Queue) -> None:
        """Take in a queue, which begins at the host's present virtual time: nothing is to be caught up with."""
        queue.virtual = self.virtual
        self.queues[queue.crawl_id] = queue
        if len(self.queues) > 1 and self.turns is None:
            self.turns = Turns()
            for other in self.queues.values():
                other.place = 0
                self.turns.put(other)

    def remove(self, crawl_id: CrawlId) -> Queue | None:
        """Forget a queue."""
        queue = self.queues.pop(crawl_id, None)
        if len(self.queues) < 2:
            self.turns = None
        return queue

    def next(self, now: float) -> Queue | None:
        """The queue whose turn it is, of those that have something now and do not stand in a line."""
        if self.turns is not None:
            return self.turns.next(self.queues, now, self.virtual)
        for queue in self.queues.values():
            return None if queue.empty or queue.in_line or queue.content_at() > now else queue
        return None

    def wakes_at(self) -> float:
        """When to look at the host: no shard can start earlier, as things are."""
        at = NEVER
        if self.turns is not None:
            first = self.turns.first(self.queues)
            if first is not None and self.free_slot(first) is not None:
                at = self.due(first)
            at = min(at, self.turns.later(self.queues))
        else:
            for queue in self.queues.values():
                if not queue.empty and not queue.in_line and self.free_slot(queue) is not None:
                    at = self.due(queue)
        return max(at, self.blocked_until, self.turn_until)

    def charge(self, shard: Shard, ended: float) -> None:
        """Charge the shard's crawl with the host time it used in place of the estimate: its part of the slots from the
        lease until `ended`, which includes the rest that the crawl's delay asks for."""
        if shard.queue is None:
            return
        queue = self.queues.get(shard.queue.crawl_id)
        if queue is not None:
            used = max(0.0, ended - shard.since) / max(1, shard.queue.slots)
            queue.virtual += (used - (shard.estimate if queue is shard.queue else 0.0)) / queue.weight


def facts_of(row: QueueRow) -> HostFacts:
    """What a queue's row tells of its host."""
    return HostFacts(
        health=HostHealth(
            row.failures,
            row.unreachable,
            row.last_failure_ms,
            row.blocked_until_ms,
            row.recent,
            row.slowed_ms,
            row.asked_ms,
            row.silent_since_ms,
        ),
        crawl_delay_ms=row.crawl_delay_ms,
        operator_delay_ms=row.operator_delay_ms,
        latency_ms=row.latency_ms,
        visited=row.visited_at_ms > 0,
    )
