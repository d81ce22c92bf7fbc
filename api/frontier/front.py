"""The front: the hosts of a partition that have something to do soon, ordered by when politeness lets them.

Pure: times are the owner's monotonic seconds, given as arguments. Everything here can be rebuilt from SQL, except how
long a host has rested; a host is therefore forgotten only after its delay has passed, and a new owner takes every host
as fetched at its claim.

Invariants:
- a slot of a host is taken by at most one lease: `hold`, then `leased` and `released`, or `let_go`;
- no more shards of a host are out than the strictest of their crawls allows;
- a queue stands in `_later` or in its crawl's ready line, not in both, and in neither while no slot is free;
- a host of which every queue is empty stands in `_idle`, and others may, so that it is found without a look at all;
- no host is taken in while `most_hosts` are held, beyond which `complete(crawl)` turns false and the owner reads more
  from SQL later; hosts that are blocked for long make room for others.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import islice
from typing import Final

from api.frontier.hosts import NEVER, Host, HostFacts, Queue
from api.frontier.shares import Shares
from shared.domain.ids import CrawlId, HostId
from shared.domain.ledger import QueueRow
from shared.domain.politeness import HostHealth

LOOKED_AT: Final = 5000
"""Hosts that one call of `make_room` goes over: the owner waits for it, 4 us a host (10 where it leaves)."""


class Front:
    """Holds the hosts in motion and gives out the next queue to lease from."""

    def __init__(self, shares: Shares, *, most_hosts: int, rested_from: float) -> None:
        self._shares = shares
        self.most_hosts = most_hosts
        self._claimed_at = rested_from
        self._hosts: OrderedDict[HostId, Host] = OrderedDict()
        self._ready: dict[CrawlId, OrderedDict[HostId, None]] = {}
        self._later: list[tuple[float, HostId, CrawlId]] = []
        self._incomplete: set[CrawlId] = set()
        self._idle: set[HostId] = set()

    def __repr__(self) -> str:
        ready = sum(map(len, self._ready.values()))
        return f"<Front hosts={len(self._hosts)} ready={ready} later={len(self._later)}>"

    def __len__(self) -> int:
        return len(self._hosts)

    def moving(self) -> list[Host]:
        """Hosts with a shard out."""
        return [host for host in self._hosts.values() if host.taken]

    def due(self) -> int:
        """Queues that may be leased from now and wait for a worker, as of the last `take`."""
        return sum(map(len, self._ready.values()))

    def host(self, host_id: HostId) -> Host | None:
        """The host, if it is held."""
        return self._hosts.get(host_id)

    def named(self, name: str) -> Host | None:
        """The host of this name, if it is held; looks through all, so for rare commands only."""
        return next((host for host in self._hosts.values() if host.name == name), None)

    def complete(self, crawl_id: CrawlId) -> bool:
        """Whether every queue of the crawl with something in it is held here."""
        return crawl_id not in self._incomplete

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
            queue = host.queues[row.crawl_id] = Queue(row.crawl_id, delay_s, slots)
        queue.delay_s, queue.slots = delay_s, slots
        queue.queued, queue.waiting = row.queued, row.waiting
        queue.next_due = now + (row.next_due_ms - now_ms) / 1000 if row.waiting else NEVER
        queue.pages, queue.leased, queue.cap = row.pages, row.leased, row.shard_cap
        self._arm(host, queue)
        return True

    def added(self, crawl_id: CrawlId, host_id: HostId, n: int) -> bool:
        """`n` URLs were queued; False when the queue is not held here (offer its row)."""
        host = self._hosts.get(host_id)
        queue = host.queues.get(crawl_id) if host else None
        if host is None or queue is None:
            return False
        queue.queued += n
        self._arm(host, queue)
        return True

    def take(self, now: float, without: Collection[CrawlId] = ()) -> tuple[Host, Queue] | None:
        """The next queue to lease from, by the crawls' shares, then by how long it has been due.

        Crawls in `without` are passed over. The caller holds a slot and leases (`leased`), or puts it back (`defer`).
        """
        self._wake(now)
        while True:
            crawl_id = self._shares.next([crawl_id for crawl_id in self._ready if crawl_id not in without])
            if crawl_id is None:
                return None
            line = self._ready[crawl_id]
            host_id, _ = line.popitem(last=False)
            if not line:
                del self._ready[crawl_id]
            host = self._hosts.get(host_id)
            queue = host.queues.get(crawl_id) if host else None
            if host is None or queue is None:
                continue
            queue.armed_for = None
            if queue.empty:
                self._idle.add(host_id)
            if queue.empty or host.free_slot(queue) is None:
                continue
            due = self._due(host, queue)
            if due > now:
                self._arm(host, queue)
                continue
            return host, queue

    def defer(self, host: Host, queue: Queue, until: float) -> None:
        """Nothing was leased from this queue: look at it again at `until`."""
        queue.armed_for = until
        heapq.heappush(self._later, (until, host.host_id, queue.crawl_id))

    def leased(self, host: Host, queue: Queue, slot: int, n: int) -> None:
        """A lease of `n` URLs took the slot held for it."""
        self.hold(host, slot, queue.slots)
        queue.queued -= n
        queue.leased += n
        self._shares.charge(queue.crawl_id, n)
        self._arm(host, queue)

    def hold(self, host: Host, slot: int, slots: int) -> None:
        """Keep a slot for a lease, beside which `slots` - 1 others may be out."""
        host.taken[slot] = slots

    def let_go(self, host: Host, slot: int) -> None:
        """The slot was not needed."""
        host.taken.pop(slot, None)
        for queue in host.queues.values():
            self._arm(host, queue)

    def pin(self, host_id: HostId, name: str, slot: int, delay_s: float) -> None:
        """A lease of an earlier owner holds this slot, whether or not its crawl is still known."""
        host = self._hosts.get(host_id)
        if host is None:
            facts = HostFacts(HostHealth())
            host = self._hosts[host_id] = Host(host_id, name, facts, self._claimed_at, last_delay_s=delay_s)
            self._idle.add(host_id)
        slots = min((queue.slots for queue in host.queues.values()), default=1)
        self.hold(host, slot, 1 if delay_s > 0 else slots)

    def released(self, host: Host, slot: int, rested_from: float, delay_s: float) -> None:
        """A lease is over; the host rests `delay_s` from `rested_from`, or as long as an earlier one made it."""
        rested_at = max(host.rested_from + host.last_delay_s, rested_from + delay_s)
        host.rested_from = max(host.rested_from, rested_from)
        host.last_delay_s = rested_at - host.rested_from
        self.let_go(host, slot)

    def block(self, host: Host, until: float) -> None:
        """Nothing of this host starts before `until`."""
        host.blocked_until = until
        for queue in host.queues.values():
            self._arm(host, queue)

    def rearm(self, host: Host, queue: Queue) -> None:
        """The queue's numbers were changed by the caller."""
        self._arm(host, queue)

    def drop_crawl(self, crawl_id: CrawlId) -> None:
        """Forget a crawl's queues (paused, deleted, or to be read anew)."""
        self._ready.pop(crawl_id, None)
        self._incomplete.discard(crawl_id)
        for host in self._hosts.values():
            if host.queues.pop(crawl_id, None) is not None:
                self._idle.add(host.host_id)

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
            host
            for host in looked_at
            if all(queue.empty or self._due(host, queue) >= soon for queue in host.queues.values())
        ]
        return self._forget(late, now, delay_s)

    def _forget(self, hosts: list[Host], now: float, delay_s: Callable[[HostFacts], float]) -> int:
        forgotten = 0
        for host in hosts:
            rested = host.rested_from + max(host.last_delay_s, delay_s(host.facts)) <= now
            if rested and not host.taken and not any(queue.leased for queue in host.queues.values()):
                self._incomplete.update(queue.crawl_id for queue in host.queues.values() if not queue.empty)
                del self._hosts[host.host_id]
                forgotten += 1
        return forgotten

    def next_wake(self) -> float:
        """When the next waiting queue becomes due; infinity when none waits."""
        return self._later[0][0] if self._later else NEVER

    def _due(self, host: Host, queue: Queue) -> float:
        content = 0.0 if queue.queued > 0 else queue.next_due
        return max(host.rested_at(queue), host.blocked_until, content)

    def _arm(self, host: Host, queue: Queue) -> None:
        line = self._ready.get(queue.crawl_id)
        if queue.empty:
            self._idle.add(host.host_id)
        if queue.empty or host.free_slot(queue) is None:
            queue.armed_for = None
            if line is not None and line.pop(host.host_id, self) is None and not line:
                del self._ready[queue.crawl_id]
            return
        if line is not None and host.host_id in line:
            return
        due = self._due(host, queue)
        if queue.armed_for != due:
            queue.armed_for = due
            heapq.heappush(self._later, (due, host.host_id, queue.crawl_id))

    def _wake(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            due, host_id, crawl_id = heapq.heappop(self._later)
            host = self._hosts.get(host_id)
            queue = host.queues.get(crawl_id) if host else None
            if queue is not None and queue.armed_for == due:
                self._ready.setdefault(crawl_id, OrderedDict())[host_id] = None
