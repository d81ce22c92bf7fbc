"""Writes of one turn of the event loop are sent together, in order, and none is held longer."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from api.server.joined_writes import JoinedWrites


class RecordedTransport(asyncio.Transport):
    """A transport that records each call that sends, and can be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = ""

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def writelines(self, parts: Iterable[Any]) -> None:
        self.sent.append(b"".join(parts))

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = "close"

    def abort(self) -> None:
        self.closed = "abort"

    def get_write_buffer_size(self) -> int:
        return 100


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([b"head"], [b"head"]),
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b"one", b"two"], [b"headone", b"two"]),
        ([b"", b"head", bytearray(b"body"), memoryview(b"more")], [b"headbody", b"more"]),
    ],
)
def test_writes_of_one_turn_are_sent_in_pairs(writes: list[bytes], expected: list[bytes]) -> None:
    async def story() -> None:
        below = RecordedTransport()
        joined = JoinedWrites(below, asyncio.get_running_loop())
        for each in writes:
            joined.write(each)
        await asyncio.sleep(0)
        assert below.sent == expected
        assert joined.get_write_buffer_size() == 100

    asyncio.run(story())


def test_a_buffer_that_changes_after_the_write_is_sent_as_it_was() -> None:
    async def story() -> None:
        below, data = RecordedTransport(), bytearray(b"head")
        joined = JoinedWrites(below, asyncio.get_running_loop())
        joined.write(data)
        data[:] = b"oops"
        assert joined.get_write_buffer_size() == 104
        await asyncio.sleep(0)
        assert below.sent == [b"head"]

    asyncio.run(story())


def test_a_held_write_is_sent_by_close_and_dropped_by_abort() -> None:
    async def story() -> None:
        for end, expected in (("close", [b"head"]), ("abort", [])):
            below = RecordedTransport()
            joined = JoinedWrites(below, asyncio.get_running_loop())
            joined.write(b"head")
            getattr(joined, end)()
            await asyncio.sleep(0)
            assert (below.sent, below.closed, joined.is_closing()) == (expected, end, True)

    asyncio.run(story())


def test_a_held_write_is_dropped_where_the_client_left() -> None:
    async def story() -> None:
        below = RecordedTransport()
        joined = JoinedWrites(below, asyncio.get_running_loop())
        joined.write(b"head")
        below.abort()
        await asyncio.sleep(0)
        assert below.sent == []

    asyncio.run(story())
