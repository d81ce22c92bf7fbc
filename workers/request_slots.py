"""The request slots of a worker: they bound its concurrent requests, and crawls share them by weight.

A worker has many more visits than slots, because most visits wait for their hosts. A visit asks for a slot when its
host's delay has passed, and releases it when the answer has arrived. If all slots are taken, the next free one goes to
the crawl with the least request time per weight (start-time fair queueing, as in `api.frontier.pool_shares`). Within a
crawl it goes to the visit that has waited longest.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shared.domain.ids import CrawlId
from workers.disk_reservations import DiskReservations

_FIRST_REQUEST_S: Final = 0.1
_LEAST_REQUEST_S: Final = 0.001
_SMOOTHING: Final = 8
_MAX_KNOWN: Final = 1_024
"""When this many crawls are known, the crawls without waiting or sending visits are forgotten."""


@dataclass(eq=False, slots=True)
class _CrawlLine:
    """The queue of one crawl's visits that wait for a request slot.

    - `virtual`: about the seconds for which the crawl's requests had slots, divided by its weight. The waiting crawl
      with the lowest number gets the next slot.
    - `mean_s`: the mean duration of the crawl's requests, in seconds.
    - `listed`: True if the crawl has an entry in the heap, which orders crawls with waiting visits by `virtual`.
    - `out`: the number of slots that visits of the crawl use.
    """

    weight: int = 1
    virtual: float = 0.0
    mean_s: float = _FIRST_REQUEST_S
    listed: bool = False
    out: int = 0
    waiting: deque["Place"] = field(default_factory=deque)


class Place:
    """A visit's place in the queue for a request slot, and afterwards its slot.

    `granted` is a future: True once the visit has a slot, False if it gave up waiting.
    """

    __slots__ = ("charged_s", "granted", "left", "line", "since")

    def __init__(self, line: _CrawlLine, granted: asyncio.Future[bool]) -> None:
        self.line = line
        self.since = self.charged_s = 0.0
        self.left = False
        self.granted = granted

    @property
    def was_granted(self) -> bool:
        """True if the visit has got a slot, even if the slot was released since."""
        return self.granted.done() and not self.granted.cancelled() and self.granted.result()

    def give_up(self) -> None:
        """Stop waiting for a slot. No effect if the visit has a slot already."""
        if not self.granted.done():
            self.granted.set_result(False)


class Requests:
    """The `max_requests` request slots of one worker process. `now` returns monotonic seconds.

    `saturated` is True if all slots are taken and, in addition, at least as many visits wait for a slot as there are
    slots. Example: with 100 slots, 100 visits have a slot and 100 others wait. When `saturated` becomes False again,
    `on_capacity` is called.
    """

    def __init__(self, max_requests: int, now: Callable[[], float]) -> None:
        self.max_requests = max_requests
        self.on_capacity: Callable[[], None] = lambda: None
        self.in_use = 0
        self.waiting = 0
        self._now = now
        self._virtual = 0.0
        self._number = 0
        self._lines: dict[CrawlId, _CrawlLine] = {}
        self._order: list[tuple[float, int, _CrawlLine]] = []

    def __repr__(self) -> str:
        return f"<Requests {self.in_use} of {self.max_requests}, {self.waiting} waiting>"

    @property
    def saturated(self) -> bool:
        """True if at least as many visits wait for a slot as there are slots, so further visits would only wait."""
        return self.waiting >= self.max_requests

    def place(self, crawl_id: CrawlId, weight: int) -> Place:
        """Put a visit into its crawl's queue for a slot, and return its place.

        The place has a slot immediately if a slot is free and no visit waits. The caller must call `leave` with the
        place, even if the caller is cancelled. `weight`: that of the crawl's spec.
        """
        line = self._lines.get(crawl_id)
        if line is None:
            self._forget_idle()
            line = self._lines[crawl_id] = _CrawlLine()
        line.weight = weight
        place = Place(line, asyncio.get_running_loop().create_future())
        if self.in_use < self.max_requests and not self.waiting:
            self._cap_credit(line)
            self._grant(line, place)
        else:
            if not line.waiting:
                self._cap_credit(line)
            line.waiting.append(place)
            self.waiting += 1
            if not line.listed:
                self._push(line)
        return place

    def leave(self, place: Place) -> None:
        """Release the visit's slot, or remove the visit from the queue. Further calls for the same place do nothing."""
        if place.left:
            return
        full, place.left = self.saturated, True
        if place.was_granted:
            self._release(place)
        else:
            place.give_up()
            self.waiting -= 1
        if full and not self.saturated:
            self.on_capacity()

    def _release(self, place: Place) -> None:
        line = place.line
        used_s = self._now() - place.since
        line.virtual += (used_s - place.charged_s) / line.weight
        line.mean_s = max(_LEAST_REQUEST_S, line.mean_s + (used_s - line.mean_s) / _SMOOTHING)
        line.out -= 1
        self.in_use -= 1
        while self._order and self.in_use < self.max_requests:
            self._serve()

    def _serve(self) -> None:
        """Take the first crawl from the heap, and grant a slot to its longest waiting visit.

        The crawl's place in the heap may be out of date. In that case grant no slot, and only correct the place. Call
        this again until no slot is free or the heap is empty.
        """
        # The place is out of date if `virtual` of the crawl has grown since the crawl was put into the heap. A crawl
        # that still has waiting visits always returns to the heap.
        virtual, _, line = heapq.heappop(self._order)
        line.listed = False
        while line.waiting and line.waiting[0].granted.done():  # it gave up
            line.waiting.popleft()
        if line.waiting and line.virtual <= virtual:
            self.waiting -= 1
            self._grant(line, line.waiting.popleft())
        if line.waiting:
            self._push(line)

    def _grant(self, line: _CrawlLine, place: Place) -> None:
        self._virtual = max(self._virtual, line.virtual)
        place.since, place.charged_s = self._now(), line.mean_s
        line.virtual += line.mean_s / line.weight
        line.out += 1
        self.in_use += 1
        place.granted.set_result(True)

    def _cap_credit(self, line: _CrawlLine) -> None:
        """Prevent a crawl from getting all the next slots only because it used none for a while.

        Call this when the queue of the crawl was empty and a visit asks for a slot.
        """
        # `self._virtual` is the highest `virtual` of any crawl at the time when the crawl got a slot.
        line.virtual = max(line.virtual, self._virtual)

    def _push(self, line: _CrawlLine) -> None:
        self._number += 1
        line.listed = True
        heapq.heappush(self._order, (line.virtual, self._number, line))

    def _forget_idle(self) -> None:
        if len(self._lines) >= _MAX_KNOWN:
            self._lines = {known: line for known, line in self._lines.items() if line.waiting or line.out}


