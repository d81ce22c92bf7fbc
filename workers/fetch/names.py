"""Looks up the addresses of hosts, each name in a thread of its own.

libcurl has at most 20 threads for look-ups, and pycurl cannot raise that number. Names whose servers do not answer
would occupy them all. Then other names wait in libcurl until the connect limit of their own fetch, and healthy hosts
fail.
"""

import asyncio
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from shared.domain.web.addresses import parse_address

MAX_LOOKUPS: Final = 256
"""The greatest number of threads that look up names. Further look-ups wait, and their time limits do not count that."""

MAX_NAMES: Final = 10_000
"""Above this number of known names, the one whose look-up ended first is forgotten."""

FRESH_S: Final = 60.0
"""The addresses of a name are used for so many seconds without a new look-up. libcurl's own cache does the same."""

USABLE_S: Final = 600.0
"""The greatest age in seconds of addresses that are used. Their age counts from the end of their look-up.

From FRESH_S to this age, a new look-up runs in the background. The old addresses are used until the new look-up
succeeds, or a name server answers that the name has no address.
"""

FAILED_S: Final = 4.0
"""For so many seconds after a failed look-up the same failure is raised again, without a new look-up.

A visit looks up a name twice: before it waits for the host's delay, and when it sends the request. If the first look-up
has just failed, the second one fails at once. A host that was not reached is tried again after a longer time, when the
failure has expired.
"""

_NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""The errors of `getaddrinfo` by which a name server says that the name has no address."""

GetAddrInfo = Callable[..., Sequence[Any]]
"""`socket.getaddrinfo`, or a replacement in tests. It is called in a thread."""


class NotResolved(Exception):
    """A name has no address, or its servers did not answer in time. The text is for people."""


class _Failure(Struct, frozen=True):
    """A look-up that found no address. `final`: a name server answered that there is none."""

    reason: str
    final: bool = False


class _Known(Struct, frozen=True):
    """The result of a look-up, and when it ended (event loop's time)."""

    found: tuple[str, ...] | _Failure
    at: float


class _LookUp:
    """A look-up that waits for a thread or is running. `result`: its addresses, or why there are none."""

    def __init__(self, host: str, loop: asyncio.AbstractEventLoop) -> None:
        self.host: Final = host
        self.started: Final = asyncio.Event()
        self.result: Final[asyncio.Future[tuple[str, ...] | _Failure | OSError]] = loop.create_future()


class Names:
    """The addresses of hosts, for all fetchers of a process. Construct it in the event loop that uses it.

    A thread that waits for a silent server cannot be stopped. It continues after `addresses` has given up, and counts
    in MAX_LOOKUPS until the system's resolver gives up, too. The threads do not delay the end of the process.

    The age of known addresses, counted from the end of their look-up, decides what a request does:

    - Up to FRESH_S: use the addresses.
    - From FRESH_S to USABLE_S: use the addresses, and start a new look-up in the background (RFC 8767).
    - Above USABLE_S: wait for a new look-up.

    So a request does not fail because name servers are down for a short time.
    """

    def __init__(self, getaddrinfo: GetAddrInfo | None = None) -> None:
        self._getaddrinfo = socket.getaddrinfo if getaddrinfo is None else getaddrinfo
        self._loop = asyncio.get_running_loop()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._under_way: dict[str, _LookUp] = {}
        self._queued: deque[_LookUp] = deque()
        self._running = 0

    async def addresses(self, host: str, limit_s: float) -> tuple[str, ...]:
        """Return the addresses of the name `host`, in the order in which to try them.

        Raise NotResolved if there are none, or if the look-up takes longer than `limit_s`. Raise OSError if the system
        refuses even a single thread.
        """
        known = self._known.get(host)
        if known is not None:
            age_s = self._loop.time() - known.at
            if isinstance(known.found, _Failure):
                if age_s < FAILED_S:
                    raise NotResolved(known.found.reason)
            elif age_s < USABLE_S:
                if age_s >= FRESH_S:
                    self._look_up(host)
                return known.found
        look_up = self._look_up(host)
        await look_up.started.wait()
        try:
            async with asyncio.timeout(limit_s):
                found = await asyncio.shield(look_up.result)
        except TimeoutError:
            found = _Failure(f"no answer within {limit_s:g} s")
            self._keep(host, found)
        if isinstance(found, OSError):
            raise found
        if isinstance(found, _Failure):
            raise NotResolved(found.reason)
        return found

    def _look_up(self, host: str) -> _LookUp:
        """Return the look-up of `host` that is under way. If there is none, begin one."""
        look_up = self._under_way.get(host)
        if look_up is None:
            look_up = self._under_way[host] = _LookUp(host, self._loop)
            self._queued.append(look_up)
            self._start_queued()
        return look_up

    def _start_queued(self) -> None:
        """Start a thread for each queued look-up, the oldest first, while fewer than MAX_LOOKUPS threads run.

        If the system refuses a thread, the result depends on the other look-ups:

        - If at least one look-up is running, the queued look-ups stay queued. They start later.
        - If none is running, all queued look-ups fail.
        """
        while self._queued and self._running < MAX_LOOKUPS:
            thread = threading.Thread(target=self._run, args=(self._queued[0],), name="names", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._running:  # otherwise the end of a running look-up starts the next one
                    self._refuse_queued(OSError(f"no thread for the look-up of a name: {error}"))
                return
            self._running += 1
            self._queued.popleft().started.set()

    def _refuse_queued(self, error: OSError) -> None:
        for look_up in self._queued:
            del self._under_way[look_up.host]
            look_up.started.set()
            look_up.result.set_result(error)
        self._queued.clear()

    def _run(self, look_up: _LookUp) -> None:
        """Look up the name in a thread, and pass the result to the event loop."""
        found: tuple[str, ...] | _Failure
        try:
            # As bytes: Python refuses some texts that resolvers accept.
            rows = self._getaddrinfo(look_up.host.encode("ascii"), None, family=_family(), type=socket.SOCK_STREAM)
            addresses = tuple(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))
            found = addresses or _Failure("no address", final=True)
        except OSError as error:
            found = _Failure(error.strerror or str(error), final=error.errno in _NO_SUCH_NAME)
        with suppress(RuntimeError):  # The loop is closed: the worker ends, and no fetch waits.
            self._loop.call_soon_threadsafe(self._done, look_up, found)

    def _done(self, look_up: _LookUp, found: tuple[str, ...] | _Failure) -> None:
        self._running -= 1
        del self._under_way[look_up.host]
        look_up.result.set_result(found)
        known = self._known.get(look_up.host)
        if isinstance(found, tuple) or found.final or known is None or isinstance(known.found, _Failure):
            self._keep(look_up.host, found)
        self._start_queued()

    def _keep(self, host: str, found: tuple[str, ...] | _Failure) -> None:
        self._known.pop(host, None)
        self._known[host] = _Known(found, self._loop.time())
        if len(self._known) > MAX_NAMES:
            self._known.popitem(last=False)


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
