"""The host queues of a partition: its hosts that have work soon, ordered by when politeness allows a fetch.

Pure: times are the owner's monotonic seconds, given as arguments. Everything here can be rebuilt from SQL, except the
time of a host's last fetch. So a host is removed from memory only after its delay has passed.

A new owner does not have the times of the last fetches:

- If the partition ever had a host: the owner assumes that every host was fetched when the owner claimed the partition.
- If the partition never had a host: its first hosts can be fetched at once, unless `first_claim_rests` is set.

A host has one queue for each crawl. These queues take turns at the host (`host_shares`). Each crawl has a line of hosts
that wait for capacity of the crawl's pool (`lines`). When a queue has its turn and the host is due, the host enters the
line of the queue's crawl.

A crawl that waits for capacity must not block the host. Example: a host has queues of the crawls A and B, and A has the
turn. The host enters A's line. If the host still waits in A's line after `PASS_S` seconds, the turn passes to B. The
host then enters B's line, too, and stays in A's line. If A may not dispatch at all, the turn passes to B at once.

Invariants:
- Each slot of a host belongs to at most one lease: from `acquire`, or `restore` under a new owner, until `release`.
- Each crawl has a limit of shards for a host. It counts the shards of all crawls, while a shard of this crawl is out.
  Example: crawl A has the limit 1, and crawl B has the limit 3. Then either one shard of A is out and none of B, or up
  to three shards of B are out and none of A.
- Each queue with URLs waits for its turn at the host, or else has had its turn and waits for capacity. While the queue
  waits for capacity, the host is in the line of the queue's crawl. A host may be in several lines at once.
- A host has at most one valid entry in `_later`, the heap of scheduled examinations.
- `_idle` contains every host that has only empty queues. It may contain other hosts.
- While `max_hosts` hosts are in memory, only hosts with a lease are added. The queues of other hosts remain in SQL.
  A crawl with such a queue is `incomplete`: the owner later reads the crawl's queues from SQL again.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from msgspec.structs import replace

from api.frontier.due_hosts import DueHosts
from api.frontier.host_shares import CREDIT_S, NEVER, CrawlQueue
from api.frontier.hosts import Host, HostFacts, ReservedSlot
from api.frontier.pool_shares import PoolShares
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.store_model import QueueRow
from shared.domain.ids import CrawlId, HostId

LOOKED_AT: Final = 5000
"""Maximum hosts that one call of `make_room` examines. A call blocks the owner for 4 us per host, and for 10 us per
host that it removes."""

PASS_S: Final = 1.0
"""How long a host waits in the line of the crawl whose turn it is, before it also enters the next crawl's line."""

_EXPECTED_FETCH_S: Final = 0.2
_SPARE: Final = 64


