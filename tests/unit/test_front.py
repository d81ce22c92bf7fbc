"""The front's invariants, held against a judge that only sees what is leased and released, and when."""

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from api.frontier.host_queues import HostQueues
from api.frontier.host_shares import CrawlQueue
from api.frontier.hosts import LEAD_S, Host, HostFacts, facts_of
from api.frontier.pool_shares import PoolShares
from shared.domain.frontier.politeness import HostHealth
from shared.domain.frontier.store_model import QueueRow
from shared.domain.ids import CrawlId, HostId

EPOCH_MS = 1_700_000_000_000
DELAYS = {CrawlId(1): 0.0, CrawlId(2): 1.0, CrawlId(3): 10.0}
SLOTS = {CrawlId(1): 3, CrawlId(2): 1, CrawlId(3): 1}
HOSTS = [HostId(1), HostId(2)]
TINY = 1e-6


def longest(_host: Host) -> float:
    return max(DELAYS.values())


def offer(front: HostQueues, shares: PoolShares, now: float, room: int, without: Collection[CrawlId] = ()) -> None:
    """Begin a pass of dispatch in which the pool has `room`, and the crawls in `without` may not go on."""
    front.lines.begin(now)
    front.wake(now)
    shares.allot("default", room, now, lambda crawl_id: crawl_id not in without)


@dataclass
class Sql:
    """A queue's truth: what SQL would say."""

    queued: int = 0
    waiting: list[float] = field(default_factory=list)
    leased: int = 0


@dataclass
class Out:
    host: HostId
    crawl: CrawlId
    slot: int
    n: int


def row_of(host_id: HostId, crawl_id: CrawlId, sql: Sql, *, blocked_until_ms: int = 0) -> QueueRow:
    return QueueRow(
        crawl_id=crawl_id,
        host_id=host_id,
        host=f"h{host_id}",
        queued=sql.queued,
        waiting=len(sql.waiting),
        next_due_ms=int(min(sql.waiting) * 1000) + EPOCH_MS if sql.waiting else 0,
        pages=0,
        leased=sql.leased,
        shard_cap=0,
        crawl_delay_ms=0,
        operator_delay_ms=0,
        latency_ms=0,
        failures=0,
        unreachable=0,
        last_failure_ms=0,
        blocked_until_ms=blocked_until_ms,
        visited_at_ms=0,
    )


