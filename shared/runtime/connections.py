"""Accepts and counts the connections of a listening port, and limits their number.

Up to `max_count` connections may stay open. `spare` more are accepted for one request each, so that a flood does not
block health checks. Connections in a TLS handshake count as well.
"""

import asyncio
import itertools
import resource
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NoReturn

import structlog

from shared.runtime.supervise import Tasks

log = structlog.get_logger(__name__)

HANDSHAKE_S: Final = 30.0
"""The time limit of a TLS handshake."""
_AT_ONCE: Final = 16
"""How many connections are accepted before other tasks of the event loop run."""
_NO_FILES_S: Final = 0.5
_LOG_EVERY_S: Final = 10.0

Shut = Callable[[], object]


class AcceptedConnection:
    """An open connection that a ConnectionLimit counts, from `enter` until its protocol calls `left`."""

    __slots__ = ("_all", "beyond", "shut")

    def __init__(self, among: "ConnectionLimit", *, beyond: bool, shut: Shut) -> None:
        self._all = among
        self.beyond = beyond
        """True if the connection was accepted for one request only."""
        self.shut = shut
        """Closes the connection at once, in any state."""

    def requested(self) -> None:
        """Record that the client has sent its request.

        From now on the connection is not closed in favor of a new one.
        """
        self._all.silent.pop(self, None)

    def left(self) -> None:
        """Record that the connection is closed, so that it no longer counts. A repeated call is harmless."""
        self._all.silent.pop(self, None)
        (self._all.beyond if self.beyond else self._all.within).discard(self)

    def __repr__(self) -> str:
        return f"<Connection {'beyond' if self.beyond else 'within'}{' silent' if self in self._all.silent else ''}>"


class ConnectionLimit:
    """Counts the open connections of a port, and decides whether a new one is accepted.

    At most `max_count` connections may stay open. At most `spare` more are accepted for one request each.
    """

    def __init__(self, max_count: int, spare: int) -> None:
        if spare < 1:
            raise ValueError("spare must be at least 1, so that a refused client gets an answer")
        self.limit, self.spare = max_count, spare
        self.within: set[AcceptedConnection] = set()
        self.beyond: set[AcceptedConnection] = set()
        self.silent: OrderedDict[AcceptedConnection, None] = OrderedDict()
        """The connections in spare places that have sent no request yet, in order of arrival."""
        self.refused = 0
        """How many connections were refused, closed in favor of another, or accepted for one request only.

        With `max_count` 0 no connection may stay open. Accepting one for a single request then does not count here.
        """

    def __len__(self) -> int:
        """Return the number of open connections, including the spare ones."""
        return len(self.within) + len(self.beyond)

    def enter(self, shut: Shut) -> AcceptedConnection | None:
        """Count a new connection and return it. If there is no place for it, return None: the caller must close it.

        `shut` is a function that closes the new connection at once.

        If `max_count` connections are open, the new one gets one of the `spare` places. If all spare places are taken,
        close the oldest spare connection that has sent no request yet, and use its place. If each has sent a request,
        there is no place.
        """
        if len(self.within) < self.limit:
            connection = AcceptedConnection(self, beyond=False, shut=shut)
            self.within.add(connection)
            return connection
        full = len(self.beyond) >= self.spare
        if self.limit or full:  # with a limit of 0, every connection belongs beyond it
            self.refused += 1
        if full:
            if not self.silent:
                return None
            silent = next(iter(self.silent))
            silent.left()
            silent.shut()
        connection = AcceptedConnection(self, beyond=True, shut=shut)
        self.beyond.add(connection)
        self.silent[connection] = None
        return connection

    def shut(self) -> None:
        """Close all counted connections at once."""
        for connection in [*self.within, *self.beyond]:
            connection.shut()

    def __repr__(self) -> str:
        return f"<Connections {len(self.within)} of {self.limit}, {len(self.beyond)} of {self.spare} beyond>"


def within_files(max_count: int, aside: int) -> int:
    """Return how many connections the process may open: `max_count`, or fewer if its limit of open files is too low.

    First raise the soft limit of open files as far as necessary and possible. `aside`: how many files the process needs
    besides the connections. The result is at least 1.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = max_count + aside if hard == resource.RLIM_INFINITY else min(max_count + aside, hard)
    if soft != resource.RLIM_INFINITY and soft < required:
        resource.setrlimit(resource.RLIMIT_NOFILE, (required, hard))
        soft = required
    left = max_count if soft == resource.RLIM_INFINITY else max(1, soft - aside)
    if left < max_count:
        log.warning("connection_limit.lowered", requested=max_count, max=left, open_files=soft)
    return min(max_count, left)


async def accepting(
    listener: socket.socket,
    connections: ConnectionLimit,
    protocol: Callable[[AcceptedConnection], asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
) -> NoReturn:
    """Accept the connections of `listener` until cancelled.

    - `connections`: counts the connections and limits their number.
    - `protocol`: returns the protocol of an accepted connection. The protocol must call `requested` when a request
      arrives, and `left` when the connection is closed.
    - `tls`: None for connections without TLS.

    A cancellation closes each connection whose TLS handshake has not ended. Other connections stay open.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    logged_at, logged = -_LOG_EVERY_S, connections.refused
    async with Tasks() as begun:
        for taken in itertools.count(1):
            if taken % _AT_ONCE == 0:
                await asyncio.sleep(0)  # a waiting connection is accepted without a turn of the loop
            try:
                accepted, _ = await loop.sock_accept(listener)
            except ConnectionError:  # the client closed it while it waited
                continue
            except OSError as error:
                log.error("connection_accept.failed", error=str(error), open=len(connections))
                await asyncio.sleep(_NO_FILES_S)
                continue
            _take(begun, accepted, connections, protocol, tls)
            if connections.refused > logged and loop.time() - logged_at >= _LOG_EVERY_S:
                refused, at = connections.refused - logged, "{}:{}".format(*listener.getsockname())
                log.warning("connections.refused", address=at, max=connections.limit, refused=refused)
                logged_at, logged = loop.time(), connections.refused
    raise AssertionError("unreachable")


def _take(
    begun: Tasks,
    accepted: socket.socket,
    connections: ConnectionLimit,
    protocol: Callable[[AcceptedConnection], asyncio.Protocol],
    tls: ssl.SSLContext | None,
) -> None:
    connection = connections.enter(accepted.close)
    if connection is None:
        accepted.close()
        return
    task = begun.start("connection.begin", _begin(accepted, connection, protocol, tls))
    task.add_done_callback(lambda ended: accepted.close() if ended.cancelled() else None)
    connection.shut = task.cancel


async def _begin(
    accepted: socket.socket,
    connection: AcceptedConnection,
    protocol: Callable[[AcceptedConnection], asyncio.Protocol],
    tls: ssl.SSLContext | None,
) -> None:
    """Do the TLS handshake, if `tls` is given, and then connect the socket to its protocol.

    If the handshake fails, close the connection, stop counting it, and log the failure at debug level.
    """
    loop = asyncio.get_running_loop()
    patience = None if tls is None else HANDSHAKE_S
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol(connection), accepted, ssl=tls, ssl_handshake_timeout=patience
        )
    except OSError as error:  # ssl.SSLError and TimeoutError among them
        connection.left()
        accepted.close()
        log.debug("connection_handshake.failed", error=repr(error))
    except BaseException:
        connection.left()
        accepted.close()
        raise
    else:
        connection.shut = transport.abort
