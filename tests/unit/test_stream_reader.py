"""A reader of a stream whose questions cannot be sent for a while."""

import asyncio
from typing import Any, cast

import pytest

from shared.adapters.nats import reader
from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.reader import StreamReader
from shared.adapters.nats.settings import StreamSettings
from shared.domain.errors import Transient
from shared.ports.broker import StreamState


class Clogged:
    """A connection that takes no message while `full`, with a stream behind it in which nothing is."""

    max_payload = 1 << 20
    line = 1

    def __init__(self) -> None:
        self.full = False
        self.sent = 0

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe(self, subject: str, receive: Any) -> None:
        """What comes is nothing."""

    async def unsubscribe(self, subscription: object) -> None:
        raise AssertionError("there is none")

    def watch(self, lost: Any) -> None:
        """It never breaks."""

    def unwatch(self, lost: Any) -> None:
        """It never broke."""

    async def send(self, subject: str, data: bytes, reply: str) -> None:
        if self.full:
            raise Transient("the broker reads more slowly than we write")
        self.sent += 1


def test_a_pull_that_could_not_be_sent_is_sent_by_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait until the broker is taken for silent, about what it was never asked."""

    async def placed(*call: object) -> dict[str, Any]:
        return {"num_pending": 0}

    async def state(*call: object) -> StreamState:
        return StreamState(1, 0)

    monkeypatch.setattr(reader, "demand", placed)
    monkeypatch.setattr(reader, "stream_state", state)

    async def story() -> None:
        connection = Clogged()
        stream = StreamReader(cast(NatsConnection, connection), "S", ["s"], 0, StreamSettings())
        await stream.open()
        connection.full = True
        with pytest.raises(Transient):
            await stream.read(10, 0.0)
        connection.full = False
        assert await stream.read(10, 0.0) == []
        assert connection.sent == 1
        assert await stream.read(10, 0.0) == []
        assert connection.sent == 1, "that pull is still open"
        await stream.close()

    asyncio.run(story())