class FrontMachine(RuleBasedStateMachine):
    """Drives a front as an owner does; `self.now` are its monotonic seconds, and Unix time begins with them."""

    @initialize(max_hosts=st.sampled_from([1, 2, 2]))
    def begin(self, max_hosts: int) -> None:
        self.now = 0.0
        self.shares = PoolShares()
        self.max_hosts = max_hosts
        self.front = HostQueues(self.shares, max_hosts=max_hosts, rested_from=0.0)
        self.sql: dict[tuple[HostId, CrawlId], Sql] = {}
        self.out: list[Out] = []
        self.rests: dict[HostId, list[tuple[float, float]]] = {host: [(0.0, 0.0)] for host in HOSTS}
        self.blocked: dict[HostId, float] = dict.fromkeys(HOSTS, 0.0)

    def offer(self, host_id: HostId, crawl_id: CrawlId) -> bool:
        blocked_ms = EPOCH_MS + int(self.blocked[host_id] * 1000) if self.blocked[host_id] else 0
        row = row_of(host_id, crawl_id, self.sql[host_id, crawl_id], blocked_until_ms=blocked_ms)
        return self.front.offer(
            row,
            facts=facts_of(row),
            delay_s=DELAYS[crawl_id],
            slots=SLOTS[crawl_id],
            now=self.now,
            now_ms=EPOCH_MS + int(self.now * 1000),
        )

    def refill(self) -> None:
        """What the sweep does: offer what SQL has and the front does not hold."""
        for crawl_id in DELAYS:
            if crawl_id not in self.front.incomplete():
                continue
            if self.front.full():
                self.front.make_room(self.now, self.now + 2.0, longest)
            if self.front.full():
                continue
            self.front.mark_complete(crawl_id)
            for (host_id, crawl), sql in self.sql.items():
                if crawl == crawl_id and (sql.queued or sql.waiting):
                    self.offer(host_id, crawl)

    @rule(host_id=st.sampled_from(HOSTS), crawl_id=st.sampled_from(list(DELAYS)), n=st.integers(1, 3))
    def found(self, host_id: HostId, crawl_id: CrawlId, n: int) -> None:
        self.sql.setdefault((host_id, crawl_id), Sql()).queued += n
        if not self.front.added(crawl_id, host_id, n):
            self.offer(host_id, crawl_id)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.refill()
        self.front.evict_idle(self.now, longest)
        assert not [host for host in map(self.front.host, HOSTS) if host is not None and self.is_idle(host)]

    def is_idle(self, host: Host) -> bool:
        """Whether nothing is to be had of the host, and it is as polite to forget it."""
        rested = host.rested_from + max(host.last_delay_s, longest(host)) <= self.now
        nothing = not host.taken and all(queue.empty and not queue.leased for queue in host.queues.values())
        return rested and nothing and host.blocked_until <= self.now

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0]))
    def go_on(self, seconds: float) -> None:
        """Leases end, time passes, the sweep runs, and what is due goes out: the usual day of a front."""
        while self.out:
            self.end(self.out.pop())
        self.now += seconds
        self.sweep()
        self.dispatch(4, set())

    @rule(max_count=st.integers(1, 4), without=st.just(set()) | st.sets(st.sampled_from(list(DELAYS)), max_size=2))
    def dispatch(self, max_count: int, without: set[CrawlId]) -> None:
        """A batch: slots are held as queues are taken, and leases known only after the transaction."""
        asked: list[tuple[Host, CrawlQueue, int]] = []
        offer(self.front, self.shares, self.now, max_count, without)
        while (taken := self.front.take(self.now)) is not None:
            host, queue = taken
            assert queue.crawl_id not in without
            self.promote(host, queue)
            slot = host.free_slot(queue)
            if queue.queued <= 0 or slot is None:
                self.front.reschedule(host, queue)
                continue
            self.judge_start(host, queue, slot, [(other.host_id, at) for other, _, at in asked])
            assert self.front.acquire(host, queue) == slot
            asked.append((host, queue, slot))
            self.out.append(Out(host.host_id, queue.crawl_id, slot, 0))
        for host, queue, slot in asked:
            sql = self.sql[host.host_id, queue.crawl_id]
            n = min(2, sql.queued)
            sql.queued -= n
            sql.leased += n
            out = next(o for o in self.out if o.host == host.host_id and o.slot == slot)
            out.n = n
            self.front.record_lease(host, queue, slot, n)
            self.shares.add("default", queue.crawl_id, 1)
        self.front.lines.end()

    def promote(self, host: Host, queue: CrawlQueue) -> None:
        if not (queue.waiting and queue.next_due <= self.now):
            return
        sql = self.sql[host.host_id, queue.crawl_id]
        due = [at for at in sql.waiting if at <= self.now + TINY]
        sql.waiting = [at for at in sql.waiting if at > self.now + TINY]
        sql.queued += len(due)
        queue.queued, queue.waiting = sql.queued, len(sql.waiting)
        queue.next_due = min(sql.waiting, default=float("inf"))

    def judge_start(self, host: Host, queue: CrawlQueue, slot: int, _asked: list[tuple[HostId, int]]) -> None:
        others = [out for out in self.out if out.host == host.host_id]
        assert slot not in {out.slot for out in others}, "a slot in two leases"
        allowed = min(SLOTS[crawl] for crawl in [queue.crawl_id, *(out.crawl for out in others)])
        assert len(others) < allowed, "more shards out than the strictest crawl allows"
        for ended, delay in self.rests[host.host_id]:
            earliest = ended + max(delay, DELAYS[queue.crawl_id])
            assert self.now >= earliest - LEAD_S - TINY, f"{host.name} was leased {earliest - self.now} s too soon"
        assert self.now >= self.blocked[host.host_id] - 0.002, "a blocked host was asked"

    @precondition(lambda self: self.out)
    @rule(data=st.data(), quiet=st.sampled_from([0.0, 0.5, 5.0]), back=st.integers(0, 2), later=st.booleans())
    def release(self, data: st.DataObject, quiet: float, back: int, later: bool) -> None:
        out = data.draw(st.sampled_from(self.out))
        self.out.remove(out)
        sql = self.sql[out.host, out.crawl]
        back = min(back, out.n)
        sql.leased -= out.n
        host = self.front.host(out.host)
        assert host is not None, "a host with a lease out was forgotten"
        queue = host.queues.get(out.crawl)
        if later:
            sql.waiting += [self.now + 2.0] * back
        else:
            sql.queued += back
        if queue is not None:
            queue.leased -= out.n
            if later and back:
                queue.waiting += back
                queue.next_due = min(queue.next_due, self.now + 2.0)
            elif back:
                queue.queued += back
            self.front.reschedule(host, queue)
        elif back:
            self.front.mark_incomplete(out.crawl)
        self.shares.add("default", out.crawl, -1)
        ended = self.now - quiet
        self.rests[out.host].append((ended, DELAYS[out.crawl]))
        self.front.release(host, out.slot, ended, DELAYS[out.crawl])

    @rule(host_id=st.sampled_from(HOSTS), seconds=st.sampled_from([0.5, 4.0]))
    def block(self, host_id: HostId, seconds: float) -> None:
        host = self.front.host(host_id)
        self.blocked[host_id] = max(self.blocked[host_id], self.now + seconds)
        if host is not None:
            until = self.blocked[host_id]
            health = HostHealth(blocked_until_ms=EPOCH_MS + int(until * 1000))
            host.facts = HostFacts(health)
            self.front.block(host, until)

    @rule(crawl_id=st.sampled_from(list(DELAYS)))
    def commanded(self, crawl_id: CrawlId) -> None:
        """A command changed SQL under the front."""
        self.front.mark_stale(crawl_id)

    @rule(host_id=st.sampled_from(HOSTS), seconds=st.sampled_from([0.0, 6.0]))
    def operator_blocks(self, host_id: HostId, seconds: float) -> None:
        """SQL learns of the block first; every crawl's queues are read anew."""
        self.blocked[host_id] = self.now + seconds if seconds else 0.0
        for crawl_id in DELAYS:
            self.front.mark_stale(crawl_id)
        self.refill()
        host = self.front.host(host_id)
        if host is not None and not host.queues:
            self.blocked[host_id] = max(self.blocked[host_id], host.blocked_until)

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "front"):
            assert len(self.front) <= self.max_hosts

    @invariant()
    def slots_are_those_of_the_leases(self) -> None:
        if hasattr(self, "front"):
            kept = {(host.host_id, slot) for host in self.front.moving() for slot in host.taken}
            assert kept == {(out.host, out.slot) for out in self.out}

    def end(self, out: Out) -> None:
        """A lease ends with all its URLs settled."""
        self.sql[out.host, out.crawl].leased -= out.n
        host = self.front.host(out.host)
        assert host is not None, "a host with a lease out was forgotten"
        queue = host.queues.get(out.crawl)
        if queue is not None:
            queue.leased -= out.n
        self.shares.add("default", out.crawl, -1)
        self.rests[out.host].append((self.now, DELAYS[out.crawl]))
        self.front.release(host, out.slot, self.now, DELAYS[out.crawl])

    def teardown(self) -> None:
        """Liveness: once everything is released and time goes on, every URL is leased."""
        if not hasattr(self, "front"):
            return
        for _ in range(200):
            while self.out:
                self.end(self.out.pop())
            if not any(sql.queued or sql.waiting for sql in self.sql.values()):
                return
            self.now += 11.0
            self.sweep()
            self.dispatch(4, set())
        left = {key: sql for key, sql in self.sql.items() if sql.queued or sql.waiting}
        pytest.fail(f"never taken: {left} by {self.front!r}")


