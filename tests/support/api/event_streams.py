"""Masters that answer at real addresses over one broker and one database, and clients that follow their events."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec

from api.http.sse import StreamLimit
from api.server.serving import address_of, listening, serving
from shared.adapters.nats import NatsBroker
from shared.adapters.nats.jetstream import demand
from shared.domain.ops.access import Role
from shared.ports.events import Events
from shared.wire.events import EVENTS, Event, EventKind, encode_event, event_subject
from tests.support.api.rest_api import Api, api
from tests.support.engines.nats_server import BrokerServer, persist


@dataclass
class StreamEvent:
    """One event of a stream."""

    event: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    id: int | None = None
    retry: int | None = None
    past_stored: bool = False

    @property
    def said(self) -> str:
        """What the tests number their events by."""
        return str(self.data["data"]["n"])


async def seen(response: httpx.Response) -> AsyncIterator[StreamEvent]:
    """The events of a stream, those without data among them, parsed as a browser does it."""
    found, touched = StreamEvent(), False
    async for line in response.aiter_lines():
        if not line:
            if touched:
                yield found
            found, touched = StreamEvent(), False
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        touched = True
        match name:
            case "event":
                found.event = value
            case "data":
                found.data = msgspec.json.decode(value)
            case "id":
                found.id = int(value)
            case "retry":
                found.retry = int(value)
            case _:
                assert name == "", line
                found.past_stored = value == "past what was kept"


class Client:
    """A client of one master's stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._seen = seen(response)
        self.last = 0
        self.told = 0
        self.past_stored: list[int] = []
        """How many events were told before each word that all were told that were kept."""

    async def next(self) -> StreamEvent:
        """The next that is an event, or a ping with nothing but an id."""
        async with asyncio.timeout(30):
            async for one in self._seen:
                if one.past_stored:
                    self.past_stored.append(self.told)
                elif one.retry is None:
                    self.told += bool(one.event)
                    if one.id is not None:
                        self.last = one.id
                    return one
        raise AssertionError("the stream is over")

    async def said(self, count: int) -> list[str]:
        """The numbers of the next so many events."""
        return [(await self.next()).said for _ in range(count)]


@dataclass
class Master:
    """A master that answers at `url`; all masters of a test share database and broker."""

    url: str
    served: Api
    broker: NatsBroker
    streams: StreamLimit

    @asynccontextmanager
    async def follow(self, path: str = "/v1/events", last: int | None = None, **query: Any) -> AsyncIterator[Client]:
        """A stream that answers 200."""
        headers = {"Authorization": f"Bearer {self.served.keys[Role.VIEWER]}"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        async with (
            httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30) as http,
            http.stream("GET", path, params=query) as response,
        ):
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield Client(response)

    async def get(self, path: str = "/v1/events", headers: Mapping[str, str] | None = None) -> httpx.Response:
        """An answer that is no stream."""
        told = {"Authorization": f"Bearer {self.served.keys[Role.VIEWER]}", **(headers or {})}
        async with httpx.AsyncClient(base_url=self.url, headers=told, timeout=30) as http:
            return await http.get(path)


@asynccontextmanager
async def masters(folder: Path, server: BrokerServer, count: int = 1, **settings: Any) -> AsyncIterator[list[Master]]:
    made = []
    max_count = settings.pop("max_count", 64)
    async with AsyncExitStack() as stack:
        for _ in range(count):
            broker = await stack.enter_async_context(server.broker(**settings))
            await persist(broker.events.declare)
            streams = StreamLimit(max_count)
            served = await stack.enter_async_context(api(folder / "crawl.db", broker, streams=streams))
            listener = listening("127.0.0.1:0")
            stack.callback(listener.close)
            await stack.enter_async_context(serving(served.app, listener))
            stack.enter_context(streams.until_closed())
            made.append(Master(f"http://{address_of(listener)}", served, broker, streams))
        yield made


async def happen(
    events: Events, *numbers: int, kind: EventKind = EventKind.CRAWL, about: str = "1", action: str = "updated"
) -> int:
    """Events that bear these numbers; the sequence of the last."""
    sequence = 0
    for n in numbers:
        data = encode_event(Event(kind, about, action, 0, "m1", data={"n": n}))
        publish = partial(events.publish, event_subject(kind, about), data, f"{kind} {about} {n}")
        sequence = await persist(publish)
    return sequence


def numbers(*wanted: int) -> list[str]:
    return [str(n) for n in wanted]


async def consumers(broker: NatsBroker) -> int:
    info = await demand(broker._connection, f"STREAM.INFO.{EVENTS}", None, 5.0)
    return int(info["state"]["consumer_count"])


async def freed(master: Master) -> None:
    """Until the master has let go of every stream, and the broker of every consumer."""
    async with asyncio.timeout(30):
        while master.streams.open or await consumers(master.broker):  # noqa: ASYNC110  the broker does not notify
            await asyncio.sleep(0.01)
