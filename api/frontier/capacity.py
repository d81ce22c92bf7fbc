"""How many more URL shards each pool can take, and how much of its budget each crawl has left.

Pure; times are monotonic seconds.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from msgspec import Struct

from api.frontier.leases import Leases, TrackedLease
from api.frontier.pool_shares import PoolShares
from shared.domain.frontier.counters import Counters
from shared.domain.frontier.recrawl_budget import Share, share
from shared.domain.ids import CrawlId, Partition
from shared.wire.messages import WorkerStatus

STALE_AFTER_S = 5.0
"""A worker whose status is older counts as gone: its capacity is not used."""

SHARDS_PER_VISIT = 2
"""How many shards are sent out for each visit that the workers could begin now.

With 2, a worker that has ended a visit finds the next shard in the broker, and does not wait for the owner."""


class _Worker(Struct):
    pool: str
    free: int
    reported_at: float
    status: WorkerStatus


class PoolCapacity:
    """Counts how many more URL shards the workers of each pool can take, from the statuses that one master received.

    - `shards_per_visit`: a factor, which can be changed at any time. Example with the factor 2: if the workers of a
      pool could begin 5 visits now, up to 10 shards that no worker has begun may be out.
    - `held`: why this master dispatches nothing now, or None.
    - `shares`: divides the capacity of a pool among its crawls.
    """

    def __init__(self) -> None:
        self.held: str | None = None
        self.shards_per_visit: float = SHARDS_PER_VISIT
        self.shares = PoolShares()
        self._workers: OrderedDict[str, _Worker] = OrderedDict()
        self._free: Counter[str] = Counter()
        self._unbegun: Counter[str] = Counter()

    def watch(self, leases: Leases) -> None:
        """Count each lease in `leases`, also each lease that is added later, against the capacity of its pool."""
        leases.watched_by = self._count
        for held in leases:
            self._count(held, 1, held.began)

    def unwatch(self, leases: Leases) -> None:
        """Stop counting these leases against the capacity of their pools, because their owner has ended."""
        if leases.watched_by is not None:
            leases.watched_by = None
            for held in leases:
                self._count(held, -1, held.began + held.charged_s)

    def worker_reported(self, status: WorkerStatus, now: float) -> None:
        """Replace a worker's last status by `status`, which it reported at `now` (`Clock.elapsed`)."""
        free = status.free
        self._gone(status.worker)
        self._workers[status.worker] = _Worker(status.pool, free, now, status)
        self._free[status.pool] += free

    def live(self, now: float) -> list[WorkerStatus]:
        """Return the last status of each worker that reported within the last STALE_AFTER_S seconds."""
        return [worker.status for worker in self._workers.values() if now - worker.reported_at <= STALE_AFTER_S]

    def for_pool(self, pool: str, now: float) -> int:
        """Return the number of further shards that may be dispatched to the pool.

        It is 0 if the pool has no worker, and while `held` is set.
        """
        if self.held is not None:
            return 0
        while self._workers and now - next(iter(self._workers.values())).reported_at > STALE_AFTER_S:
            self._gone(next(iter(self._workers)))
        # Subtract the shards that no worker has begun, and those that are allotted but not leased yet.
        return max(0, int(self.shards_per_visit * self._free[pool]) - self._unbegun[pool] - self.shares.promised(pool))

    def allot(self, now: float, may_go: Callable[[CrawlId], bool]) -> None:
        """Allot the free capacity of each pool to its crawls with due hosts, over all partitions of this master.

        `may_go` returns True if a crawl may dispatch now.
        """
        for pool in self.shares.pools():
            free = self.for_pool(pool, now)
            if free:
                self.shares.allot(pool, free, now, may_go)

    def _count(self, held: TrackedLease, out: int, now: float) -> None:
        """Update two counts of a pool after an event of the lease `held`: leased shards, and unbegun shards.

        A shard is unbegun until its lease gets its first grant, that is, until a worker begins the shard. `out` names
        the event:

        - 1: the lease was added. Add 1 to the leased shards. If the lease has no grant, also add 1 to the unbegun ones.
        - 0: the lease is about to get a grant. If it is the first grant, subtract 1 from the unbegun shards.
        - -1: the lease has ended. Subtract 1 from the leased shards. If the lease never had a grant, also subtract 1
          from the unbegun ones.

        `now`: the time of the event (`Clock.elapsed`).
        """
        # With 0, `held.grant` is not set yet: it is None if this is the first grant, which begins the shard.
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


