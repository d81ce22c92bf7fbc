"""A stream of changes sends each once, also those that an owner commits late, and ends when it must."""

import asyncio
import json
from collections.abc import Container, Sequence
from typing import Any

import pytest

from api.http import change_stream, sse
from api.http.change_stream import WINDOW_MS, ChangeStream
from api.http.sse import StreamLimit
from api.routes.changes import _last
from api.schemas.changes import ChangesGap, gap_of
from shared.domain.errors import Transient
from shared.domain.frontier.page_history import ChangeKind
from shared.domain.ids import Fingerprint, HostId
from shared.domain.reads.changes import ChangePlace, PageChangeView

AT_MS = 1_893_456_000_000


def change(after_ms: int, partition: int = 0, number: int = 1, kind: ChangeKind = ChangeKind.CHANGED) -> PageChangeView:
    place = ChangePlace(AT_MS + after_ms, partition, number, 0)
    return PageChangeView(place, kind, HostId(1), Fingerprint(b"f" * 16), "http://a.test/", "a.test", number)


class Log:
    """The log of a crawl, read in pages of two, of which changes of `kinds` are returned."""

    def __init__(self, *changes: PageChangeView, kinds: Container[ChangeKind] = frozenset(ChangeKind)) -> None:
        self.changes = list(changes)
        self.kinds = kinds
        self.away = False
        self.begins: list[int] = []
        self.was_read = asyncio.Event()

    async def read(self, after: ChangePlace) -> tuple[Sequence[PageChangeView], ChangePlace | None]:
        self.begins.append(after.at_ms - AT_MS)
        self.was_read.set()
        if self.away:
            self.away = False
            raise Transient("the database is away")
        found = sorted((each for each in self.changes if each.place > after), key=lambda each: each.place)
        return [each for each in found[:2] if each.kind in self.kinds], found[1].place if len(found) > 2 else None


class Client:
    """Reads a stream until it leaves."""

    def __init__(self, log: Log, after: ChangePlace, *, allowed: bool = True, gap: ChangesGap | None = None) -> None:
        self.streams = StreamLimit()
        self.sent: list[bytes] = []
        self.leave, self.more = asyncio.Event(), asyncio.Event()

        async def may() -> bool:
            return allowed

        self.response = ChangeStream(log.read, after, gap, streams=self.streams, allowed=may)

    async def receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message.get("body", b""))
        self.more.set()

    def versions(self) -> list[int]:
        lines = b"".join(self.sent).decode().splitlines()
        return [json.loads(line[6:])["version"] for line in lines if line.startswith("data: {") and "version" in line]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.versions()) < count:
                self.more.clear()
                await self.more.wait()

    async def run(self) -> None:
        await self.response({"type": "http", "path": "/stream"}, self.receive, self.send)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "LOOK_S", 0.01)


def test_stream_sends_each_change_once_and_late_commits_too() -> None:
    async def story() -> None:
        log = Log(change(0, number=1), change(1000, number=2), change(2000, number=3))
        client = Client(log, ChangePlace(AT_MS))
        running = asyncio.create_task(client.run())
        await client.until(3)
        log.away = True
        log.changes.append(change(1500, partition=9, number=4))
        await client.until(4)
        log.changes += [change(2000 + WINDOW_MS, number=n) for n in range(5, 9)]
        await client.until(8)
        await asyncio.sleep(0.1)
        client.leave.set()
        await running
        assert client.versions() == [1, 2, 3, 4, 5, 6, 7, 8]
        assert len(client.response._sent) <= 5, "only the window is remembered"

    asyncio.run(story())


def test_stream_passes_changes_of_other_kinds_without_one_of_its_own() -> None:
    async def story() -> None:
        log = Log(*(change(n * WINDOW_MS) for n in range(10)), kinds={ChangeKind.GONE})
        client = Client(log, ChangePlace(AT_MS - 1))
        running = asyncio.create_task(client.run())
        async with asyncio.timeout(20):
            while log.begins.count(7 * WINDOW_MS) < 5:
                log.was_read.clear()
                await log.was_read.wait()
        log.changes.append(change(6 * WINDOW_MS + 1, number=2, kind=ChangeKind.GONE))
        await client.until(1)
        client.leave.set()
        await running
        assert log.begins.count(-1) == 1, "the log is read from its begin once"

    asyncio.run(story())


def test_stream_from_before_what_is_kept_begins_with_the_gap() -> None:
    async def story() -> None:
        client = Client(Log(change(5, number=2)), ChangePlace(AT_MS), gap=gap_of(AT_MS, AT_MS))
        running = asyncio.create_task(client.run())
        await client.until(1)
        client.leave.set()
        await running
        gap, first = b"".join(client.sent).decode().split("\n\n")[1:3]
        assert gap.startswith('event: gap\ndata: {"reason":"expired","deleted_until":'), gap
        assert "event: changed" in first
        assert gap_of(AT_MS + 1, AT_MS) is None, "nothing that was asked for is deleted"

    asyncio.run(story())


def test_stream_goes_on_after_the_last_id_with_the_window_before_it() -> None:
    async def story() -> None:
        log = Log(change(0, number=1), change(WINDOW_MS, number=2), change(WINDOW_MS + 5, number=3))
        begin = _last(f"{AT_MS + WINDOW_MS + 5}-0-3-0")
        assert begin is not None
        client = Client(log, begin)
        running = asyncio.create_task(client.run())
        await client.until(2)
        client.leave.set()
        await running
        assert client.versions() == [2, 3]

    asyncio.run(story())


@pytest.mark.parametrize("reason", ["shutdown", "revoked"])
def test_stream_says_why_it_ends(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "CHECK_S", 0.0 if reason == "revoked" else 60.0)

    async def story() -> None:
        client = Client(Log(change(0)), ChangePlace(AT_MS - 1), allowed=reason != "revoked")
        running = asyncio.create_task(client.run())
        await client.until(1)
        if reason == "shutdown":
            client.streams.closing.set()
        async with asyncio.timeout(20):
            await running
        assert b'event: end\ndata: {"reason":"%s"}' % reason.encode() in b"".join(client.sent)

    asyncio.run(story())
