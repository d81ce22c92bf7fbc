"""The request slots of a worker: never more than there are, shared by weight, none lost."""

import asyncio
import heapq
from collections import defaultdict, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.ids import CrawlId
from workers.disk_reservations import DiskReservations
from workers.request_slots import Admission, Place, Requests

ONE, TWO = CrawlId(1), CrawlId(2)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_no_more_requests_than_slots_and_the_longest_waiting_first() -> None:
    async def story() -> None:
        requests = Requests(2, Clock())
        places = [requests.place(ONE, 1) for _ in range(5)]
        assert [place.was_granted for place in places] == [True, True, False, False, False]
        assert (requests.in_use, requests.waiting) == (2, 3)
        requests.leave(places[0])
        assert [place.was_granted for place in places[1:]] == [True, True, False, False]
        for place in places:
            requests.leave(place)
            requests.leave(place)
        assert (requests.in_use, requests.waiting) == (0, 0)

    asyncio.run(story())


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.tuples(st.floats(0.01, 2.0), st.floats(0.01, 2.0)),
    st.integers(1, 32),
)
@pytest.mark.long
def test_waiting_crawls_share_the_request_time_by_weight(
    weights: tuple[int, int], lasts: tuple[float, float], slots: int
) -> None:
    """Both crawls always have more visits ready than there are slots. At the start a request counts as 0.1 s, so the
    shares are judged from when the true times are known."""

    async def story() -> dict[CrawlId, float]:
        clock = Clock()
        requests = Requests(slots, clock)
        used: dict[CrawlId, float] = defaultdict(float)
        # Of one crawl the longest waiting is first, so only the head of each line has to be looked at.
        waiting = {crawl: deque(requests.place(crawl, weight) for _ in range(2 * slots)) for crawl, weight in zip((ONE, TWO), weights, strict=True)}  # fmt: skip  # noqa: E501
        ends: list[tuple[float, int, CrawlId, Place]] = []
        number = 0
        while clock.now < 500 * max(lasts):
            for crawl, weight, each_s in zip((ONE, TWO), weights, lasts, strict=True):
                line = waiting[crawl]
                while line[0].was_granted:
                    place = line.popleft()
                    number += 1
                    heapq.heappush(ends, (clock.now + each_s, number, crawl, place))
                    used[crawl] += each_s if clock.now >= 100 * max(lasts) else 0.0
                    line.append(requests.place(crawl, weight))
            assert len(ends) <= slots
            clock.now, _, _, over = heapq.heappop(ends)
            requests.leave(over)
        return used

    used = asyncio.run(story())
    first, second = used[ONE] / weights[0], used[TWO] / weights[1]
    spare = (slots + 8) * max(lasts)
    assert abs(first - second) <= 0.1 * max(first, second) + spare


def test_crawl_that_did_not_wait_saves_up_no_share() -> None:
    async def story() -> None:
        clock = Clock()
        requests = Requests(1, clock)
        for _ in range(100):
            place = requests.place(ONE, 1)
            clock.now += 1.0
            requests.leave(place)
        held = requests.place(ONE, 1)
        lines = {requests.place(crawl, 1): crawl for crawl in (ONE, TWO) * 20}
        order = []
        for _ in range(20):
            clock.now += 1.0
            requests.leave(held)
            held = next(place for place in lines if place.was_granted)
            order.append(lines.pop(held))
        assert 8 <= order.count(TWO) <= 12, "they take turns, whatever one had before"

    asyncio.run(story())


def test_visit_that_gives_up_or_is_cancelled_leaves_the_line_to_the_next() -> None:
    async def story() -> None:
        requests = Requests(1, Clock())
        first, second, third, fourth = [requests.place(ONE, 1) for _ in range(4)]
        second.give_up()
        assert await second.granted is False
        requests.leave(second)
        third.granted.cancel()
        requests.leave(third)
        assert requests.waiting == 1
        requests.leave(first)
        assert fourth.was_granted

    asyncio.run(story())


def test_slot_granted_in_the_moment_of_the_cancellation_is_given_back() -> None:
    async def story() -> None:
        requests, ending = Requests(1, Clock()), asyncio.Event()
        reservations = DiskReservations(None, lambda: pytest.fail("no disk"), None)  # type: ignore[arg-type]
        held = requests.place(ONE, 1)
        admission = Admission(requests, reservations, ending)
        entering = asyncio.ensure_future(admission.enter(ONE, 1, 1_000))
        await asyncio.sleep(0)
        requests.leave(held)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        admission.release()
        assert (requests.in_use, requests.waiting) == (0, 0)

    asyncio.run(story())


def test_visit_that_is_to_end_waits_for_no_slot() -> None:
    async def story() -> None:
        requests, ending = Requests(1, Clock()), asyncio.Event()
        reservations = DiskReservations(None, lambda: pytest.fail("no disk"), None)  # type: ignore[arg-type]
        held = requests.place(ONE, 1)
        admission = Admission(requests, reservations, ending)
        entering = asyncio.ensure_future(admission.enter(ONE, 1, 1_000))
        await asyncio.sleep(0)
        admission.end()
        assert await entering is False
        admission.release()
        requests.leave(held)
        assert (requests.in_use, requests.waiting) == (0, 0)

    asyncio.run(story())


def test_requests_are_saturated_while_as_many_wait_as_there_are_slots() -> None:
    async def story() -> None:
        requests = Requests(2, Clock())
        freed: list[bool] = []
        requests.on_capacity = lambda: freed.append(requests.saturated)
        places = [requests.place(ONE, 1) for _ in range(4)]
        assert requests.saturated
        requests.leave(places[0])
        assert freed == [False]
        for place in places[1:]:
            requests.leave(place)
        assert freed == [False]

    asyncio.run(story())
