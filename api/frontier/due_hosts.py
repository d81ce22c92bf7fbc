"""The due hosts of a partition, which wait for workers: a line of hosts for each crawl, longest due first. Pure.

`PoolShares` allots capacity to the lines, at most one shard for each waiting host. A line with capacity gives away its
first host.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable

from api.frontier.host_shares import CrawlQueue
from api.frontier.pool_shares import PoolShares, WaitingHosts
from shared.domain.ids import CrawlId, HostId


class DueHosts:
    """The due hosts of one partition, in a line (a queue of hosts) for each crawl.

    `wake` is called when capacity is allotted to a line while no pass of dispatch is in progress. A pass lasts from
    `begin` to `end`.
    """

    def __init__(self, shares: PoolShares, wake: Callable[[], None] = lambda: None) -> None:
        self._shares = shares
        self._wake = wake
        self._lines: dict[CrawlId, WaitingHosts] = {}
        self._allotted: deque[WaitingHosts] = deque()
        self._used: list[WaitingHosts] = []
        self._lost_allotments: list[WaitingHosts] = []
        self._passing, self._now = False, 0.0
        self._due = 0

    def __len__(self) -> int:
        return self._due

    def waiting(self, may_dispatch: Callable[[CrawlId], bool]) -> Counter[str]:
        """Return the number of hosts in the lines of the crawls that may dispatch (`may_dispatch`), by pool."""
        counts: Counter[str] = Counter()
        for line in self._lines.values():
            counts[line.pool] += len(line.hosts) if may_dispatch(line.crawl_id) else 0
        return counts

    def crawls(self) -> Iterable[CrawlId]:
        """Return the crawls that have a line."""
        return self._lines.keys()

    def append(self, queue: CrawlQueue, host_id: HostId) -> None:
        """Put a host at the end of a crawl's line. `queue`: the host's queue of that crawl."""
        line = self._lines.get(queue.crawl_id)
        if line is None:
            line = WaitingHosts(queue.pool, queue.crawl_id, queue.weight, self._given, self._lost_allotments.append)
            self._lines[queue.crawl_id] = line
        self._due += host_id not in line.hosts
        line.hosts[host_id] = None
        self._shares.update(line)

    def discard(self, crawl_id: CrawlId, host_id: HostId) -> None:
        """Take a host out of the crawl's line, if it is there."""
        line = self._lines.get(crawl_id)
        if line is not None and host_id in line.hosts:
            del line.hosts[host_id]
            self._due -= 1
            self._changed(line)

    def drop(self, crawl_id: CrawlId) -> None:
        """Remove all hosts of the crawl's line."""
        line = self._lines.get(crawl_id)
        if line is not None:
            self._due -= len(line.hosts)
            line.hosts.clear()
            self._changed(line)

    def begin(self, now: float) -> None:
        """Begin a pass of dispatch at `now` (`Clock.elapsed`). Lines that lost an allotment may get allotments again.

        A line loses its allotments if the line uses none for about a second. The line then gets no allotment until the
        next pass begins.
        """
        self._passing, self._now = True, now
        for line in self._lost_allotments:
            line.lost_allotments = False
            self._changed(line)
        self._lost_allotments.clear()

    def pop(self) -> tuple[CrawlId, HostId] | None:
        """Take the longest due host out of a line that has capacity allotted. Return None if there is none.

        The caller calls `use` if a shard of the host can be sent. Otherwise the next host of the line gets the
        allotment.
        """
        while self._allotted:
            line = self._allotted[0]
            if line.allotted and line.hosts:
                host_id, _ = line.hosts.popitem(last=False)
                self._due -= 1
                return line.crawl_id, host_id
            self._allotted.popleft()
            line.listed = False
            self._changed(line)
        return None

    def use(self) -> None:
        """Take one allotment from the line of the host that `pop` returned last.

        Call this before a shard of the host is leased. The pool keeps one place reserved for the shard until `end`.
        """
        line = self._allotted[0]
        self._shares.use(line, self._now)
        self._used.append(line)
        self._changed(line)

    def end(self) -> None:
        """End a pass of dispatch: give back the places in the pool that `use` reserved.

        Call this after the shards are leased. The pool counts each leased shard itself, so the shard needs no reserved
        place any more. If no shard was leased for a place, the place is free again.
        """
        for line in self._used:
            self._shares.end_use(line)
        self._used.clear()
        self._passing = False

    def shut(self, queue: CrawlQueue) -> bool:
        """Return True if the queue's crawl may not dispatch at present, for example because its budget is spent."""
        return self._shares.shut(queue.pool, queue.crawl_id)

    def close(self) -> None:
        """Remove all lines and give back their allotments, because the partition is no longer owned."""
        self.end()
        for crawl_id in list(self._lines):
            self.drop(crawl_id)

    def _given(self, line: WaitingHosts) -> None:
        if not line.listed:
            line.listed = True
            self._allotted.append(line)
        if not self._passing:
            self._wake()

    def _changed(self, line: WaitingHosts) -> None:
        self._shares.update(line)
        if not line.hosts and self._lines.get(line.crawl_id) is line:
            del self._lines[line.crawl_id]
