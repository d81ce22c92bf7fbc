"""Endpoints of the cluster itself: its servers, masters and workers. No crawl may connect to them, even if its spec and
the worker allow their addresses.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import structlog

from shared.domain.ops.egress import split_endpoint
from shared.domain.web.addresses import Address, parse_address

log = structlog.get_logger(__name__)

H = TypeVar("H")
Resolve = Callable[[str], Awaitable[Sequence[str]]]

MAX_ENDPOINTS: Final = 65_536
"""The maximum number of closed names, and also of closed addresses. Above this number the oldest is dropped."""

RESOLVE_S: Final = 30.0
"""Seconds after which the names of endpoints are resolved again."""

_ANSWER_S: Final = 5.0


class ClosedEndpoints:
    """The endpoints to which no crawl may connect: the cluster's own servers (NATS, etcd, ...), masters and workers.

    An endpoint is a host and a port. The port is closed at one or more addresses:

    - The host is a loopback address, such as `127.0.0.1`: the port is closed only at this address.
    - The host is an address of another machine: the port is closed only at this address.
    - The host is `0.0.0.0`, `::` or another address of this machine: the port is closed at all addresses of this
      machine, including loopback.
    - The host is a name: the port is closed at each address to which the name has ever resolved. If the name has
      resolved to this machine, the port is closed at all addresses of this machine.

    So `127.0.0.1:80` closes one address, but `localhost:80` closes port 80 at all addresses of this machine.

    Call `resolve` once before the first fetch, because names have no effect before.

    An endpoint that was added stays in this object. One exception: above `MAX_ENDPOINTS`, the oldest one is dropped.
    Masters and workers that never registered are missing here, unless the option `--closed` names them.
    """

    def __init__(self, resolve: Resolve | None = None) -> None:
        self._resolve = _resolved if resolve is None else resolve
        self._named: dict[tuple[str, int], None] = {}
        self._exact: dict[tuple[Address, int], None] = {}
        self._here: set[int] = set()
        self._new_name = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ClosedEndpoints {len(self._named)} named, {len(self._exact)} addresses, {len(self._here)} ports here>"

    def add(self, endpoints: Iterable[str]) -> None:
        """Close endpoints, each `host:port`. Addresses are closed at once, names at the next `resolve`."""
        for endpoint in endpoints:
            host, port = split_endpoint(endpoint)
            if port is None:
                log.warning("closed_endpoint.ignored", endpoint=endpoint)
            elif (address := parse_address(host)) is None:
                name = host.lower().rstrip(".")
                if (name, port) not in self._named:
                    _remember(self._named, name, port)
                    self._new_name.set()
            else:
                self._close(address, port)

    async def resolve(self) -> None:
        """Resolve every closed name and close its addresses. Addresses found earlier stay closed."""
        ports: dict[str, list[int]] = {}
        for name, port in self._named:
            ports.setdefault(name, []).append(port)
        for host, closed in ports.items():
            try:
                async with asyncio.timeout(_ANSWER_S):
                    addresses = await self._resolve(host)
            except (OSError, TimeoutError) as error:
                log.info("closed_endpoint.unresolved", host=host, error=str(error) or "no answer in time")
                continue
            for address in [each for each in map(parse_address, addresses) if each is not None]:
                for port in closed:
                    self._close(address, port)
                    if address.is_loopback:
                        self._here.add(port)

    async def run(self) -> None:
        """Resolve the closed names every RESOLVE_S, and at once after a new one was added, until cancelled."""
        while True:
            self._new_name.clear()
            await self.resolve()
            with suppress(TimeoutError):
                async with asyncio.timeout(RESOLVE_S):
                    await self._new_name.wait()

    def covers(self, address: Address, port: int) -> bool:
        """Return True if a connection to `address` and `port` could reach a closed endpoint, and must be refused."""
        if (address, port) in self._exact:
            return True
        if port in self._here and _is_here(address):
            return True
        # The kernel connects an unspecified address to loopback.
        return address.is_unspecified and any(port == closed for _, closed in self._exact)

    def names(self, host: str, port: int) -> bool:
        """Return True if `host:port` was added as a closed endpoint by name. The name is not resolved."""
        return (host.lower().rstrip("."), port) in self._named

    def _close(self, address: Address, port: int) -> None:
        if address.is_unspecified or (not address.is_loopback and _is_here(address)):
            self._here.add(port)
        if not address.is_unspecified:
            _remember(self._exact, address, port)


def _remember(kept: dict[tuple[H, int], None], host: H, port: int) -> None:
    kept[host, port] = None
    if len(kept) > MAX_ENDPOINTS:
        del kept[next(iter(kept))]


def _is_here(address: Address) -> bool:
    """Return True if the address belongs to this machine. The test is that the kernel binds a socket to it."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


async def _resolved(host: str) -> Sequence[str]:
    rows = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in rows]
