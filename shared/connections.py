"""A port of ours holds so many connections and no more, whoever knocks: they are accepted and counted here.

Up to `most` may stay. Beyond them `spare` are let in, each for one request, so that a flood does not keep out whoever
asks how we are. When those are taken, too, the one of them that has said nothing for longest gives its place to the
next: whoever asks at once is heard, and silence holds nothing. Handshakes of TLS count like everything else.
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

from shared.supervise import Tasks

log = structlog.get_logger(__name__)

HANDSHAKE_S: Final = 30.0
"""How long a handshake of TLS may take."""
_AT_ONCE: Final = 16
"""Connections taken before everybody else on the loop has a turn."""
_NO_FILES_S: Final = 0.5
_TOLD_S: Final = 10.0

Shut = Callable[[], object]


class Connection:
    """One of `Connections`, until `left`."""

    __slots__ = ("_all", "beyond", "shut")

    def __init__(self, among: "Connections", *, beyond: bool, shut: Shut) -> None:
        self._all = among
        self.beyond = beyond
        """Whether it was let in for one request only."""
        self.shut = shut
        """Ends it at once, whatever it is at."""

    def heard(self) -> None:
        """It has made its request: no other takes its place."""
        self._all.silent.pop(self, None)

    def left(self) -> None:
        """It is closed. Harmless when it was so already."""
        self._all.silent.pop(self, None)
        (self._all.beyond if self.beyond else self._all.within).discard(self)

    def __repr__(self) -> str:
        return f"<Connection {'beyond' if self.beyond else 'within'}{' silent' if self in self._all.silent else ''}>"


class Connections:
    """Those that are open: never more than `most` and `spare` together. No I/O of its own."""

    def __init__(self, most: int, spare: int) -> None:
        if spare < 1:
            raise ValueError("without a spare place nobody is ever told why")
        self.most, self.spare = most, spare
        self.within: set[Connection] = set()
        self.beyond: set[Connection] = set()
        self.silent: OrderedDict[Connection, None] = OrderedDict()
        """Of those beyond, in the order in which they came."""
        self.refused = 0
        """How many found no place, or lost it to another, or were let in for one request although others may stay."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self.within) + len(self.beyond)

    def enter(self, shut: Shut) -> Connection | None:
        """A place for one more, which `shut` ends; None where there is none, even in the place of a silent one."""
        if len(self.within) < self.most:
            connection = Connection(self, beyond=False, shut=shut)
            self.within.add(connection)
            return connection
        full = len(self.beyond) >= self.spare
        if self.most or full:  # without places within, one beyond is where every connection belongs
            self.refused += 1
        if full:
            if not self.silent:
                return None
            silent = next(iter(self.silent))
            silent.left()
            silent.shut()
        connection = Connection(self, beyond=True, shut=shut)
        self.beyond.add(connection)
        self.silent[connection] = None
        return connection

    def shut(self) -> None:
        """End all at once."""
        for connection in [*self.within, *self.beyond]:
            connection.shut()

    def __repr__(self) -> str:
        return f"<Connections {len(self.within)} of {self.most}, {len(self.beyond)} of {self.spare} beyond>"


def within_files(most: int, aside: int) -> int:
    """How many of `most` connections the process may have open, when it needs `aside` files for everything else; its
    own limit is raised as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + aside if hard == resource.RLIM_INFINITY else min(most + aside, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    left = most if soft == resource.RLIM_INFINITY else max(1, soft - aside)
    if left < most:
        log.warning("connections.fewer", wanted=most, most=left, open_files=soft)
    return min(most, left)


async def accepting(
    listener: socket.socket,
    connections: Connections,
    protocol: Callable[[Connection], asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
) -> NoReturn:
    """Take connections until cancelled; what is open then stays so. The protocol says when its connection has made its
    request (`heard`) and is closed (`left`)."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    told_at, told = -_TOLD_S, connections.refused
    async with Tasks() as begun:
        for taken in itertools.count(1):
            if taken % _AT_ONCE == 0:
                await asyncio.sleep(0)  # one that waits already is accepted without a turn of the loop
            try:
                accepted, _ = await loop.sock_accept(listener)
            except ConnectionError:  # it left while it waited
                continue
            except OSError as error:
                log.error("connections.not_accepted", error=str(error), open=len(connections))
                await asyncio.sleep(_NO_FILES_S)
                continue
            _take(begun, accepted, connections, protocol, tls)
            if connections.refused > told and loop.time() - told_at >= _TOLD_S:
                refused, at = connections.refused - told, "{}:{}".format(*listener.getsockname())
                log.warning("connections.full", at=at, most=connections.most, refused=refused)
                told_at, told = loop.time(), connections.refused
    raise AssertionError("it counts without end")


def _take(
    begun: Tasks,
    accepted: socket.socket,
    connections: Connections,
    protocol: Callable[[Connection], asyncio.Protocol],
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
    connection: Connection,
    protocol: Callable[[Connection], asyncio.Protocol],
    tls: ssl.SSLContext | None,
) -> None:
    """Hand it to its protocol, after the handshake. One that fails in that was nobody."""
    loop = asyncio.get_running_loop()
    patience = None if tls is None else HANDSHAKE_S
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol(connection), accepted, ssl=tls, ssl_handshake_timeout=patience
        )
    except OSError as error:  # ssl.SSLError and TimeoutError among them
        connection.left()
        accepted.close()
        log.debug("connection.not_begun", error=repr(error))
    except BaseException:
        connection.left()
        accepted.close()
        raise
    else:
        connection.shut = transport.abort
