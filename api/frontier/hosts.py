"""A host that an owner has in memory, its facts and its queues. Pure; times are the owner's monotonic seconds."""

from math import ceil
from typing import Final

from msgspec import Struct, field

from api.frontier.host_shares import NEVER, CrawlQueue, HostShares
from shared.domain.frontier.politeness import HostHealth, shard_part, shard_size
from shared.domain.frontier.store_model import HostChange, QueueRow
from shared.domain.ids import CrawlId, HostId

LEAD_S: Final = 0.25
"""A host's next shard may be leased this long before the host's delay ends: the lease, the message and the grant take
time. The worker waits for the rest of the delay, which the grant names."""

_TOGETHER_S: Final = 0.05
"""The end of a host's delay is rounded up to a multiple of this, so that one transaction leases several hosts."""

_EXPECTED_FETCH_S: Final = 0.2
"""The time that a fetch is expected to take on a host whose latency is not known yet."""


class HostFacts(Struct, frozen=True):
    """What is stored of a host in SQL: its health, delays, latency and last failure.

    - `operator_...`: what an operator's policy of the host sets; 0: nothing.
    - `visited`: True once a visit of the host was reported, so that the crawl-delay of its robots.txt is known.
    """

    health: HostHealth
    crawl_delay_ms: int = 0
    operator_delay_ms: int = 0
    latency_ms: int = 0
    last_failure: str | None = None
    ip: str | None = None
    visited: bool = False
    operator_blocked_until_ms: int = 0
    operator_slots: int = 0

    @property
    def blocked_until_ms(self) -> int:
        """The Unix time in ms until which no request is sent to the host, because of its own answers or a policy."""
        return max(self.health.blocked_until_ms, self.operator_blocked_until_ms)


class ReservedSlot(Struct):
    """A slot of a host that is in use: a shard is leased in the slot, or is about to be leased.

    `max_slots` is a limit: at most this many shards of the host may be out while this slot is in use.

    The other fields say what to charge when the shard ends. A queue is charged for the time for which its shard uses
    the host: the queue's virtual time is raised (see `host_shares`). Times are `Clock.elapsed` seconds.

    - Before a shard is leased: `queue` is None, and the other fields are 0.
    - This owner leased the shard: `queue` is the shard's queue. `since` is the time of the lease, or the end of the
      host's delay if that is later. `estimate` is how many seconds were charged in advance, at the lease.
    - An earlier owner leased the shard: `queue` is the shard's queue, or None if it is not in memory. `since` is the
      time at which this owner claimed the partition. `estimate` is 0.
    """

    max_slots: int
    queue: CrawlQueue | None = None
    since: float = 0.0
    estimate: float = 0.0


