"""A follower's way through the stream while the broker goes, comes back with less, and goes again."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from api.events.reader import EventCursor, EventGap, LossReason
from shared.domain.errors import Transient
from shared.ports.broker import Delivered
from shared.ports.events import Events, EventsState


class Stream:
    """A stream that a test changes; `away`: how many of the next calls fail."""

    def __init__(self, last: int) -> None:
        self.created_ns = 1
        self.newest = last
        self.away = 0
        self.closed = 0

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise Transient("away", retry_in=0.0)

    async def state(self) -> EventsState:
        self._answer()
        return EventsState(self.created_ns, 1, self.newest)

    async def last(self, subject: str) -> Delivered | None:
        return Delivered(self.newest, self.newest, b"")

    async def read(self, subjects: Sequence[str], after: int) -> "Reader":
        self._answer()
        return Reader(self, after)


class Reader:
    def __init__(self, stream: Stream, after: int) -> None:
        self._stream = stream
        self._at = after

    async def read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        self._stream._answer()
        if self._stream.newest < self._at:
            raise Transient("it is not the stream that was read", retry_in=0.0)
        begun, self._at = self._at, self._stream.newest
        return [Delivered(n, n, b"") for n in range(begun + 1, self._at + 1)]

    async def close(self) -> None:
        self._stream.closed += 1


async def opened(stream: Stream, after: int) -> EventCursor:
    following = EventCursor(cast(Events, stream), ["events.>"], after)
    assert await following.open() is None
    return following


def test_broker_failing_again_during_stream_check_ends_no_reader() -> None:
    """It came back without its newest events, and by the time it answers has others under their numbers."""

    async def story() -> None:
        stream = Stream(last=10)
        following = await opened(stream, 8)
        assert [each.sequence for each in await following.next(0.0) if isinstance(each, Delivered)] == [9, 10]
        stream.newest = 8
        assert await following.next(0.0) == [], "what is read is no longer there"

        async def state_and_gone() -> EventsState:
            stream.away = 1
            return EventsState(1, 1, 8)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stream, "state", state_and_gone)
            assert await following.next(0.0) == [], "away before it was read anew"
        stream.newest = 12
        gap, *events = await following.next(0.0)
        assert gap == EventGap(LossReason.REPLACED, 10, 11)
        assert [each.sequence for each in events if isinstance(each, Delivered)] == [11, 12]
        assert stream.closed == 1

    asyncio.run(story())


def test_stream_restored_shorter_is_read_from_oldest_after_a_gap() -> None:
    async def story() -> None:
        stream = Stream(last=10)
        following = await opened(stream, 10)
        stream.newest = 8
        assert await following.next(0.0) == []
        gap, *events = await following.next(0.0)
        assert gap == EventGap(LossReason.REPLACED, 10, 1)
        assert [each.sequence for each in events if isinstance(each, Delivered)] == [*range(1, 9)]
        assert following.position == 8

    asyncio.run(story())


def test_gap_is_reported_if_broker_fails_before_the_next_event() -> None:
    async def story() -> None:
        stream = Stream(last=10)
        following = await opened(stream, 10)
        stream.newest = 8
        assert await following.next(0.0) == []
        read = stream.read

        async def read_and_gone(subjects: Sequence[str], after: int) -> Reader:
            reader = await read(subjects, after)
            stream.away = 1
            return reader

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stream, "read", read_and_gone)
            assert await following.next(0.0) == [EventGap(LossReason.REPLACED, 10, 1)]
        events = await following.next(0.0)
        assert [each.sequence for each in events if isinstance(each, Delivered)] == [*range(1, 9)]

    asyncio.run(story())
