"""How crawls share a pool: by visit time and weight (start-time fair queueing, as in `host_shares`).

Each crawl has a virtual time in its pool: the visit time that the crawl used, divided by its weight. Each free place
for a shard goes to the crawl with the least virtual time. Only crawls with a due host take part.

When a crawl is allotted a shard, the crawl is charged with the mean time of its visits so far. When the shard ends, the
charge is corrected to the time that the visit took.

The pool has a virtual time, too: the highest virtual time at which a crawl was allotted a shard so far. A crawl that
joins, or had no due host for a while, starts at the pool's virtual time, if the crawl's own is lower. So the crawl does
not catch up on time in which it had nothing to fetch. If the crawl's own is higher, it is kept. So a crawl with one
host, which is due only now and then, does not come first each time.

Pure; times are monotonic seconds.
"""

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from shared.domain.ids import CrawlId, HostId

UNUSED_S: Final = 1.0
"""Seconds after which a line (see WaitingHosts) loses an unused allotment."""

AGAIN_S: Final = 0.5
"""Seconds after which a crawl that may not dispatch is checked again."""

_FIRST_VISIT_S: Final = 1.0
_LEAST_VISIT_S: Final = 0.05
_SMOOTHING: Final = 8
_SPARE: Final = 64


@dataclass(eq=False, slots=True)
class WaitingHosts:
    """A line: the due hosts of one crawl in one partition, which wait for capacity of the crawl's pool.

    The pool gives a line allotments. Each allotment permits the line to send one shard. A line that uses none of its
    allotments for `UNUSED_S` seconds loses all of them. It gets no new allotment until the partition's next dispatch
    pass begins.

    - `given`: called with the line after it got an allotment.
    - `on_allotments_lost`: called with the line after it lost its allotments.
    - `allotted`: the number of allotments that the line has and has not used.
    - `listed`: True if the line is in the list of lines with allotments that its partition keeps (in `DueHosts`).
    - `lost_allotments`: True from the loss of the allotments until the partition's next dispatch pass begins.
    """

    pool: str
    crawl_id: CrawlId
    weight: int
    given: Callable[["WaitingHosts"], None]
    on_allotments_lost: Callable[["WaitingHosts"], None]
    hosts: OrderedDict[HostId, None] = field(default_factory=OrderedDict)
    allotted: int = 0
    listed: bool = False
    lost_allotments: bool = False


@dataclass(eq=False, slots=True)
class _Crawl:
    """What a crawl uses of a pool, and its demand for more.

    - `out`: its shards that are out or allotted.
    - `virtual`: its visit time per weight.
    - `mean_s`: its mean visit time.
    - `lines`: its lines (`WaitingHosts`), each of one partition, that need more capacity.
    - `entry`: the number of its entry in the heap `_Pool.order`, 0 for none.
    - `shut`: True if it may not dispatch at present.
    """

    weight: int = 1
    out: int = 0
    virtual: float = 0.0
    mean_s: float = _FIRST_VISIT_S
    lines: OrderedDict[WaitingHosts, None] = field(default_factory=OrderedDict)
    entry: int = 0
    shut: bool = False


@dataclass(eq=False, slots=True)
class _Pool:
    """The crawls that share a pool, and the order in which they get capacity.

    - `order`: a heap of its crawls by virtual time. Among equal times, the crawl that has waited longest is first. It
      also contains some replaced entries, which are ignored.
    - `reopening`: a heap of crawls that may not dispatch (`shut`), by the time of their next check.
    - `unused_since`: for each line (`WaitingHosts`) with unused allotments: the time from which `UNUSED_S` is counted.
      This time is set when a line without allotments gets one, and again at each use of an allotment. Example: a line
      gets its first allotment at 10.0 and another at 10.4, so `unused_since` is 10.0. The line uses one at 10.6, so
      `unused_since` becomes 10.6. If the line does not use the other one until 11.6, the line loses it.
    - `promised`: the number of shards that are allotted but not leased.
    - `idle`: crawls without a shard out or a due host, whose virtual time is above the pool's. They are kept until the
      pool's virtual time reaches theirs.
    - `ahead`: a heap of the idle crawls by virtual time. It also contains some entries of crawls that are not idle any
      more, which are ignored.
    - `virtual`: the pool's virtual time, as the module's docstring defines it.
    """

    crawls: dict[CrawlId, _Crawl] = field(default_factory=dict)
    order: list[tuple[float, int, CrawlId]] = field(default_factory=list)
    reopening: list[tuple[float, CrawlId]] = field(default_factory=list)
    unused_since: OrderedDict[WaitingHosts, float] = field(default_factory=OrderedDict)
    promised: int = 0
    idle: set[CrawlId] = field(default_factory=set)
    ahead: list[tuple[float, CrawlId]] = field(default_factory=list)
    virtual: float = 0.0
    number: int = 0