class HostQueues:
    """The hosts that an owner has in memory, and their queues. `take` returns the next queue to lease from."""

    def __init__(
        self,
        shares: PoolShares,
        *,
        max_hosts: int,
        rested_from: float,
        wake: Callable[[], None] = lambda: None,
        on_incomplete: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an empty set of hosts.

        - `shares`: divides the capacity of each pool among its crawls.
        - `max_hosts`: the maximum number of hosts in memory.
        - `rested_from`: the start of each host's delay (`Clock.elapsed`), until an outcome sets a later start.
        - `wake`: called when capacity is allotted to a line while no pass of dispatch is in progress.
        - `on_incomplete`: called if SQL may have queues that are not in memory.
        """
        self._on_incomplete = on_incomplete
        self.lines = DueHosts(shares, wake)
        self.max_hosts = max_hosts
        self._claimed_at = rested_from
        self._now = rested_from
        self._hosts: OrderedDict[HostId, Host] = OrderedDict()
        self._later: list[tuple[float, HostId]] = []
        self._queues: Counter[CrawlId] = Counter()
        self._incomplete: set[CrawlId] = set()
        self._idle: set[HostId] = set()

    def __repr__(self) -> str:
        return f"<HostQueues hosts={len(self._hosts)} ready={len(self.lines)} later={len(self._later)}>"

    def __len__(self) -> int:
        return len(self._hosts)

    def hosts(self) -> Iterable[Host]:
        """Return all hosts in memory, with their queues."""
        return self._hosts.values()

    def moving(self) -> list[Host]:
        """Return the hosts that have at least one slot in use."""
        return [host for host in self._hosts.values() if host.taken]

    def crawls(self) -> Iterable[CrawlId]:
        """Return the crawls that have queues in memory."""
        return (crawl_id for crawl_id, queues in self._queues.items() if queues)

    def may_evict(self) -> bool:
        """Return True if `evict_idle` may find a host to remove. Return False if every host in memory has URLs."""
        return bool(self._idle)

    def due(self) -> int:
        """Return the number of hosts in the lines of due hosts, as of the last `wake`. Include paused crawls."""
        return len(self.lines)

    def host(self, host_id: HostId) -> Host | None:
        """Return the host, None if it is not in memory."""
        return self._hosts.get(host_id)

    def find(self, crawl_id: CrawlId, host_id: HostId) -> tuple[Host, CrawlQueue] | None:
        """Return a host and its queue of the crawl. Return None if the queue is not in memory."""
        host = self._hosts.get(host_id)
        queue = host.queues.get(crawl_id) if host is not None else None
        return None if host is None or queue is None else (host, queue)

    def host_named(self, name: str) -> Host | None:
        """Return the host of this name; None if it is not in memory.

        All hosts are scanned, so use it for rare commands only.
        """
        return next((host for host in self._hosts.values() if host.name == name), None)

    def incomplete(self) -> list[CrawlId]:
        """Return the crawls that may have queues in SQL that are not in memory."""
        return list(self._incomplete)

    def mark_incomplete(self, crawl_id: CrawlId) -> None:
        """Note that SQL may have queues of this crawl that are not in memory."""
        self._incomplete.add(crawl_id)
        self._on_incomplete()

    def mark_complete(self, crawl_id: CrawlId) -> None:
        """Note that a read of SQL returned all queues of this crawl, so that memory lacks none."""
        self._incomplete.discard(crawl_id)

    def full(self) -> bool:
        """Return True if `max_hosts` hosts are in memory, so that no other host is added."""
        return len(self._hosts) >= self.max_hosts

    def offer(
        self,
        row: QueueRow,
        *,
        facts: HostFacts,
        delay_s: float,
        slots: int,
        now: float,
        now_ms: int,
        pinned: bool = False,
        weight: int = 1,
        pool: str = "default",
    ) -> bool:
        """Add or update a queue from its SQL row. Return False if its host cannot be added because memory is full.

        - `facts`: the facts of the host from the same row.
        - `delay_s`: the host's delay for the crawl.
        - `slots`: how many shards of the queue may be out at once.
        - `pinned`: a lease of the queue is out, so its host is added even if `max_hosts` hosts are in memory.
        - `now`, `now_ms`: the present time, as `Clock.elapsed` and as Unix ms.
        - `weight`, `pool`: the weight of the crawl in its pool, and the pool's name.
        """
        host = self._hosts.get(row.host_id)
        if host is None:
            if self.full() and not pinned:
                self._incomplete.add(row.crawl_id)
                return False
            # The host may have left memory after its last visit, and this delay may be longer than those of that time.
            visited_at = now - max(0, now_ms - row.visited_at_ms) / 1000 if row.visited_at_ms else self._claimed_at
            host = Host(row.host_id, row.host, facts, max(self._claimed_at, visited_at), last_delay_s=delay_s)
            host.blocked_until = now + (facts.blocked_until_ms - now_ms) / 1000
            self._hosts[row.host_id] = host
        else:
            if facts.blocked_until_ms != host.facts.blocked_until_ms:
                host.blocked_until = now + (facts.blocked_until_ms - now_ms) / 1000
            host.facts = replace(facts, last_failure=host.facts.last_failure, ip=host.facts.ip)
        queue = host.queues.get(row.crawl_id)
        if queue is None:
            queue = CrawlQueue(row.crawl_id, delay_s, slots)
            self._queues[row.crawl_id] += 1
            host.add(queue)
        queue.delay_s, queue.slots = delay_s, slots
        queue.weight, queue.pool = weight, pool
        queue.queued, queue.waiting, queue.stored_only = row.queued, row.waiting, False
        queue.next_due = now + (row.next_due_ms - now_ms) / 1000 if row.waiting else NEVER
        queue.pages, queue.leased, queue.cap = row.pages, row.leased, row.shard_cap
        queue.signals, queue.found_ms = row.signals, row.found_ms
        self._place(host, queue)
        return True

    def added(self, crawl_id: CrawlId, host_id: HostId, n: int) -> bool:
        """Count `n` newly queued URLs in a queue. Return False if the queue is not in memory.

        Then the caller must read the queue's row from SQL and `offer` it.
        """
        known = self.find(crawl_id, host_id)
        if known is None:
            return False
        host, queue = known
        queue.queued += n
        queue.stored_only = False
        self._place(host, queue)
        return True

    def wake(self, now: float) -> None:
        """Put the hosts that are due by `now` (`Clock.elapsed`) into their crawls' lines."""
        self._now = now
        while self._later and self._later[0][0] <= now:
            due, host_id = heapq.heappop(self._later)
            host = self._hosts.get(host_id)
            if host is not None and host.armed_for == due:
                host.armed_for = NEVER
                self._line_up(host, now)

    def take(self, now: float) -> tuple[Host, CrawlQueue] | None:
        """Take the next host out of a line to which the pool has allotted capacity.

        Return the host, and its queue of the crawl that the line belongs to. Return None if there is no such host. For
        each returned queue the caller does one of these:

        - Lease URLs of the queue (`acquire`, then `record_lease`).
        - Put the queue back (`defer` or `reschedule`).

        After the last queue, the caller calls `lines.end`.
        """
        self._now = now
        while (place := self.lines.pop()) is not None:
            known = self.find(*place)
            if known is None:
                continue
            host, queue = known
            queue.in_line = False
            host.turn_until = 0.0
            if queue.empty or host.free_slot(queue) is None or host.due(queue) > now:
                # Another crawl used the host. The queue gets its turn later, with at most CREDIT_S to catch up.
                queue.virtual = max(queue.virtual, host.virtual - CREDIT_S / queue.weight)
                self._place(host, queue)
                continue
            self.lines.use()
            return known
        return None

    def defer(self, host: Host, queue: CrawlQueue, until: float) -> None:
        """Put back a taken queue from which nothing was leased. It is examined again at `until` (`Clock.elapsed`)."""
        queue.not_before = until
        self._place(host, queue)

    def record_lease(self, host: Host, queue: CrawlQueue, slot: int, n: int) -> None:
        """Record that `n` URLs of the queue are leased in the slot that was acquired for it."""
        latency_s = host.facts.latency_ms / 1000 or _EXPECTED_FETCH_S
        estimate = n * max(queue.delay_s, latency_s) / max(1, queue.slots)
        host.taken[slot] = ReservedSlot(queue.slots, queue, max(self._now, host.rested_at(queue)), estimate)
        host.virtual = max(host.virtual, queue.virtual)
        queue.virtual += estimate / queue.weight
        queue.queued -= n
        queue.leased += n
        self._place(host, queue)

    def acquire(self, host: Host, queue: CrawlQueue) -> int | None:
        """Reserve a free slot of the host for a shard of the queue: the one with the lowest number.

        Return its number, or None if the queue may not use a slot.
        """
        slot = host.free_slot(queue)
        if slot is not None:
            host.taken[slot] = ReservedSlot(queue.slots)
        return slot

    def release(self, host: Host, slot: int, rested_from: float | None = None, delay_s: float = 0.0) -> None:
        """Free a slot of the host.

        - `rested_from`: when the host's next delay begins (`Clock.elapsed`). None: nothing was leased in the slot, so
          no delay begins.
        - `delay_s`: the length of that delay in seconds. An earlier delay that ends later still applies.
        """
        shard = host.taken.pop(slot, None)
        if rested_from is not None:
            rested_at = max(host.rested_from + host.last_delay_s, rested_from + delay_s)
            host.rested_from = max(host.rested_from, rested_from)
            host.last_delay_s = rested_at - host.rested_from
            if shard is not None:
                host.charge(shard, rested_from + delay_s)
        self._arm(host)

    def restore(self, host_id: HostId, name: str, slot: int, delay_s: float, crawl_id: CrawlId | None = None) -> None:
        """Reserve the slot of a lease that an earlier owner made. Add the host if it is not in memory.

        - `delay_s`: the delay with which the shard was leased.
        - `crawl_id`: the crawl of the lease. If the crawl's queue of this host is in memory, the queue is charged when
          the shard ends: the time for which the shard used the host is added to the queue's virtual time.
        """
        host = self._hosts.get(host_id)
        if host is None:
            facts = HostFacts(HostHealth())
            host = self._hosts[host_id] = Host(host_id, name, facts, self._claimed_at, last_delay_s=delay_s)
            self._idle.add(host_id)
        slots = min((queue.slots for queue in host.queues.values()), default=1)
        queue = host.queues.get(crawl_id) if crawl_id is not None else None
        host.taken[slot] = ReservedSlot(1 if delay_s > 0 else slots, queue, self._claimed_at)

    def block(self, host: Host, until: float) -> None:
        """Block the host: no shard of it starts before `until` (`Clock.elapsed`)."""
        host.blocked_until = until
        self._arm(host)

    def reschedule(self, host: Host, queue: CrawlQueue) -> None:
        """Order a queue among the host's queues again, after the caller changed its counters or times."""
        self._place(host, queue)

    def queue(self, crawl_id: CrawlId, host_id: HostId) -> CrawlQueue | None:
        """Return a host's queue of the crawl, None if it is not in memory."""
        known = self.find(crawl_id, host_id)
        return None if known is None else known[1]

    def learn_signals(self, signals: Mapping[tuple[CrawlId, HostId], bytes]) -> None:
        """Store `signals` in the queues of their crawl and host. Skip queues that are not in memory.

        Each value says how often the host's signs of change were right, encoded (HostSignals). A sign of change is the
        date that a sitemap or feed gives for a page.
        """
        for place, stored in signals.items():
            if (queue := self.queue(*place)) is not None:
                queue.signals = stored

    def drop_crawl(self, crawl_id: CrawlId) -> None:
        """Remove a crawl's queues from memory: it ended or was deleted, or they must be read from SQL again."""
        self.lines.drop(crawl_id)
        self._incomplete.discard(crawl_id)
        for host in self._hosts.values() if self._queues.pop(crawl_id, 0) else ():
            if host.remove(crawl_id) is not None:
                self._idle.add(host.host_id)
                self._arm(host)

    def mark_stale(self, crawl_id: CrawlId) -> None:
        """Remove a crawl's queues from memory and have them read again, because they changed in SQL."""
        self.drop_crawl(crawl_id)
        self._incomplete.add(crawl_id)

    def evict_idle(self, now: float, delay_s: Callable[[Host], float]) -> int:
        """Remove hosts from memory that have no URLs, are rested and not blocked. Return the number of removed hosts.

        `delay_s` returns the longest delay of a host, in seconds. A host is rested once this delay has passed.
        """
        held = (self._hosts.get(host_id) for host_id in self._idle)
        idle = [host for host in held if host is not None and all(queue.empty for queue in host.queues.values())]
        self._idle = {host.host_id for host in idle}
        return self._forget([host for host in idle if host.blocked_until <= now], now, delay_s)

    def make_room(self, now: float, soon: float, delay_s: Callable[[Host], float]) -> int:
        """Remove hosts from memory that can start no shard before `soon` (`Clock.elapsed`). Return their number.

        A call examines at most `LOOKED_AT` hosts, beginning with those that were examined longest ago.

        `delay_s` returns the longest delay of a host, in seconds. A host stays in memory until this delay has passed.
        """
        looked_at = list(islice(self._hosts.values(), LOOKED_AT))
        for host in looked_at if len(looked_at) < len(self._hosts) else ():
            self._hosts.move_to_end(host.host_id)
        late = [
            host for host in looked_at if all(queue.empty or host.due(queue) >= soon for queue in host.queues.values())
        ]
        return self._forget(late, now, delay_s)

    def _forget(self, hosts: list[Host], now: float, delay_s: Callable[[Host], float]) -> int:
        forgotten = 0
        for host in hosts:
            rested = host.rested_from + max(host.last_delay_s, delay_s(host)) <= now
            if rested and not host.taken and not any(queue.leased for queue in host.queues.values()):
                for queue in host.queues.values():
                    self._queues[queue.crawl_id] -= 1
                    if not queue.empty:
                        self._incomplete.add(queue.crawl_id)
                    if queue.in_line:
                        self.lines.discard(queue.crawl_id, host.host_id)
                del self._hosts[host.host_id]
                forgotten += 1
        return forgotten

    def next_wake(self) -> float:
        """Return the time (`Clock.elapsed`) of the next scheduled examination of a host, infinity if there is none."""
        return self._later[0][0] if self._later else NEVER

    def _place(self, host: Host, queue: CrawlQueue) -> None:
        """Update what depends on a queue's counters and times, after one of them changed.

        - The order in which the host's queues take turns.
        - The time of the host's next examination.
        - If the queue is now empty: remove the host from the line of due hosts of the queue's crawl.
        """
        if queue.empty:
            self._idle.add(host.host_id)
            if queue.in_line:
                queue.in_line = False
                host.turn_until = 0.0
                self.lines.discard(queue.crawl_id, host.host_id)
            queue.idle = True
        elif queue.idle:
            queue.idle = False
            queue.virtual = max(queue.virtual, host.virtual)
        if host.turns is not None:
            host.turns.put(queue)
        self._arm(host)

    def _arm(self, host: Host) -> None:
        """Schedule the host's next examination at `Host.wakes_at`, unless an earlier one is scheduled."""
        at = host.wakes_at()
        if at < host.armed_for:
            host.armed_for = at
            heapq.heappush(self._later, (at, host.host_id))
            if len(self._later) > 2 * len(self._hosts) + _SPARE:
                self._later = [
                    (host.armed_for, host.host_id) for host in self._hosts.values() if host.armed_for < NEVER
                ]
                heapq.heapify(self._later)

    def _line_up(self, host: Host, now: float) -> None:
        """Put the host into the line of the crawl whose turn it is, if possible now. Schedule the next examination.

        If the host is blocked, or an earlier turn has not ended, the host enters no line. Otherwise there are three
        cases for the crawl whose turn it is:

        - The crawl may not dispatch, for example because its budget is spent: the host enters the crawl's line, and
          waits there until the crawl may dispatch. The next crawl gets the turn at once, with the same three cases.
        - The crawl may dispatch, and the host may be visited now: the host enters the crawl's line. The turn ends
          after at most `PASS_S` seconds.
        - The crawl may dispatch, but the host may not be visited yet: the host enters no line.
        """
        while max(host.blocked_until, host.turn_until) <= now and (queue := host.next(now)) is not None:
            shut = self.lines.shut(queue)
            if not shut and (host.free_slot(queue) is None or host.due(queue) > now):
                break
            queue.in_line = True
            if host.turns is not None:
                host.turns.put(queue)
            self.lines.append(queue, host.host_id)
            if not shut:
                host.turn_until = now + PASS_S
        self._arm(host)
