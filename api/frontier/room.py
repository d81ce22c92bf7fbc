"""How much may be dispatched to a pool, and what a crawl may still spend. Pure; times are monotonic seconds."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.frontier.leases import Held, Leases
from api.frontier.shares import Shares
from shared.domain.ids import CrawlId, Partition
from shared.wire.messages import WorkerStatus

STALE_AFTER_S = 5.0
"""A worker whose status is older counts as gone: nothing is dispatched on its account."""

AHEAD = 2
"""Shards kept out per free visit, so that a worker never waits for the owner's round trip."""


@dataclass(slots=True)
class _Worker:
    pool: str
    free: int
    heard_at: float
    status: WorkerStatus


class PoolRoom:
    """The live workers' free visits, as they report them, and what each crawl has of a pool (`shares`). `ahead`: shards
    kept out per free visit; it may change. `held`: why nothing may be sent out now, None while it may."""

    def __init__(self) -> None:
        self.held: str | None = None
        self.ahead: float = AHEAD
        self.shares = Shares()
        self._workers: OrderedDict[str, _Worker] = OrderedDict()
        self._free: Counter[str] = Counter()
        self._unbegun: Counter[str] = Counter()

    def watch(self, leases: Leases) -> None:
        """Count the shards of these leases from now on: those that are out, and those on their way."""
        leases.watched_by = self._count
        for held in leases:
            self._count(held, 1, held.began)

    def unwatch(self, leases: Leases) -> None:
        """Their owner is gone."""
        if leases.watched_by is not None:
            leases.watched_by = None
            for held in leases:
                self._count(held, -1, held.began + held.charged_s)

    def heard(self, status: WorkerStatus, now: float) -> None:
        """A worker reported its load."""
        free = max(0, status.visits - status.busy) if status.pulling else 0
        self._gone(status.worker)
        self._workers[status.worker] = _Worker(status.pool, free, now, status)
        self._free[status.pool] += free

    def live(self, now: float) -> list[WorkerStatus]:
        """The workers heard of lately."""
        return [worker.status for worker in self._workers.values() if now - worker.heard_at <= STALE_AFTER_S]

    def for_pool(self, pool: str, now: float) -> int:
        """Shards that may still be dispatched: `ahead` times the free visits, less those on their way or allotted; 0
        without workers, and while it is `held`."""
        if self.held is not None:
            return 0
        while self._workers and now - next(iter(self._workers.values())).heard_at > STALE_AFTER_S:
            self._gone(next(iter(self._workers)))
        return max(0, int(self.ahead * self._free[pool]) - self._unbegun[pool] - self.shares.promised(pool))

    def allot(self, now: float, may_go: Callable[[CrawlId], bool]) -> None:
        """Share what may be dispatched among the crawls that want it, in all partitions of this master."""
        for pool in self.shares.pools():
            room = self.for_pool(pool, now)
            if room:
                self.shares.allot(pool, room, now, may_go)

    def _count(self, held: Held, out: int, now: float) -> None:
        """Count a lease: 1: it is new, -1: it is over, 0: a grant of it begins."""
        row, unbegun = held.row, held.grant is None
        if out > 0:
            held.charged_s = self.shares.add(row.pool, row.crawl_id, 1)
        elif out < 0:
            used_s = 0.0 if unbegun else max(0.0, now - held.began)
            self.shares.ended(row.pool, row.crawl_id, used_s, held.charged_s)
        self._unbegun[row.pool] += (out or -1) if unbegun else 0

    def _gone(self, worker: str) -> None:
        known = self._workers.pop(worker, None)
        if known is not None:
            self._free[known.pool] -= known.free


@dataclass(slots=True)
class Spent:
    """What a crawl has used of its budget in a partition: pages and bytes stored, URLs out that may become pages."""

    pages: int = 0
    bytes: int = 0
    leased: int = 0


class Allowance:
    """A crawl's page and byte budget, taken before dispatch and given back by outcomes that are no new page.

    All partitions of this master share one. What other masters spend is known as of when it was last read (`restore`);
    that the budget holds nevertheless is the dispatching transaction's doing, which counts in SQL (`Store.dispatch`).
    So this one is for not asking in vain.
    """

    def __init__(self, max_pages: int | None, max_bytes: int | None, spent: Mapping[Partition, Spent]) -> None:
        self.max_pages = max_pages
        self.max_bytes = max_bytes
        self._rests_until = 0.0
        self._spent: dict[Partition, Spent] = {}
        self._total = Spent()
        for partition, part in spent.items():
            self.restore(partition, part)

    def __repr__(self) -> str:
        return f"<Allowance {self._total} of {self.max_pages} pages, {self.max_bytes} bytes>"

    def rest(self, until: float) -> None:
        """SQL had nothing left for us: what is known here is out of date. Ask no more until then."""
        self._rests_until = until

    def rests(self, now: float) -> bool:
        """Whether it is too early to ask again."""
        return now < self._rests_until

    def restore(self, partition: Partition, spent: Spent) -> None:
        """What is spent in a partition, read anew."""
        old = self._spent.get(partition, Spent())
        self._spent[partition] = Spent(spent.pages, spent.bytes, spent.leased)
        self._total.pages += spent.pages - old.pages
        self._total.bytes += spent.bytes - old.bytes
        self._total.leased += spent.leased - old.leased

    def room(self, most: int) -> int:
        """How many of `most` URLs may be leased now."""
        if self.max_bytes is not None and self._total.bytes >= self.max_bytes:
            return 0
        if self.max_pages is None:
            return most
        return max(0, min(most, self.max_pages - self._total.pages - self._total.leased))

    def take(self, partition: Partition, n: int) -> None:
        """`n` URLs are about to be leased."""
        self._change(partition, leased=n)

    def settled(self, partition: Partition, n: int, pages: int = 0, size: int = 0) -> None:
        """`n` of the URLs taken are out no longer; `pages` of them are new pages, of `size` bytes together."""
        self._change(partition, leased=-n, pages=pages, size=size)

    def exhausted(self) -> str | None:
        """Which budget is spent for good, if one is."""
        if self.max_pages is not None and self._total.pages >= self.max_pages:
            return "max_pages"
        if self.max_bytes is not None and self._total.bytes >= self.max_bytes:
            return "max_bytes"
        return None

    def _change(self, partition: Partition, *, leased: int, pages: int = 0, size: int = 0) -> None:
        part = self._spent.get(partition)
        if part is None:
            part = self._spent[partition] = Spent()
        for spent in (part, self._total):
            spent.leased += leased
            spent.pages += pages
            spent.bytes += size