class Host(Struct):
    """A host in memory, with its queues and slots. Times are `Clock.elapsed` seconds.

    - `rested_from`: when the host's delay after its last shard began, usually at the last response of the shard. The
      owner does not see the delays between the responses of one shard: the worker keeps them.
    - `last_delay_s`: the length (s) of the delay that began at `rested_from`. Every crawl waits at least for this
      delay. A crawl with a longer delay of its own waits for its own, also counted from `rested_from`.
    - `taken`: the slots in use.
    - `turns`: the order of its crawls, None while only one has a queue.
    - `virtual`: the host's virtual time (see `host_shares`). A queue that was empty begins at this time.
    - `armed_for`: when the owner next checks whether the host can be visited. `NEVER`: no check is planned.
    - `turn_until`: until this time, the host is reserved for the crawl whose turn it is. After this time, the next
      crawl may use the host, too.
    """

    host_id: HostId
    name: str
    facts: HostFacts
    rested_from: float
    last_delay_s: float = 0.0
    blocked_until: float = 0.0
    taken: dict[int, ReservedSlot] = field(default_factory=dict)
    queues: dict[CrawlId, CrawlQueue] = field(default_factory=dict)
    turns: HostShares | None = None
    virtual: float = 0.0
    armed_for: float = NEVER
    turn_until: float = 0.0

    def rested_at(self, queue: CrawlQueue) -> float:
        """Return the time (`Clock.elapsed`) at which the host's delay is over for this queue.

        The delay is that of the queue's crawl, or that of the last lease if it is longer.
        """
        return self.rested_from + max(queue.delay_s, self.last_delay_s)

    def due(self, queue: CrawlQueue) -> float:
        """Return the time (`Clock.elapsed`) at which the queue's next shard may be leased.

        At that time all of these are true:

        - The queue has a URL to fetch.
        - The host is not blocked.
        - The host's delay is over, or ends within `LEAD_S` seconds.
        """
        soon = self.rested_at(queue) - LEAD_S
        if soon > 0:  # It is minus infinity in a partition that never had a host.
            soon = ceil(soon / _TOGETHER_S) * _TOGETHER_S
        return max(soon, self.blocked_until, queue.content_at())

    def free_slot(self, queue: CrawlQueue) -> int | None:
        """Return the number of the lowest free slot, or None if the queue may not use one.

        Each crawl limits how many slots of the host may be in use by all crawls together. The lowest limit counts: of
        the queue's crawl, and of the crawls that use a slot now.
        """
        if not self.taken:
            return 0 if queue.slots else None
        max_count = queue.slots
        for shard in self.taken.values():
            max_count = min(
                max_count, shard.max_slots if shard.queue is None else min(shard.max_slots, shard.queue.slots)
            )
        if len(self.taken) >= max_count:
            return None
        return next(slot for slot in range(max_count) if slot not in self.taken)

    def add(self, queue: CrawlQueue) -> None:
        """Add a queue. It begins at the host's current virtual time, so that it gets no extra turns for the past."""
        queue.virtual = self.virtual
        self.queues[queue.crawl_id] = queue
        if len(self.queues) > 1 and self.turns is None:
            self.turns = HostShares()
            for other in self.queues.values():
                other.place = 0
                self.turns.put(other)

    def remove(self, crawl_id: CrawlId) -> CrawlQueue | None:
        """Remove and return the crawl's queue; None if the host has none."""
        queue = self.queues.pop(crawl_id, None)
        if len(self.queues) < 2:
            self.turns = None
        return queue

    def next(self, now: float) -> CrawlQueue | None:
        """Return the queue that gets the next turn on this host, or None if no queue can get it.

        A queue can get the turn if both of these are true:

        - The queue has URLs to fetch at `now` (`Clock.elapsed`).
        - `in_line` is False. A queue with `in_line` has had its turn already: the host waits in the line of the queue's
          crawl until the pool has capacity.
        """
        if self.turns is not None:
            return self.turns.next(self.queues, now, self.virtual)
        for queue in self.queues.values():
            return None if queue.empty or queue.in_line or queue.content_at() > now else queue
        return None

    def wakes_at(self) -> float:
        """Return the time (`Clock.elapsed`) at which to examine the host. Until then no shard of it can start."""
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

    def charge(self, shard: ReservedSlot, ended: float) -> None:
        """Charge the shard's crawl with the host time that the shard really used, instead of the estimated time.

        The host time includes the delay that follows the shard. It lasts from `shard.since` until `ended`.

        `ended`: the time (`Clock.elapsed`) at which that delay is over. This time may be in the future.
        """
        # Up to `slots` shards use the host at the same time, so each is charged with its part.
        if shard.queue is None:
            return
        queue = self.queues.get(shard.queue.crawl_id)
        if queue is not None:
            used = max(0.0, ended - shard.since) / max(1, shard.queue.slots)
            queue.virtual += (used - (shard.estimate if queue is shard.queue else 0.0)) / queue.weight


def facts_of(row: QueueRow) -> HostFacts:
    """Return the host's facts, taken from the SQL row of one of its queues."""
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
        operator_blocked_until_ms=row.operator_blocked_until_ms,
        operator_slots=row.operator_slots,
    )


def host_change(host_id: HostId, facts: HostFacts, now_ms: int) -> HostChange:
    """Return the update that stores `facts` in a host's SQL row, with `now_ms` as the time of the host's last visit."""
    health = facts.health
    return HostChange(
        host_id=host_id,
        crawl_delay_ms=facts.crawl_delay_ms,
        latency_ms=facts.latency_ms,
        failures=health.failures,
        unreachable=health.unreachable,
        last_failure_ms=health.last_failure_ms,
        last_failure=facts.last_failure,
        blocked_until_ms=health.blocked_until_ms,
        recent=health.recent,
        slowed_ms=health.slowed_ms,
        asked_ms=health.asked_ms,
        silent_since_ms=health.silent_since_ms,
        visited_at_ms=now_ms,
        ip=facts.ip,
    )


def shard_limit(host: Host, queue: CrawlQueue, due: int = 0) -> int:
    """Return the maximum number of URLs in the queue's next shard, at most `queue.cap` if that is set.

    - `due`: how many waiting URLs count as due, in addition to the queued URLs.

    The shard gets about `SHARD_WORK_S` seconds of work at the host's pace. If the queue may use several slots, the
    shard gets only a part of the queue (`shard_part`). For a host without a delay that was never visited, return 1.
    """
    if queue.delay_s == 0 and not host.facts.visited:
        return 1
    latency_s = host.facts.latency_ms / 1000 if host.facts.latency_ms else _EXPECTED_FETCH_S
    max_count = shard_size(queue.delay_s, latency_s)
    if queue.slots > 1:
        # Latency is kept in whole milliseconds, so a host that answers in less than one has 0.
        max_count = min(max_count, shard_part(queue.queued + due, queue.slots, max(host.facts.latency_ms, 1) / 1000))
    return min(max_count, queue.cap) if queue.cap else max_count


def grown_cap(cap: int) -> int | None:
    """Return the queue's new limit of URLs per shard after a successful shard. None: the limit stays as it is.

    The new limit is twice the present limit `cap`, or 0 (no limit) if `cap` is 250 or more. If `cap` is 0, return None.
    """
    if cap == 0:
        return None
    return 0 if cap >= 250 else cap * 2
