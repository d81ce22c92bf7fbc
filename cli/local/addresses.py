"""Chooses free addresses for the masters and workers of one machine, preferably those of the last start."""

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from cli.terminal.exits import Environment, Usage

FIRST_PORT: Final = 8081
FIRST_METRICS_PORT: Final = 9101
HOST: Final = "127.0.0.1"
_LAST_PORT: Final = 65_535
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port at which a server listens. An IPv6 `host` has no brackets. `port` 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reached_at(self) -> "Address":
        """The address with which a client on this machine connects to a server that listens at this address.

        This is the loopback address if the server listens at all interfaces (0.0.0.0 or ::), else this address itself.
        """
        return Address(_ANYWHERE.get(self.host, self.host), self.port)


def parsed(text: str) -> Address:
    """Parse `host:port`, the value of --http. Raise Usage if it is malformed or has no host.

    A text without a host is rejected, because it would mean all interfaces.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _LAST_PORT:
        raise Usage(f"--http is HOST:PORT, such as {HOST}:{FIRST_PORT}, not {text!r}")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def chosen(
    holding: ExitStack, wanted: Address | None, kept: Sequence[int], count: int, *, first: int = FIRST_PORT
) -> list[Address]:
    """Return `count` free addresses, one for each process that will listen.

    - `holding` receives a listening socket for each address. While it is open, no later call and no other process can
      take the address. The caller closes `holding` before its processes listen.
    - `wanted`: the address of the first process. The other processes get ports of the same host. None: use 127.0.0.1.
    - `kept`: the ports of the processes at the last start. A process gets its port again if it is free.
    - `first`: the port from which free ports are searched if `wanted` is None.

    Raise Environment if `wanted` is taken, or if no free port is found.
    """
    host, begin = (HOST, first) if wanted is None else (wanted.host, wanted.port)
    places: list[Address] = []
    for number in range(count):
        if number == 0 and wanted is not None and wanted.port:
            tries: Sequence[int] = [wanted.port]
        else:
            behind = range(begin + number, _LAST_PORT + 1) if begin else [0]
            tries = [*kept[number : number + 1], *behind]
        places.append(_first_free(holding, host, tries))
    return places


def is_free(port: int) -> bool:
    """Return True if a server could listen at this port of 127.0.0.1 now."""
    with ExitStack() as stack:
        try:
            _listening(stack, HOST, port)
        except OSError:
            return False
        return True


def _first_free(stack: ExitStack, host: str, ports: Sequence[int]) -> Address:
    for port in ports:
        try:
            return Address(host, _listening(stack, host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == ports[-1]:
                place = Address(host, port)
                why = os.strerror(error.errno) if error.errno else error
                raise Environment(
                    f"cannot listen at {place} for the API ({why}); choose another with --http."
                ) from None
    raise Environment(f"no free port on {host}: set another with --http.")


def _listening(stack: ExitStack, host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = stack.enter_context(socket.create_server((host, port), family=family))
    bound: int = listener.getsockname()[1]
    return bound
