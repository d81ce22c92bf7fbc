"""The HTTP server of a master: uvicorn on sockets that the master opened, in the master's event loop."""

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

from api.http.errors import ApiProblem, ProblemKind, answer
from api.server.client_certificate import peer_certificate
from api.server.joined_writes import JoinedWrites
from shared.domain.errors import Unusable
from shared.runtime.connections import AcceptedConnection, ConnectionLimit, accepting, within_files
from shared.runtime.supervise import Tasks
from shared.tls import ServerTls

GRACE_S: Final = 5
"""How many seconds responses in progress may still take after the master begins to stop."""

# There is space for a URL of 16,384 characters as a parameter, each of up to twelve bytes when encoded.
HEAD_BYTES: Final = 1 << 18
"""Maximum bytes of a request's head: the request line and the headers.

A longer head is answered with 400 and a plain text, and the connection is closed.
"""

HEAD_S: Final = 30.0
"""Maximum seconds to wait for a client. The connection is closed if one of these waits takes longer:

- From the connect, or the end of a response, to the first byte of a request.
- From the first byte of a request to the end of its head.
- While the client reads nothing of a response.
"""

UNSENT_BYTES: Final = 1 << 16
"""The kernel takes more of a response only while fewer bytes than this wait there unsent (TCP_NOTSENT_LOWAT).

Without this limit, the kernel may take 4 MiB at once. It then takes nothing more until it has sent a third of them. For
this long, the master cannot see that a slow client reads at all, and takes the client for one that reads nothing.
"""

RESTS_S: Final = 5
"""How many seconds a connection may be idle between two requests."""

MAX_CONNECTIONS: Final = 1000
MAX_SPARE: Final = 32
SPARE_S: Final = 10.0
"""Seconds after which a surplus connection is aborted, counted from the moment the head of its request was received.

If the maximum number of connections is open, the master accepts up to `MAX_SPARE` surplus connections. A client may
send one request over a surplus connection. The connection is closed after the response, at the latest after `SPARE_S`.
"""

FILES_ASIDE: Final = 512
"""How many open files a master reserves for databases, engines and stored pages. HTTP connections may use the rest."""
ALWAYS_ANSWERED: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that are served even on connections beyond the limit. At most `MAX_SPARE` such connections may be open."""

_BACKLOG: Final = 1024
_DATE_S: Final = 1.0
_PARSED_BYTES: Final = 0xFFFF
"""The longest URL, in bytes, that uvicorn's parser can split. This module splits longer URLs itself."""

_CONNECTIONS: Final = logging.getLogger("uvicorn.error.connections")
"""Logger for single connections. It logs errors only: they show bugs of the server.

Clients can cause any number of other messages, such as warnings of unreadable requests.
"""

_CONNECTIONS.setLevel(logging.ERROR)


