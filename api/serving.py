"""The HTTP server of a master: uvicorn on a socket of ours, inside the master's own loop and signals."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.domain.errors import Unusable
from shared.supervise import Tasks
from shared.tls import ServerTls

GRACE_S: Final = 5
"""How long answers under way may take once the master stops."""

HEAD_BYTES: Final = 1 << 18
"""The longest head of a request. A URL asked about has up to 16,384 characters, each of up to twelve bytes when it is
written as a parameter: a head that is too long is no request, and the connection is closed without a problem."""


HEAD_S: Final = 30.0
"""How long a connection may take until the head of its request is there, its first or a further one that has begun."""

_PARSED_BYTES: Final = 0xFFFF
"""The longest address that the parser takes apart."""


_CONNECTIONS: Final = logging.getLogger("uvicorn.error.connections")
"""What is wrong with a single connection. Strangers make as many as they like (unreadable requests, upgrades to what we
do not speak), so it says nothing below an error, which is our own."""

_CONNECTIONS.setLevel(logging.ERROR)


class _Server(uvicorn.Server):
    """Leaves signals to the master, which ends its parts in their order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Bounded(HttpToolsProtocol):
    """Refuses heads, and trailers, above `HEAD_BYTES` (up to one read more): the parser would collect them without end.
    Closes connections on which a head takes longer than `HEAD_S`: nobody need have a key to hold one.

    Queries are taken as long as they come; the parser's own way with addresses ends at 64 KiB. Trailers are left out:
    among the headers, as the parser has them, they would say what no proxy before us has seen.
    """

    _collected = 0
    _headed = False
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as it is there
        self.logger = _CONNECTIONS
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._have_head()
        self._patience = self.loop.call_later(HEAD_S, self.transport.close)

    def _have_head(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def data_received(self, data: bytes) -> None:
        self._collected += len(data)
        super().data_received(data)
        if self._collected > HEAD_BYTES and not self.transport.is_closing():
            if self._answers():  # nothing may be written into that
                self.transport.close()
            else:
                self.send_400_response("The head of the request is too long.")

    def _answers(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        self._headed = False
        self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._collected, self._headed = 0, True
        self._have_head()
        if len(self.url) <= _PARSED_BYTES:
            super().on_headers_complete()
            return
        self.url, _, query = self.url.partition(b"?")
        super().on_headers_complete()  # whoever answers has not begun to yet
        self.scope["query_string"] = query.partition(b"#")[0]

    def on_body(self, body: bytes) -> None:
        self._collected = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._collected = 0
        super().on_message_complete()


def listening(address: str) -> socket.socket:
    """A socket that listens at `host:port` (port 0: any free one). Unusable when that cannot be, and without a host,
    which would be every interface of the machine."""
    host, _, port = address.rpartition(":")
    try:
        if not host:
            raise ValueError("it names no host; 127.0.0.1 is this machine alone, 0.0.0.0 every interface")
        return socket.create_server((host.strip("[]"), int(port)), family=_family(host), backlog=1024)
    except (OSError, ValueError, OverflowError) as error:
        raise Unusable(f"cannot listen at {address} for the API ({error}): choose another with --http") from error


def address_of(listener: socket.socket) -> str:
    """Where it listens, as `host:port`."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def serving(app: FastAPI, listener: socket.socket, tls: ServerTls | None = None) -> AsyncIterator[None]:
    """Answers at the socket until the block ends; then lets answers under way end, for `GRACE_S` at most."""
    server = _Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=GRACE_S, http=_Bounded, ws="none", proxy_headers=False,
            ssl_context_factory=None if tls is None else lambda config, default: tls.context,
        )
    )  # fmt: skip
    async with Tasks() as tasks:
        running = tasks.start("http", _until_asked(server, listener))
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.wait([running])


async def _until_asked(server: uvicorn.Server, listener: socket.socket) -> None:
    """A server that ends unasked takes the master along: one that nobody can reach helps nobody."""
    await server.serve(sockets=[listener])
    if not server.should_exit:
        raise Unusable("the HTTP server ended by itself: see the log above, and start the master again")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
