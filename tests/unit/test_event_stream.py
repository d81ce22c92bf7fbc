"""A stream ends within ten seconds of the end of its key, however its events come, on a clock that the test moves."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.events.reader import EventCursor
from api.http import change_stream, sse
from api.http.change_stream import ChangeStream
from api.http.sse import EventStream, StreamLimit
from shared.domain.reads.changes import ChangePlace, PageChangeView
from shared.ports.broker import Delivered
from shared.ports.events import Events, EventsState
from shared.wire.events import Event
from tests.support.simulation.world import SimLoop

PROMISED_S = 10.0


class Stream:
    """The broker's stream of events, of which each arrives at its time."""

    def __init__(self, loop: SimLoop, arrive_at: Sequence[float]) -> None:
        self._loop = loop
        self._coming = [loop.now + each for each in arrive_at]
        self._sequence = 0

    async def state(self) -> EventsState:
        return EventsState(1, 1, self._sequence)

    async def read(self, *_: object) -> Any:
        return SimpleNamespace(read=self._read, close=self._close)

    async def _read(self, max_count: int, wait_s: float) -> Sequence[Delivered]:
        until = self._loop.now + wait_s
        if not self._coming or self._coming[0] > until:
            await asyncio.sleep(wait_s)
            return []
        await asyncio.sleep(self._coming.pop(0) - self._loop.now)
        self._sequence += 1
        return [Delivered(self._sequence, 1, b"{}")]

    async def _close(self) -> None:
        pass


class Client:
    """A client whose key is revoked at `revoked_at`. It reads nothing after `reads_until`."""

    def __init__(self, loop: SimLoop, revoked_at: float, reads_until: float) -> None:
        self._loop = loop
        self._begun = loop.now
        self._revoked_at = revoked_at
        self._reads_until = reads_until
        self.sent = b""

    @property
    def age_s(self) -> float:
        return self._loop.now - self._begun

    async def allowed(self) -> bool:
        return self.age_s < self._revoked_at

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(self, message: Any) -> None:
        if self.age_s > self._reads_until:
            await asyncio.Event().wait()
        self.sent += message.get("body", b"")


def no_last(event: Event) -> bool:
    return False


async def no_change(after: ChangePlace) -> tuple[Sequence[PageChangeView], ChangePlace | None]:
    return (), None


async def followed(events: Stream, client: Client) -> None:
    cursor = EventCursor(cast(Events, events), ["events.>"], None)
    await cursor.open()
    response = EventStream(
        cursor, None, events=cast(Events, events), streams=StreamLimit(), allowed=client.allowed, last=no_last
    )
    await response({"type": "http", "path": "/stream"}, client.receive, client.send)


async def changes_followed(client: Client) -> None:
    response = ChangeStream(no_change, ChangePlace(1), None, streams=StreamLimit(), allowed=client.allowed)
    await response({"type": "http", "path": "/stream"}, client.receive, client.send)


def carried_out(loop: SimLoop, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `work` to its end. Time passes only from one timer to the next."""
    for module in (sse, change_stream):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))
    task = loop.create_task(work)
    loop.pump()
    while not task.done():
        timer = loop.next_timer()
        assert timer is not None
        loop.now = timer
        loop.pump()
    task.result()
    loop.close()


@pytest.mark.parametrize("revoked_at", [0.1, 4.9, 14.95])
@pytest.mark.parametrize("arrive_at", [(), (14.9,), tuple(range(1, 60))], ids=["none", "one", "many"])
def test_event_stream_of_a_revoked_key_ends_within_ten_seconds(
    revoked_at: float, arrive_at: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = SimLoop()
    client = Client(loop, revoked_at, reads_until=1000.0)
    carried_out(loop, followed(Stream(loop, arrive_at), client), monkeypatch)
    assert b'event: end\ndata: {"reason":"revoked"}' in client.sent
    assert revoked_at <= client.age_s <= revoked_at + PROMISED_S


def test_event_stream_of_a_revoked_key_ends_though_its_client_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop()
    client = Client(loop, 2.0, reads_until=0.5)
    carried_out(loop, followed(Stream(loop, (1.0,)), client), monkeypatch)
    assert client.age_s <= 2.0 + PROMISED_S


def test_events_that_are_not_sent_postpone_no_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = SimLoop()
    client = Client(loop, 61.0, reads_until=1000.0)
    carried_out(loop, followed(Stream(loop, range(1, 60)), client), monkeypatch)
    assert client.sent.count(b": ping") >= 3


@pytest.mark.parametrize("revoked_at", [0.1, 14.95])
def test_change_stream_of_a_revoked_key_ends_within_ten_seconds(
    revoked_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = SimLoop()
    client = Client(loop, revoked_at, reads_until=1000.0)
    carried_out(loop, changes_followed(client), monkeypatch)
    assert b'event: end\ndata: {"reason":"revoked"}' in client.sent
    assert revoked_at <= client.age_s <= revoked_at + PROMISED_S
