"""The HTTP server of a master: uvicorn on a socket of ours, inside the master's own loop and signals."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Final

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.errors import Kind, Problem, answer
from shared.connections import Connection, Connections, accepting, within_files
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

RESTS_S: Final = 5
"""How long a connection may rest between two requests."""

MOST_CONNECTIONS: Final = 1000
SPARE_MOST: Final = 32
SPARE_S: Final = 10.0
"""How long one that is beyond those that may stay may take from its request until it has read the answer: one that
reads a little at a time would keep a place from whoever asks how this master is."""

FILES_ASIDE: Final = 512
"""Open files that a master keeps for everything else: databases, engines, stored pages."""
ALWAYS_ANSWERED: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""What is answered however many connections are open, `SPARE_MOST` beyond those at a time."""

_BACKLOG: Final = 1024
_PARSED_BYTES: Final = 0xFFFF
"""The longest address that the parser takes apart."""


_CONNECTIONS: Final = logging.getLogger("uvicorn.error.connections")
"""What is wrong with a single connection. Strangers make as many as they like (unreadable requests, upgrades to what we
do not speak), so it says nothing below an error, which is our own."""

_CONNECTIONS.setLevel(logging.ERROR)


class _Server(uvicorn.Server):
    """Leaves signals to the master, which ends its parts in their order, and connections to whoever counts them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self.started = True


class _Busy:
    """Answers the one request of a connection that is beyond those that may stay: whoever asks how this master is gets
    that, everybody else is told to come again."""

    def __init__(self, app: ASGIApp, places: Connections) -> None:
        self._app = app
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(16)
        headers = {"Retry-After": str(RESTS_S), "Cache-Control": "no-store", "X-Request-Id": request_id}
        detail = f"{self._places.most} connections are open on this master already"
        hint = "ask another master, or this one a little later; the setting http_connections bounds them"
        problem = Problem(Kind.CROWDED, detail, hint=hint, headers=headers)
        await answer(problem, scope["path"], request_id)(scope, receive, send)


class _Bounded(HttpToolsProtocol):
    """Refuses heads, and trailers, above `HEAD_BYTES` (up to one read more): the parser would collect them without end.
    Ends connections on which a head takes longer than `HEAD_S`, or the rest of a request after its answer, or the
    reading of an answer's end: nobody need have a key to hold one so. One that is beyond those that may stay is for one
    request, which `busy` answers, and for `SPARE_S` in all.

    Queries are taken as long as they come; the parser's own way with addresses ends at 64 KiB. Trailers are left out:
    among the headers, as the parser has them, they would say what no proxy before us has seen.
    """

    _collected = 0
    _headed = False
    _patience: asyncio.TimerHandle | None = None
    _over: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, state: ServerState, connection: Connection, busy: "_Busy") -> None:
        super().__init__(config, state, {})
        self._connection = connection
        if connection.beyond:
            self.app = busy

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as it is there
        self.logger = _CONNECTIONS
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        if self._over is not None:
            self._over.cancel()
        self._connection.left()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._have_head()
        self._patience = self.loop.call_later(HEAD_S, self._end, 0)

    def _end(self, unread: int) -> None:
        """Close it. One that does not read its answer's end keeps it open for as long as it reads on."""
        left = self.transport.get_write_buffer_size()
        if left and (not unread or left < unread):
            self._patience = self.loop.call_later(HEAD_S, self._end, left)
        elif left:
            self.transport.abort()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._patience is None and not self._answers():  # what follows may be neither head nor end
            self._await_head()

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
        self._connection.heard()
        if len(self.url) <= _PARSED_BYTES:
            super().on_headers_complete()
        else:
            self.url, _, query = self.url.partition(b"?")
            super().on_headers_complete()  # whoever answers has not begun to yet
            self.scope["query_string"] = query.partition(b"#")[0]
        if self._connection.beyond:
            self.cycle.keep_alive = False
            self._over = self._over or self.loop.call_later(SPARE_S, self.transport.abort)

    def on_body(self, body: bytes) -> None:
        self._collected = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._collected = 0
        super().on_message_complete()


def places_for(most: int) -> Connections:
    """For so many connections, or as many as the process may have files."""
    return Connections(within_files(most, FILES_ASIDE), SPARE_MOST)


def listening(address: str) -> socket.socket:
    """A socket that listens at `host:port`; see `bound`."""
    listener = bound(address)
    listen(listener)
    return listener


def bound(address: str) -> socket.socket:
    """A socket at `host:port` (port 0: any free one) that does not listen yet: who connects is refused, and need not
    wait. Unusable when that cannot be, and without a host, which would be every interface of the machine."""
    host, _, port = address.rpartition(":")
    try:
        if not host:
            raise ValueError("it names no host; 127.0.0.1 is this machine alone, 0.0.0.0 every interface")
        return _bound(host.strip("[]"), int(port))
    except (OSError, ValueError, OverflowError) as error:
        raise _not_heard(address, error) from error


def listen(listener: socket.socket) -> None:
    """Let clients connect. Unusable where another that was bound to the same place listens by now."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        at = address_of(listener)
        listener.close()
        raise _not_heard(at, error) from error


def _bound(host: str, port: int) -> socket.socket:
    """As `socket.create_server`, which listens at once."""
    listener = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    return listener


def _not_heard(address: str, error: Exception) -> Unusable:
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
    return Unusable(f"cannot listen at {address} for the API ({why}): choose another with --http")


def address_of(listener: socket.socket) -> str:
    """Where it listens, as `host:port`."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI, listener: socket.socket, tls: ServerTls | None = None, connections: Connections | None = None
) -> AsyncIterator[None]:
    """Answers at the socket until the block ends; then lets answers under way end, for `GRACE_S` at most."""
    places = Connections(MOST_CONNECTIONS, SPARE_MOST) if connections is None else connections
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=RESTS_S, http=_Bounded, ws="none", proxy_headers=False,
    )  # fmt: skip
    config.load()
    server, busy = _Server(config), _Busy(app, places)

    def protocol(connection: Connection) -> asyncio.Protocol:
        return _Bounded(config, server.server_state, connection, busy)

    async with Tasks() as tasks:
        running = tasks.start("http", _until_asked(server, listener))
        context = None if tls is None else tls.context
        accepted = tasks.start("http.accept", accepting(listener, places, protocol, context))
        try:
            yield
        finally:
            accepted.cancel()
            await asyncio.wait([accepted])
            server.should_exit = True
            await asyncio.wait([running])


async def _until_asked(server: uvicorn.Server, listener: socket.socket) -> None:
    """A server that ends unasked takes the master along: one that nobody can reach helps nobody."""
    await server.serve(sockets=[listener])
    if not server.should_exit:
        raise Unusable("the HTTP server ended by itself: see the log above, and start the master again")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
