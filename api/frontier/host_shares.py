"""How several crawls share a host: start-time fair queueing (Goyal, Vin and Cheng, 1996).

Each queue has a virtual time: the host time that its crawl used, divided by the crawl's weight. For example, 60 s of
host time and weight 2 add 30 to the virtual time. The next shard comes from the queue with the least virtual time that
has URLs to fetch.

The host has a virtual time, too: the highest virtual time at which one of its queues has started a shard so far. A
queue that was empty begins again at the host's virtual time, if the queue's own is lower. So the queue gets no extra
turns for the time in which it was empty.

Pure; times are the owner's monotonic seconds.
"""

import heapq
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from shared.domain.ids import CrawlId

NEVER: Final = float("inf")

CREDIT_S: Final = 60.0
"""How much host time (s) a queue that missed its turn may catch up later, at most.

A queue misses its turn if its crawl waits for workers, and another crawl uses the host meanwhile."""

_SPARE: Final = 8


class CrawlQueue(Struct):
    """A host's queue of one crawl: its counters and times, and its place in the order of the host's queues.

    - `delay_s`: the host's delay for this crawl. `slots`: how many shards of it may be out at once.
    - `queued`: its URLs that may be leased now.
    - `waiting`, `next_due`: its URLs that wait for a due time, and the first of these times (`Clock.elapsed`).
    - `cap`: the maximum number of URLs in its next shard, 0 for no limit.
    - `not_before`: nothing is leased from the queue before this time (`Clock.elapsed`). `HostQueues.defer` sets it when
      dispatch finds nothing in the queue that may be leased at present.
    - `virtual`: its virtual time on the host.
    - `in_line`: True if the host is in the crawl's line of due hosts.
    - `idle`: True while the queue has no URLs. When it gets URLs, `virtual` is raised to the host's virtual time.
    - `place`: the number of the queue's entry in the host's `HostShares`. 0: the queue has no entry there.
    - `key`: the sort key of the entry. `HostShares` sorts two kinds of queues apart. The key of a queue with URLs to
      fetch now is its virtual time. The key of any other queue is the time when the queue will have URLs to fetch.
    - `without_requisites`: True if it certainly contains no requisite.
    - `stored_only`: True if the host's page budget is spent, and only stored pages or requisites are left in the queue.
    - `signals`: how often the dates that the host's sitemaps give for pages were right, encoded (HostSignals).
    - `found_ms`: when a sitemap of the host last listed something new (Unix ms).
    - `credit`: how many stored pages (less than 1) `revisits_of` still owes the queue, because the method rounds down.
      Example: 2.5 stored pages were due, and the method returned 2. Then `credit` is 0.5, and the next call adds it.
    """

    crawl_id: CrawlId
    delay_s: float
    slots: int
    pool: str = "default"
    weight: int = 1
    queued: int = 0
    waiting: int = 0
    next_due: float = NEVER
    pages: int = 0
    leased: int = 0
    cap: int = 0
    not_before: float = 0.0
    virtual: float = 0.0
    in_line: bool = False
    idle: bool = True
    place: int = 0
    key: float = 0.0
    credit: float = 0.0
    without_requisites: bool = False
    stored_only: bool = False
    signals: bytes | None = None
    found_ms: int = 0

    @property
    def empty(self) -> bool:
        return self.queued == 0 and self.waiting == 0

    def revisits_of(self, max_count: int, share: float, new: int) -> int:
        """Return how many of the `max_count` URLs in the next shard may be stored pages that are due.

        `new`: how many other URLs may be leased. If there are none, return `max_count`. Otherwise return about
        `share` (0..1) times `max_count`. Example: for a share of 0.25 and 10 URLs, two calls return 2 and then 3.
        """
        if self.queued == 0 or new <= 0:
            return max_count
        self.credit += share * max_count  # keeps the fraction for the next call
        whole = min(int(self.credit), max_count)
        self.credit -= whole
        return whole

    def content_at(self) -> float:
        """Return the time (`Clock.elapsed`) from which the queue has URLs to fetch: a past time if it has some now."""
        return max(0.0 if self.queued > 0 else self.next_due, self.not_before)


class HostShares:
    """The order in which the queues of one host get their turns.

    - Ready queues have URLs to fetch at present. The ready queue with the least virtual time gets the next turn.
    - Waiting queues get no turn yet. Their URLs are due later, such as retries, or `not_before` is in the future. When
      the time has come, `next` makes a waiting queue ready.
    - A queue without URLs gets no turn.
    - A queue with `in_line` gets no turn: its host is already in the crawl's line of due hosts.
    """

    # A queue that moves gets a new entry. Its old entry is removed when it comes first, or when there are more than
    # about twice as many entries as queues.
    __slots__ = ("_later", "_number", "_ready")

    def __init__(self) -> None:
        self._ready: list[tuple[float, int, CrawlId]] = []
        self._later: list[tuple[float, int, CrawlId]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._ready) + len(self._later)

    def put(self, queue: CrawlQueue) -> None:
        """Update a queue's place in the order, after its counters or times changed.

        - If the queue has no URLs, or if `in_line` is True: remove the queue from the order.
        - Otherwise: put the queue at its place.
        """
        if queue.empty or queue.in_line:
            queue.place = 0
            return
        at = queue.content_at()
        key = at if at > 0 else queue.virtual
        if queue.place and queue.key == key:
            return
        self._push(self._later if at > 0 else self._ready, key, queue)

    def next(self, queues: Mapping[CrawlId, CrawlQueue], now: float, virtual: float) -> CrawlQueue | None:
        """Return the queue with the least virtual time that has URLs to fetch at `now`, or None.

        `virtual`: the host's virtual time. A queue that had no URLs until now gets at least this virtual time.
        """
        while self._later and self._later[0][0] <= now:
            queue = _current(queues, heapq.heappop(self._later))
            if queue is not None:
                queue.virtual = max(queue.virtual, virtual)
                self._push(self._ready, queue.virtual, queue)
        return self.first(queues)

    def first(self, queues: Mapping[CrawlId, CrawlQueue]) -> CrawlQueue | None:
        """Return the ready queue with the least virtual time, or None if no queue is ready.

        Waiting queues are ignored, even if they are due by now. Only `next` makes waiting queues ready.
        """
        while self._ready:
            queue = _current(queues, self._ready[0])
            if queue is not None:
                return queue
            heapq.heappop(self._ready)
        return None

    def later(self, queues: Mapping[CrawlId, CrawlQueue]) -> float:
        """Return the earliest time (`Clock.elapsed`) at which a waiting queue becomes ready; infinity if none waits."""
        while self._later and _current(queues, self._later[0]) is None:
            heapq.heappop(self._later)
        if len(self) > 2 * len(queues) + _SPARE:
            self._compact(queues)
        return self._later[0][0] if self._later else NEVER

    def _push(self, heap: list[tuple[float, int, CrawlId]], key: float, queue: CrawlQueue) -> None:
        self._number += 1
        queue.place, queue.key = self._number, key
        heapq.heappush(heap, (key, self._number, queue.crawl_id))

    def _compact(self, queues: Mapping[CrawlId, CrawlQueue]) -> None:
        for heap in (self._ready, self._later):
            heap[:] = [entry for entry in heap if _current(queues, entry) is not None]
            heapq.heapify(heap)


def _current(queues: Mapping[CrawlId, CrawlQueue], entry: tuple[float, int, CrawlId]) -> CrawlQueue | None:
    """Return the queue of a heap's entry. Return None if the entry is old: the queue has a newer one, or has left."""
    queue = queues.get(entry[2])
    return queue if queue is not None and queue.place == entry[1] else None