class _HttpServer(uvicorn.Server):
    """A uvicorn server that installs no signal handlers and opens no sockets.

    The master handles signals, because it stops its parts one after the other. The function
    `shared.runtime.connections.accepting` accepts the connections.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Make `serve` return after the responses in progress, or after `GRACE_S` seconds."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Renew the `Date` header once a second until `stop` is called.

        It replaces uvicorn's loop, which runs ten times a second.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self.started = True


class _Busy:
    """ASGI application for connections that are accepted although the maximum number is open already.

    Each of them may send one request. A request for a path in `ALWAYS_ANSWERED` goes to `app`. Every other
    request is answered with 503.
    """

    def __init__(self, app: ASGIApp, places: ConnectionLimit) -> None:
        self._app = app
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(16)
        headers = {"Retry-After": str(RESTS_S), "Cache-Control": "no-store", "X-Request-Id": request_id}
        detail = f"{self._places.limit} connections are open on this master already"
        hint = "ask another master, or this one a little later; the setting http_connections bounds them"
        problem = ApiProblem(ProblemKind.CROWDED, detail, hint=hint, headers=headers)
        await answer(problem, scope["path"], request_id)(scope, receive, send)


class _Bounded(HttpToolsProtocol):
    """The HTTP protocol of a connection. It limits the memory and time that a client without a key can use.

    - A request is refused if its head or trailers exceed `HEAD_BYTES`.
    - A connection is closed if the head of a request takes longer than `HEAD_S`.
    - After a response, a connection is closed if the head of another request is not received within `HEAD_S`.
    - A connection is aborted if the client reads nothing of a response for `HEAD_S`.
    - A connection beyond the limit of open connections may send one request, which `busy` answers. The connection is
      closed after the response, at the latest `SPARE_S` after the head of the request.

    The client's verified certificate is put into the state of each request, as `certificate`. Trailers are dropped.
    """

    _collected = 0
    _headed = False
    _patience: asyncio.TimerHandle | None = None
    _over: asyncio.TimerHandle | None = None

    def __init__(
        self, config: uvicorn.Config, state: ServerState, connection: AcceptedConnection, busy: "_Busy"
    ) -> None:
        super().__init__(config, state, {})
        self._connection = connection
        if connection.beyond:
            self.app = busy

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn has the same signature
        self.logger = _CONNECTIONS
        super().connection_made(JoinedWrites(transport, self.loop))
        certificate = peer_certificate(transport)
        if certificate is not None:
            self.app_state["certificate"] = certificate  # uvicorn copies this into the state of each request
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
        """Close the connection if all responses are sent. Otherwise check again after `HEAD_S`.

        Abort the connection if the client has read nothing since the previous check. `unread`: the number of unsent
        bytes at the previous check; 0 if there was none.
        """
        left = self.transport.get_write_buffer_size()
        if left and (not unread or left < unread):
            self._patience = self.loop.call_later(HEAD_S, self._end, left)
        elif left:
            self.transport.abort()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if (
            self._patience is None and not self._answers()
        ):  # The client may send neither a next head nor the end of this request.
            self._await_head()

    def _have_head(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def data_received(self, data: bytes) -> None:
        self._collected += len(data)
        super().data_received(data)
        if self._collected > HEAD_BYTES and not self.transport.is_closing():
            if self._answers():  # A 400 must not be written into a response in progress.
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
        # The parser would add trailers to the headers, which a proxy in front of this server has checked already.
        if not self._headed:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._collected, self._headed = 0, True
        self._have_head()
        self._connection.requested()
        if len(self.url) <= _PARSED_BYTES:
            super().on_headers_complete()
        else:
            self.url, _, query = self.url.partition(b"?")
            super().on_headers_complete()  # The application has not started yet, so its scope may still change.
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


def places_for(max_count: int) -> ConnectionLimit:
    """Return a limit of `max_count` open connections. It is lower if the process may not open that many files."""
    return ConnectionLimit(within_files(max_count, FILES_ASIDE), MAX_SPARE)


def listening(address: str) -> socket.socket:
    """Return a socket that listens at `address`, which is `host:port`. Raise Unusable if that is not possible.

    Port 0 means any free port. Raise Unusable as well for an address without a host.
    """
    listener = bound(address)
    listen(listener)
    return listener


def bound(address: str) -> socket.socket:
    """Return a socket that is bound to `host:port` but does not listen yet. Port 0 means any free port.

    Until it listens, connections are refused. Raise Unusable if the address cannot be bound. Raise it also for an
    address without a host, because that would mean every interface of the machine.
    """
    host, _, port = address.rpartition(":")
    try:
        if not host:
            raise ValueError("it names no host; 127.0.0.1 is this machine alone, 0.0.0.0 every interface")
        return _bound(host.strip("[]"), int(port))
    except (OSError, ValueError, OverflowError) as error:
        raise _cannot_listen(address, error) from error


def listen(listener: socket.socket) -> None:
    """Make a bound socket listen.

    Raise Unusable if another socket has started to listen at the same address meanwhile.
    """
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        at = address_of(listener)
        listener.close()
        raise _cannot_listen(at, error) from error


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, with the options of `socket.create_server`, but not listening."""
    listener = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Connections have the option of their listener.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    return listener


def _cannot_listen(address: str, error: Exception) -> Unusable:
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
    return Unusable(f"cannot listen at {address} for the API ({why}): choose another with --http")


def address_of(listener: socket.socket) -> str:
    """Return the socket's address as `host:port`."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI, listener: socket.socket, tls: ServerTls | None = None, connections: ConnectionLimit | None = None
) -> AsyncIterator[None]:
    """Serve `app` on `listener` while the `with` block runs.

    At its end, requests in progress get `GRACE_S` seconds to complete. `tls`: None for plain HTTP. `connections`: the
    limit of open connections; None for `MAX_CONNECTIONS`.
    """
    places = ConnectionLimit(MAX_CONNECTIONS, MAX_SPARE) if connections is None else connections
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=RESTS_S, http=_Bounded, ws="none", proxy_headers=False,
    )  # fmt: skip
    config.load()
    server, busy = _HttpServer(config), _Busy(app, places)

    def protocol(connection: AcceptedConnection) -> asyncio.Protocol:
        return _Bounded(config, server.server_state, connection, busy)

    async with Tasks() as tasks:
        running = tasks.start("http", _serve(server, listener))
        context = None if tls is None else tls.context
        accepted = tasks.start("http.accept", accepting(listener, places, protocol, context))
        try:
            yield
        finally:
            accepted.cancel()
            await asyncio.wait([accepted])
            server.stop()
            await asyncio.wait([running])


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    """Run the server until it is stopped. Raise Unusable if it ends without `stop`, so that the master stops, too."""
    await server.serve(sockets=[listener])
    if not server.should_exit:
        raise Unusable("the HTTP server ended by itself: see the log above, and start the master again")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