class Admission:
    """The request slot and the disk reservation of one visit, which it needs while it sends a request.

    The visit takes both only when the host's delay has passed. So a visit that waits for its host blocks no other
    visit.
    """

    def __init__(self, requests: Requests, reservations: DiskReservations, ending: asyncio.Event) -> None:
        self._requests = requests
        self._reservations = reservations
        self._ending = ending
        self._place: Place | None = None
        self._reserved: int | None = None

    @property
    def held(self) -> bool:
        """True if the visit has a request slot."""
        return self._place is not None and self._place.was_granted

    async def enter(self, crawl_id: CrawlId, weight: int, body_bytes: int) -> bool:
        """Wait for a request slot, and for disk space for a response body of `body_bytes`.

        Return True if the visit has both. Return False if `end` was called, or if the disk stays full
        (DiskReservations.reserve): then the visit must end. `weight`: that of the crawl's spec.
        """
        self._place = place = self._requests.place(crawl_id, weight)
        if not await place.granted:
            return False
        if self._reserved is None:
            self._reserved = await self._reservations.reserve(body_bytes, self._ending)
        return self._reserved is not None

    def end(self) -> None:
        """Stop waiting for a slot or for disk space. Do not call `enter` after this."""
        self._ending.set()
        if self._place is not None:
            self._place.give_up()

    def leave(self) -> None:
        """Release the request slot. Call it when the request is over."""
        if self._place is not None:
            self._requests.leave(self._place)
            self._place = None

    def release(self) -> None:
        """Release the request slot and the reserved disk space.

        Call it when the answer is in the archive, or when no answer came.
        """
        self.leave()
        if self._reserved is not None:
            self._reservations.give_back(self._reserved)
            self._reserved = None