class Spent(Struct):
    """What a crawl has used of its budget in one partition: stored pages and bytes, and leased URLs."""

    pages: int = 0
    bytes: int = 0
    leased: int = 0


def spent_in(counters: Counters) -> Spent:
    """Compute from a crawl's counters in one partition what the crawl has used of its budget there.

    Leased requisites, and leased URLs whose page is stored already, do not count.
    """
    return Spent(counters.pages, counters.bytes, counters.leased - counters.revisiting)


class BudgetReservation:
    """A crawl's page and byte budget, which all partitions of this master share.

    Dispatch reserves one page for each leased URL. The URL's outcome releases the reservation, and counts the page if
    it is new. What other masters spend is known only as of the last `restore`.

    The budget is enforced in SQL, by the transaction that leases URLs (`Store.dispatch`). Dispatch consults this object
    before that transaction, so that SQL is not asked for URLs of a crawl without budget.
    """

    def __init__(self, max_pages: int | None, max_bytes: int | None, spent: Mapping[Partition, Spent]) -> None:
        self.max_pages = max_pages
        self.max_bytes = max_bytes
        self._paused_until = 0.0
        self._spent: dict[Partition, Spent] = {}
        self._total = Spent()
        for partition, part in spent.items():
            self.restore(partition, part)

    def __repr__(self) -> str:
        return f"<BudgetReservation {self._total} of {self.max_pages} pages, {self.max_bytes} bytes>"

    def pause_until(self, until: float) -> None:
        """Let `paused` return True until `until` (`Clock.elapsed`), so that the crawl is not dispatched for a while.

        Call it when SQL leased nothing although memory shows that budget is left: other masters may have spent it.
        """
        self._paused_until = until

    def paused(self, now: float) -> bool:
        """Return True if `now` (`Clock.elapsed`) is before the time given to `pause_until`."""
        return now < self._paused_until

    def restore(self, partition: Partition, spent: Spent) -> None:
        """Replace the crawl's spending in a partition by the numbers just read from SQL."""
        old = self._spent.get(partition, Spent())
        pages, size, leased = spent.pages - old.pages, spent.bytes - old.bytes, spent.leased - old.leased
        self._change(partition, leased=leased, pages=pages, size=size)

    def remaining(self, max_count: int) -> int:
        """Return the number of URLs that the budget allows to lease now, at most `max_count`."""
        if self.max_bytes is not None and self._total.bytes >= self.max_bytes:
            return 0
        if self.max_pages is None:
            return max_count
        return max(0, min(max_count, self.max_pages - self._total.pages - self._total.leased))

    def take(self, partition: Partition, n: int) -> None:
        """Reserve budget for `n` URLs that are about to be leased."""
        self._change(partition, leased=n)

    def settled(self, partition: Partition, n: int, pages: int = 0, size: int = 0) -> None:
        """Release the reservation of `n` URLs. `pages` of them stored a new page, `size` bytes in total."""
        self._change(partition, leased=-n, pages=pages, size=size)

    def page_share(self, partition: Partition) -> Share:
        """Return the partition's share of the requests for stored pages that the crawl may start per day.

        The share is in proportion to the partition's stored pages. Example: partition 0 has 3/4 of the crawl's stored
        pages, and partition 1 has 1/4. Then partition 0 may start about 3/4 of the requests, and partition 1 the rest.
        """
        before = sum(part.pages for each, part in self._spent.items() if each < partition)
        here = self._spent[partition].pages if partition in self._spent else 0
        return share(before, here, self._total.pages)

    def exhausted(self) -> str | None:
        """Return the name of the budget that is spent (`max_pages` or `max_bytes`), or None if both have some left."""
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
