"""Ports for servers that a test stops and starts again, or that get their port before they start."""

import os
import socket
import threading
from itertools import count
from typing import Final

_FIRST: Final = 10_000
"""The first port. Systems give out higher ones on request, so no process takes a port whose server is stopped."""
_BLOCK: Final = 400
_BLOCKS: Final = 50
_next = count()
_taking = threading.Lock()


def own_address() -> str:
    """A loopback address of this process alone: a port that one of its servers let go of is free there until it is
    taken up again."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 64}.{pid >> 8 & 255}.{pid & 255 or 1}"


def free_ports(several: int) -> list[int]:
    """Yield free ports. This process gives each out once in a while, and other test processes have other ports."""
    own = _FIRST + os.getpid() % _BLOCKS * _BLOCK
    found: list[int] = []
    with _taking:
        for number in _next:
            port = own + number % _BLOCK
            if _is_free(port):
                found.append(port)
            if len(found) == several:
                break
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
