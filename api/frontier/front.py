"""The front: the hosts of a partition that have something to do soon, ordered by when politeness lets them.

Pure: times are the owner's monotonic seconds, given as arguments. Everything here can be rebuilt from SQL, except how
long a host has rested; a host is therefore forgotten only after its delay has passed, and a new owner takes every host
as fetched at its claim.

A host is looked at when the crawl whose turn it is may go (`hosts`, `turns`), and then stands in that crawl's line
(`lines`) until capacity is allotted to it. After `PASS_S` there, or at once where the crawl may not go on, it also
stands in the line of the crawl that comes next, so that a crawl which waits for capacity holds no host up.

Invariants:
- a slot of a host is taken by at most one lease: `hold`, then `leased` and `released`, or `let_go`;
- no more shards of a host are out than the strictest of their crawls allows;
- a queue with something in it stands in its host's turns or in its crawl's line, not in both;
- a host has one entry in `_later` that counts; replaced ones stay until there are as many as hosts;
- a host of which every queue is empty stands in `_idle`, and others may, so that it is found without a look at all;
- no host is taken in while `most_hosts` are held, beyond which `complete(crawl)` turns false and the owner reads more
  from SQL later; hosts that are blocked for long make room for others.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from api.frontier.hosts import Host, HostFacts, Shard
from api.frontier.lines import Lines, unheard
from api.frontier.shares import Shares
from api.frontier.turns import CREDIT_S, NEVER, Queue
from shared.domain.ids import CrawlId, HostId
from shared.domain.ledger import QueueRow
from shared.domain.politeness import HostHealth

LOOKED_AT: Final = 5000
"""Hosts that one call of `make_room` goes over: the owner waits for it, 4 us a host (10 where it leaves)."""

PASS_S: Final = 1.0
"""How long a host waits for capacity of the crawl whose turn it is before another crawl may use it as well."""

_EXPECTED_FETCH_S: Final = 0.2
_SPARE: Final = 64


class Front:
    """Holds the hosts in motion and gives out the next queue to lease from."""

    def __init__(
        self, shares: Shares, *, most_hosts: int, rested_from: float, wake: Callable[[], None] = unheard
    ) -> None:
        """`wake` is called when capacity is allotted to this partition outside its own pass of dispatch."""
        self.lines = Lines(shares, wake)
        self.most_hosts = most_hosts
        self._claimed_at = rested_from
        self._now = rested_from
        self._hosts: OrderedDict[HostId, Host] = OrderedDict()
        self._later: list[tuple[float, HostId]] = []
        self._queues: Counter[CrawlId] = Counter()
        self._incomplete: set[CrawlId] = set()
        self._idle: set[HostId] = set()

    def __repr__(self) -> str:
        return f"<Front hosts={len(self._hosts)} ready={len(self.lines)} later={len(self._later)}>"

    def __len__(self) -> int:
        return len(self._hosts)

    def hosts(self) -> Iterable[Host]:
        """Every host that is held."""
        return self._hosts.values()

    def moving(self) -> list[Host]:
        """Hosts with a shard out."""
        return [host for host in self._hosts.values() if host.taken]

    def due(self) -> int:
        """Queues that may be leased from now and wait for a worker, as of the last `wake`."""
        return len(self.lines)

    def entries(self) -> int:
        """Entries of the heap of hosts, those included that were replaced."""
        return len(self._later)

    def host(self, host_id: HostId) -> Host | None:
        """The host, if it is held."""
        return self._hosts.get(host_id)

    def named(self, name: str) -> Host | None:
        """The host of this name, if it is held; looks through all, so for rare commands only."""
        return next((host for host in self._hosts.values() if host.name == name), None)

    def complete(self, crawl_id: CrawlId) -> bool:
        """Whether every queue of the crawl with something in it is held here."""
        return crawl_id not in self._incomplete

    def incomplete(self) -> list[CrawlId]:
        """The crawls of which SQL has queues that are not here."""
        return list(self._incomplete)

    def mark_incomplete(self, crawl_id: CrawlId) -> None:
        """SQL has queues of this crawl that are not here."""
        self._incomplete.add(crawl_id)

    def mark_complete(self, crawl_id: CrawlId) -> None:
        """A read of SQL brought all there were."""
        self._incomplete.discard(crawl_id)

    def full(self) -> bool:
        """Whether no further host is taken in."""
        return len(self._hosts) >= self.most_hosts

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
        """Take in a queue as SQL has it; False when the front is full. `pinned`: a lease is out, so it must be held."""
        host = self._hosts.get(row.host_id)
        if host is None:
            if self.full() and not pinned:
                self._incomplete.add(row.crawl_id)
                return False
            host = Host(row.host_id, row.host, facts, rested_from=self._claimed_at, last_delay_s=delay_s)
            host.blocked_until = now + (row.blocked_until_ms - now_ms) / 1000
            self._hosts[row.host_id] = host
        else:
            if facts.health.blocked_until_ms != host.facts.health.blocked_until_ms:
                host.blocked_until = now + (row.blocked_until_ms - now_ms) / 1000
            host.facts = replace(facts, last_failure=host.facts.last_failure, ip=host.facts.ip)
        queue = host.queues.get(row.crawl_id)
        if queue is None:
            queue = Queue(row.crawl_id, delay_s, slots)
            self._queues[row.crawl_id] += 1
            host.add(queue)
        queue.delay_s, queue.slots = delay_s, slots
        queue.weight, queue.pool = weight, pool
        queue.queued, queue.waiting = row.queued, row.waiting
        queue.next_due = now + (row.next_due_ms - now_ms) / 1000 if row.waiting else NEVER
        queue.pages, queue.leased, queue.cap = row.pages, row.leased, row.shard_cap
        self._place(host, queue)
        return True

    def added(self, crawl_id: CrawlId, host_id: HostId, n: int) -> bool:
        """`n` URLs were queued; False when the queue is not held here (offer its row)."""
        host = self._hosts.get(host_id)
        queue = host.queues.get(crawl_id) if host else None
        if host is None or queue is None:
            return False
        queue.queued += n
        self._place(host, queue)
        return True

    def wake(self, now: float) -> None:
        """Put the hosts that became due in line."""
        self._now = now
        while self._later and self._later[0][0] <= now:
            due, host_id = heapq.heappop(self._later)
            host = self._hosts.get(host_id)
            if host is not None and host.armed_for == due:
                host.armed_for = NEVER
                self._look(host, now)

    def take(self, now: float) -> tuple[Host, Queue] | None:
        """The next queue to lease from on the capacity that is allotted; None when there is none.

        The caller holds a slot and leases (`leased`), or puts it back (`defer`, `rearm`), and ends its pass with
        `lines.settle`.
        """
        self._now = now
        while (place := self.lines.pop()) is not None:
            crawl_id, host_id = place
            host = self._hosts.get(host_id)
            queue = host.queues.get(crawl_id) if host else None
            if host is None or queue is None:
                continue
            queue.in_line = False
            host.turn_until = 0.0
            if queue.empty or host.free_slot(queue) is None or host.due(queue) > now:
                # Another crawl used the host: the turn comes again, but what was missed does not pile up.
                queue.virtual = max(queue.virtual, host.virtual - CREDIT_S / queue.weight)
                self._place(host, queue)
                continue
            self.lines.use()
            return host, queue
        return None

    def defer(self, host: Host, queue: Queue, until: float) -> None:
        """Nothing was leased from this queue: look at it again at `until`."""
        queue.not_before = until
        self._place(host, queue)

    def leased(self, host: Host, queue: Queue, slot: int, n: int) -> None:
        """A lease of `n` URLs took the slot held for it."""
        latency_s = host.facts.latency_ms / 1000 or _EXPECTED_FETCH_S
        estimate = n * max(queue.delay_s, latency_s) / max(1, queue.slots)
        host.taken[slot] = Shard(queue.slots, queue, self._now, estimate)
        host.virtual = max(host.virtual, queue.virtual)
        queue.virtual += estimate / queue.weight
        queue.queued -= n
        queue.leased += n
        self._place(host, queue)

    def hold(self, host: Host, slot: int, slots: int) -> None:
        """Keep a slot for a lease, beside which `slots` - 1 others may be out."""
        host.taken[slot] = Shard(slots)

    def let_go(self, host: Host, slot: int, queue: Queue | None = None) -> None:
        """The slot was not needed. `queue` is the one it was held for, where nothing was leased."""
        host.taken.pop(slot, None)
        if queue is not None:
            self._place(host, queue)
        self._arm(host)

    def pin(self, host_id: HostId, name: str, slot: int, delay_s: float, crawl_id: CrawlId | None = None) -> None:
        """A lease of an earlier owner holds this slot, whether or not its crawl is still known."""
        host = self._hosts.get(host_id)
        if host is None:
            facts = HostFacts(HostHealth())
            host = self._hosts[host_id] = Host(host_id, name, facts, self._claimed_at, last_delay_s=delay_s)
            self._idle.add(host_id)
        slots = min((queue.slots for queue in host.queues.values()), default=1)
        queue = host.queues.get(crawl_id) if crawl_id is not None else None
        host.taken[slot] = Shard(1 if delay_s > 0 else slots, queue, self._claimed_at)

    def released(self, host: Host, slot: int, rested_from: float, delay_s: float) -> None:
        """A lease is over; the host rests `delay_s` from `rested_from`, or as long as an earlier one made it."""
        rested_at = max(host.rested_from + host.last_delay_s, rested_from + delay_s)
        host.rested_from = max(host.rested_from, rested_from)
        host.last_delay_s = rested_at - host.rested_from
        shard = host.taken.get(slot)
        if shard is not None:
            host.charge(shard, rested_from + delay_s)
        self.let_go(host, slot)

    def block(self, host: Host, until: float) -> None:
        """Nothing of this host starts before `until`."""
        host.blocked_until = until
        self._arm(host)

    def rearm(self, host: Host, queue: Queue) -> None:
        """The queue's numbers were changed by the caller."""
        self._place(host, queue)

    def drop_crawl(self, crawl_id: CrawlId) -> None:
        """Forget a crawl's queues (paused, deleted, or to be read anew)."""
        self.lines.drop(crawl_id)
        self._incomplete.discard(crawl_id)
        for host in self._hosts.values() if self._queues.pop(crawl_id, 0) else ():
            if host.remove(crawl_id) is not None:
                self._idle.add(host.host_id)
                self._arm(host)

    def mark_stale(self, crawl_id: CrawlId) -> None:
        """SQL changed under this crawl's queues: they are to be read anew."""
        self.drop_crawl(crawl_id)
        self._incomplete.add(crawl_id)

    def forget_rested(self, now: float, delay_s: Callable[[HostFacts], float]) -> int:
        """Drop hosts with nothing to do that any crawl might visit now; how many. Costs what is idle, not what is held.

        `delay_s`: the longest delay that a crawl keeps to a host, since how long it has rested is remembered only here.
        """
        held = (self._hosts.get(host_id) for host_id in self._idle)
        idle = [host for host in held if host is not None and all(queue.empty for queue in host.queues.values())]
        self._idle = {host.host_id for host in idle}
        return self._forget([host for host in idle if host.blocked_until <= now], now, delay_s)

    def make_room(self, now: float, soon: float, delay_s: Callable[[HostFacts], float]) -> int:
        """Leave hosts with nothing to do before `soon` to SQL, so that others get their place; how many.

        Looks at those that it has not looked at for longest, `LOOKED_AT` at most.
        """
        looked_at = list(islice(self._hosts.values(), LOOKED_AT))
        for host in looked_at if len(looked_at) < len(self._hosts) else ():
            self._hosts.move_to_end(host.host_id)
        late = [
            host for host in looked_at if all(queue.empty or host.due(queue) >= soon for queue in host.queues.values())
        ]
        return self._forget(late, now, delay_s)

    def _forget(self, hosts: list[Host], now: float, delay_s: Callable[[HostFacts], float]) -> int:
        forgotten = 0
        for host in hosts:
            rested = host.rested_from + max(host.last_delay_s, delay_s(host.facts)) <= now
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
        """When the next waiting host becomes due; infinity when none waits."""
        return self._later[0][0] if self._later else NEVER

    def _place(self, host: Host, queue: Queue) -> None:
        """Place a queue by what it has now, after any change of it."""
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
        """Look at the host when the next of its queues may go, if not earlier."""
        at = host.wakes_at()
        if at < host.armed_for:
            host.armed_for = at
            heapq.heappush(self._later, (at, host.host_id))
            if len(self._later) > 2 * len(self._hosts) + _SPARE:
                self._later = [
                    (host.armed_for, host.host_id) for host in self._hosts.values() if host.armed_for < NEVER
                ]
                heapq.heapify(self._later)

    def _look(self, host: Host, now: float) -> None:
        """Put the host in the line of the crawl whose turn it is, if that crawl may go, and of those that come before
        it and may not go on."""
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