def test_host_is_leased_shortly_before_its_delay_ends_with_others() -> None:
    front = HostQueues(PoolShares(), max_hosts=9, rested_from=0.0)
    for n in range(1, 4):
        row = row_of(HostId(n), CrawlId(3), Sql(queued=5))
        front.offer(row, facts=facts_of(row), delay_s=10.0, slots=1, now=0.0, now_ms=EPOCH_MS)
        host = front.host(HostId(n))
        assert host is not None
        assert front.acquire(host, host.queues[CrawlId(3)]) == 0
        front.release(host, 0, 100.0 + n / 1000, 10.0)
    front.wake(100.0)
    due = front.next_wake()
    assert 110.003 - LEAD_S <= due <= 110.001
    front.wake(due - 0.001)
    assert front.due() == 0
    front.wake(due)
    assert front.due() == 3, "hosts whose delays end together are leased together"


def test_wait_of_an_early_lease_is_no_time_that_its_crawl_used() -> None:
    front = HostQueues(shares := PoolShares(), max_hosts=9, rested_from=0.0)
    row = row_of(HostId(1), CrawlId(3), Sql(queued=5))
    front.offer(row, facts=facts_of(row), delay_s=10.0, slots=1, now=0.0, now_ms=EPOCH_MS)
    leased_at = front.next_wake()
    assert leased_at < 10.0
    offer(front, shares, leased_at, 1)
    taken = front.take(leased_at)
    assert taken is not None
    host, queue = taken
    slot = front.acquire(host, queue)
    assert slot is not None
    front.record_lease(host, queue, slot, 1)
    front.release(host, slot, 10.5, 10.0)
    assert queue.virtual == pytest.approx(10.5), "half a second of work and its delay"