class PoolShares:
    """Divides the capacity of each pool among its crawls, for one master."""

    def __init__(self) -> None:
        self._pools: defaultdict[str, _Pool] = defaultdict(_Pool)

    def __len__(self) -> int:
        """Count the crawls with a shard out or a due host, over all pools."""
        return sum(len(pool.crawls) - len(pool.idle) for pool in self._pools.values())

    def pools(self) -> Iterable[str]:
        """Return the names of the pools in which a crawl has a shard out or a due host."""
        return list(self._pools)

    def out(self, pool: str, crawl_id: CrawlId) -> int:
        """Return the number of the crawl's shards in the pool that are out or allotted."""
        crawl = self._crawl(pool, crawl_id)
        return crawl.out if crawl else 0

    def promised(self, pool: str) -> int:
        """Return the number of the pool's shards that are allotted but not leased yet."""
        known = self._pools.get(pool)
        return known.promised if known else 0

    def shut(self, pool: str, crawl_id: CrawlId) -> bool:
        """Return True if the crawl is shut: it gets no allotments, because it may not dispatch at present.

        An example is a crawl whose budget is spent. `allot` shuts such a crawl, and checks it again after `AGAIN_S`.
        """
        crawl = self._crawl(pool, crawl_id)
        return crawl is not None and crawl.shut

    def add(self, pool: str, crawl_id: CrawlId, n: int) -> float:
        """Add `n` to the number of the crawl's shards that are out, and charge the crawl for `n` shards.

        If `n` is negative, the number falls, and the crawl gets the charge for these shards back. Return the charge of
        one shard: the crawl's mean visit time in seconds.
        """
        known = self._pools[pool]
        crawl = self._known(known, crawl_id)
        crawl.out += n
        crawl.virtual += n * crawl.mean_s / crawl.weight
        self._push(known, crawl_id, crawl)
        self._forget(pool, known, crawl_id, crawl)
        return crawl.mean_s

    def ended(self, pool: str, crawl_id: CrawlId, used_s: float, charged_s: float) -> None:
        """Count a shard of the crawl as over, and correct the crawl's charge.

        - `used_s`: how long the visit took, in seconds.
        - `charged_s`: the visit time with which the crawl was charged for the shard.
        """
        known = self._pools[pool]
        crawl = self._known(known, crawl_id)
        crawl.out -= 1
        crawl.virtual += (used_s - charged_s) / crawl.weight
        crawl.mean_s = max(_LEAST_VISIT_S, crawl.mean_s + (used_s - crawl.mean_s) / _SMOOTHING)
        self._push(known, crawl_id, crawl)
        self._forget(pool, known, crawl_id, crawl)

    def update(self, line: WaitingHosts) -> None:
        """Update a crawl's demand after the due hosts or the allotments of `line` changed.

        Take back allotments that the line has no hosts for.
        """
        known = self._pools[line.pool]
        crawl = self._known(known, line.crawl_id)
        crawl.weight = line.weight
        spare = line.allotted - len(line.hosts)
        if spare > 0:
            self._take_back(known, line, spare)
        if len(line.hosts) > line.allotted and not line.lost_allotments:
            if line not in crawl.lines:
                if not crawl.lines:
                    crawl.virtual = max(crawl.virtual, known.virtual)
                crawl.lines[line] = None
                if not crawl.entry:
                    self._push(known, line.crawl_id, crawl)
        elif line in crawl.lines:
            del crawl.lines[line]
        if not line.allotted:
            known.unused_since.pop(line, None)
        self._forget(line.pool, known, line.crawl_id, crawl)

    def use(self, line: WaitingHosts, now: float) -> None:
        """Take one allotment from the line, because the caller is about to lease a shard of one of its hosts.

        After the attempt the caller calls `end_use`, whether the shard was leased or not.
        """
        line.allotted -= 1
        since = self._pools[line.pool].unused_since
        if line in since:
            since[line] = now
            since.move_to_end(line)

    def end_use(self, line: WaitingHosts) -> None:
        """Stop counting an allotment that the line has used. Call this once after each `use`.

        From `allot` until this call, the allotment counts as one shard of the line's crawl. This call makes the number
        of the crawl's shards one lower, in both cases:

        - A shard was leased. `add` counts the leased shard itself, so the number is right without the allotment.
        - No shard was leased. The place in the pool is free again, and any crawl can get it.
        """
        self._pools[line.pool].promised -= 1
        self.add(line.pool, line.crawl_id, -1)

    def allot(self, pool: str, count: int, now: float, may_go: Callable[[CrawlId], bool]) -> None:
        """Allot up to `count` shards of the pool, each to the crawl with the least virtual time.

        `may_go` returns True if a crawl may dispatch now. A crawl that may not dispatch gets nothing.
        """
        known = self._pools.get(pool)
        if known is None:
            return
        self._reclaim(known, now)
        while known.reopening and known.reopening[0][0] <= now:
            _, crawl_id = heapq.heappop(known.reopening)
            crawl = known.crawls.get(crawl_id)
            if crawl is not None and crawl.shut:
                crawl.shut = False
                self._push(known, crawl_id, crawl)
                self._forget(pool, known, crawl_id, crawl)
        while count > 0 and known.order:
            _, number, crawl_id = known.order[0]
            crawl = known.crawls.get(crawl_id)
            if crawl is None or crawl.entry != number:
                heapq.heappop(known.order)
            elif not crawl.lines:
                heapq.heappop(known.order)
                crawl.entry = 0
            elif not may_go(crawl_id):
                heapq.heappop(known.order)
                crawl.entry, crawl.shut = 0, True
                heapq.heappush(known.reopening, (now + AGAIN_S, crawl_id))
            else:
                self._give(known, crawl_id, crawl, now)
                count -= 1

    def _give(self, known: _Pool, crawl_id: CrawlId, crawl: _Crawl, now: float) -> None:
        line, _ = crawl.lines.popitem(last=False)
        line.allotted += 1
        known.promised += 1
        if crawl.virtual > known.virtual:
            known.virtual = crawl.virtual
            self._forget_passed(known)
        crawl.out += 1
        crawl.virtual += crawl.mean_s / crawl.weight
        known.unused_since.setdefault(line, now)
        if len(line.hosts) > line.allotted:
            crawl.lines[line] = None
        self._push(known, crawl_id, crawl)
        line.given(line)

    def _reclaim(self, known: _Pool, now: float) -> None:
        while known.unused_since:
            line, since = next(iter(known.unused_since.items()))
            if since > now - UNUSED_S:
                return
            del known.unused_since[line]
            line.lost_allotments = True
            self._take_back(known, line, line.allotted)
            self.update(line)
            line.on_allotments_lost(line)

    def _take_back(self, known: _Pool, line: WaitingHosts, n: int) -> None:
        line.allotted -= n
        known.promised -= n
        crawl = known.crawls[line.crawl_id]
        crawl.out -= n
        crawl.virtual -= n * crawl.mean_s / crawl.weight
        self._push(known, line.crawl_id, crawl)

    def _known(self, known: _Pool, crawl_id: CrawlId) -> _Crawl:
        crawl = known.crawls.get(crawl_id)
        if crawl is None:
            crawl = known.crawls[crawl_id] = _Crawl(virtual=known.virtual)
        return crawl

    def _push(self, known: _Pool, crawl_id: CrawlId, crawl: _Crawl) -> None:
        """Update a crawl's place in `known.order`, the order in which the crawls of a pool get capacity.

        The place is by the crawl's virtual time, behind crawls with the same virtual time. Two kinds of crawls have no
        place in the order:

        - crawls that may not dispatch at present (`shut`)
        - crawls that need no more capacity (`lines` is empty)
        """
        # An earlier entry of the crawl stays in the heap, and is ignored because its number is not `crawl.entry`.
        if not crawl.lines or crawl.shut:
            crawl.entry = 0
            return
        known.number += 1
        crawl.entry = known.number
        heapq.heappush(known.order, (crawl.virtual, known.number, crawl_id))
        if len(known.order) > 2 * len(known.crawls) + _SPARE:
            known.order = [(crawl.virtual, crawl.entry, each) for each, crawl in known.crawls.items() if crawl.entry]
            heapq.heapify(known.order)

    def _forget(self, pool: str, known: _Pool, crawl_id: CrawlId, crawl: _Crawl) -> None:
        """Forget the crawl if it is idle and its virtual time is not above the pool's. Forget the pool if all are idle.

        A crawl is idle if no shard of it is out and no host of it is due.
        """
        if crawl.out or crawl.lines or crawl.shut:
            known.idle.discard(crawl_id)
            return
        if crawl_id not in known.idle:
            known.idle.add(crawl_id)
            heapq.heappush(known.ahead, (crawl.virtual, crawl_id))
            if len(known.ahead) > 2 * len(known.crawls) + _SPARE:
                known.ahead = [(known.crawls[each].virtual, each) for each in known.idle]
                heapq.heapify(known.ahead)
        self._forget_passed(known)
        if len(known.idle) == len(known.crawls) and not known.promised:
            del self._pools[pool]

    def _forget_passed(self, known: _Pool) -> None:
        """Forget the idle crawls whose virtual time the pool's virtual time has reached."""
        while known.ahead and known.ahead[0][0] <= known.virtual:
            _, crawl_id = heapq.heappop(known.ahead)
            if crawl_id in known.idle and known.crawls[crawl_id].virtual <= known.virtual:
                known.idle.discard(crawl_id)
                del known.crawls[crawl_id]

    def _crawl(self, pool: str, crawl_id: CrawlId) -> _Crawl | None:
        known = self._pools.get(pool)
        return known.crawls.get(crawl_id) if known else None
