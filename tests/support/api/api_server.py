"""The REST API of `rest_api` at a real address, for clients that are no coroutines: it runs in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from api.server.serving import address_of, listening, serving
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.domain.ops.access import Role
from shared.ports.events import Events
from tests.support.api.rest_api import api
from tests.support.engines.nats_server import BrokerServer


@dataclass(frozen=True)
class Served:
    """Where it answers, to which keys, and over which catalog; `loop` is the one that the catalog and the events
    belong to."""

    url: str
    keys: dict[Role, str]
    catalog: SqlCatalog
    loop: asyncio.AbstractEventLoop
    events: Events | None = None

    def environ(self, role: Role = Role.ADMIN) -> dict[str, str]:
        """Return the environment for `orb ctl`."""
        return {"ORB_SERVER": self.url, "ORB_API_KEY": self.keys[role]}


@contextmanager
def served(folder: Path, broker: BrokerServer | None = None, **more: Any) -> Iterator[Served]:
    """The API over a database in `folder`, until the block ends; `more` is what `api` takes."""
    said: list[Served | BaseException] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            connected = None if broker is None else await stack.enter_async_context(broker.broker())
            if connected is not None:
                await connected.events.declare()
            running = await stack.enter_async_context(api(folder / "crawl.db", connected, **more))
            listener = listening("127.0.0.1:0")
            stack.callback(listener.close)
            await stack.enter_async_context(serving(running.app, listener))
            url = f"http://{address_of(listener)}"
            events = None if connected is None else connected.events
            said.append(Served(url, running.keys, running.catalog, asyncio.get_running_loop(), events))
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # told to the test, which waits
            said.append(error)
            ready.set()

    quiet = capture_logs()  # what it logs would be on our standard output
    thread = threading.Thread(target=run, name="api", daemon=True)
    thread.start()
    assert ready.wait(60), "the API does not start"
    match said[0]:
        case Served() as running:
            try:
                with quiet:
                    yield running
            finally:
                running.loop.call_soon_threadsafe(stop.set)
                thread.join(60)
            assert not thread.is_alive(), "the API does not end"
            if len(said) > 1:
                raise AssertionError("the API ended by itself") from said[1]  # type: ignore[misc]  # the last entry is why it ended
        case error:
            raise error