def test_hosts_that_are_blocked_for_long_hold_nobody_else_up() -> None:
    front = HostQueues(shares := PoolShares(), max_hosts=2, rested_from=-100.0)

    def offered(host: int, blocked_s: int) -> bool:
        until_ms = EPOCH_MS + blocked_s * 1000 if blocked_s else 0
        row = row_of(HostId(host), CrawlId(2), Sql(queued=5), blocked_until_ms=until_ms)
        return front.offer(row, facts=facts_of(row), delay_s=1.0, slots=1, now=0.0, now_ms=EPOCH_MS)

    assert offered(1, 3600)
    assert offered(2, 30)
    assert not offered(3, 0)
    assert CrawlId(2) in front.incomplete()
    assert front.make_room(0.0, 60.0, longest) == 1
    assert offered(3, 0)
    offer(front, shares, 0.0, 1)
    taken = front.take(0.0)
    assert taken is not None
    assert taken[0].host_id == 3


def test_block_of_a_policy_and_back_off_of_the_host_end_apart() -> None:
    front = HostQueues(PoolShares(), max_hosts=2, rested_from=-100.0)

    def offered(own_s: int, policy_s: int) -> float:
        row = replace(
            row_of(HostId(1), CrawlId(2), Sql(queued=5), blocked_until_ms=EPOCH_MS + own_s * 1000),
            operator_blocked_until_ms=EPOCH_MS + policy_s * 1000,
        )
        front.offer(row, facts=facts_of(row), delay_s=1.0, slots=1, now=0.0, now_ms=EPOCH_MS)
        host = front.host(HostId(1))
        assert host is not None
        return host.blocked_until

    assert [offered(*until) for until in ((5, 60), (5, 0), (70, 60), (0, 60), (0, 0))] == [60, 5, 70, 60, 0]


def test_large_heap_is_scanned_in_pieces_and_serves_every_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner does nothing else meanwhile."""
    monkeypatch.setattr("api.frontier.host_queues.LOOKED_AT", 3)
    front = HostQueues(PoolShares(), max_hosts=10, rested_from=-100.0)
    for host in range(10):
        row = row_of(HostId(host), CrawlId(2), Sql(queued=5), blocked_until_ms=EPOCH_MS + 3_600_000 * (host >= 8))
        assert front.offer(row, facts=facts_of(row), delay_s=1.0, slots=1, now=0.0, now_ms=EPOCH_MS)
    looked: list[int] = []
    due = Host.due

    def noted(host: Host, queue: CrawlQueue) -> float:
        looked.append(host.host_id)
        return due(host, queue)

    monkeypatch.setattr(Host, "due", noted)
    assert [front.make_room(0.0, 60.0, longest) for _ in range(4)] == [0, 0, 1, 1]
    assert looked == [*range(10), 0, 1]
    assert not front.full()


TestFront = FrontMachine.TestCase
TestFront.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
