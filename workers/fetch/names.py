"""Looks up the addresses of hosts, each name in a thread of its own.

libcurl has at most 20 threads for look-ups, and pycurl cannot raise that number. Names whose servers do not answer
would occupy them all. Then other names wait in libcurl until the connect limit of their own fetch, and healthy hosts
fail.
"""

import asyncio
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from shared.domain.web.addresses import parse_address

MAX_LOOKUPS: Final = 256
"""The greatest number of threads that look up names. Further look-ups wait, and their time limits do not count that."""
MAX_NAMES: Final = 10_000
"""Above this number of kept names, the one that was looked up first is forgotten."""
KEPT_S: Final = 60.0
"""After so many seconds a name is looked up again. libcurl's own cache does the same."""

_NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""The errors of `getaddrinfo` by which a name server says that the name has no address."""

LookUp = Callable[..., Sequence[Any]]
"""`socket.getaddrinfo`, or a replacement in tests. It is called in a thread."""


class NotResolved(Exception):
    """A name has no address, or its servers did not answer in time. The text is for people."""


class _Failure(Struct, frozen=True):
    """A look-up that found no address. `final`: a name server answered that there is none."""

    reason: str
    final: bool = False


class Names:
    """The addresses of hosts. Construct it in the event loop that uses it.

    A thread that waits for a silent server cannot be stopped. It continues after `addresses` has given up, and counts
    in MAX_LOOKUPS until the system's resolver gives up, too. The threads do not delay the end of the process.

    If name servers fail to answer a repeated look-up, the earlier addresses serve for another KEPT_S (as in RFC 8767).
    So a host with a working connection does not depend on name servers that are down for a while.
    """

    def __init__(self, look_up: LookUp | None = None) -> None:
        self._look_up = socket.getaddrinfo if look_up is None else look_up
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(MAX_LOOKUPS)
        self._kept: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._under_way: dict[str, asyncio.Future[tuple[str, ...] | _Failure]] = {}

    async def addresses(self, host: str, limit_s: float) -> tuple[str, ...]:
        """Return the addresses of the name `host`, in the order in which to try them.

        Raise NotResolved if there are none, if the look-up takes longer than `limit_s`, or if no thread can be started.
        """
        until, addresses = self._kept.get(host, (0.0, ()))
        if self._loop.time() < until:
            return addresses
        if host not in self._under_way:
            await self._places.acquire()
            if host in self._under_way:
                self._places.release()
            else:
                self._start(host)
        try:
            async with asyncio.timeout(limit_s):
                found = await asyncio.shield(self._under_way[host])
        except TimeoutError:
            found = _Failure(f"no answer within {limit_s:g} s")
        return found if isinstance(found, tuple) else self._earlier(host, found)

    def _earlier(self, host: str, failure: _Failure) -> tuple[str, ...]:
        """Return the addresses of an earlier look-up of `host`, unless the name is gone. Raise NotResolved if none."""
        _, addresses = self._kept.pop(host, (0.0, ()))
        if failure.final or not addresses:
            raise NotResolved(failure.reason)
        self._keep(host, addresses)
        return addresses

    def _keep(self, host: str, addresses: tuple[str, ...]) -> None:
        self._kept.pop(host, None)
        self._kept[host] = self._loop.time() + KEPT_S, addresses
        if len(self._kept) > MAX_NAMES:
            self._kept.popitem(last=False)

    def _start(self, host: str) -> None:
        thread = threading.Thread(target=self._run, args=(host,), name="names", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._places.release()
            raise NotResolved(f"no thread for the look-up: {error}") from error
        self._under_way[host] = self._loop.create_future()

    def _run(self, host: str) -> None:
        """Look up `host` in a thread, and pass the result to the event loop."""
        found: tuple[str, ...] | _Failure
        try:
            # As bytes: Python refuses some texts that resolvers accept.
            rows = self._look_up(host.encode("ascii"), None, family=_family(), type=socket.SOCK_STREAM)
            addresses = tuple(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))
            found = addresses or _Failure("no address", final=True)
        except OSError as error:
            found = _Failure(error.strerror or str(error), final=error.errno in _NO_SUCH_NAME)
        with suppress(RuntimeError):  # The loop is closed: the worker ends, and no fetch waits.
            self._loop.call_soon_threadsafe(self._done, host, found)

    def _done(self, host: str, found: tuple[str, ...] | _Failure) -> None:
        self._places.release()
        self._under_way.pop(host).set_result(found)
        if isinstance(found, tuple):
            self._keep(host, found)


def is_name(host: str) -> bool:
    """Return True if `host` must be looked up. Return False for an IP address, and for names that mean loopback."""
    bare = host.lower().removesuffix(".")
    return not host.startswith("[") and parse_address(bare) is None and bare.rpartition(".")[2] != "localhost"


@lru_cache(maxsize=1)
def _family() -> int:
    """Return the address family to ask for: both, or only IPv4 if the system has no IPv6."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    except OSError:
        return socket.AF_INET
    return socket.AF_UNSPEC
