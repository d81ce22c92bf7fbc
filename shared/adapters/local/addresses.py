"""The network addresses of this machine, at which others can reach a server that listens on all interfaces."""

import array
import fcntl
import socket
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import structlog

from shared.domain.ops.egress import split_endpoint

log = structlog.get_logger(__name__)

_SIOCGIFCONF: Final = 0x8912
_RECORD_BYTES: Final = 40
_MAX_RECORDS: Final = 1024
_IPV6: Final = Path("/proc/net/if_inet6")


def listening_endpoints(bound: str) -> tuple[str, ...]:
    """Return the endpoints (`host:port`) of a server that listens on the endpoint `bound`.

    If `bound` means all interfaces (such as `0.0.0.0:8081`), return `0.0.0.0` first, and then every address of this
    machine except loopback, each with the port. Otherwise return only `bound`.
    """
    host, port = split_endpoint(bound)
    if port is None or host not in ("0.0.0.0", "::", ""):
        return (bound,)
    return (f"0.0.0.0:{port}", *(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in _addresses()))


def _addresses() -> list[str]:
    """Return the IPv4 and IPv6 addresses of this machine, without loopback.

    If they cannot be read, log a warning and return an empty list.
    """
    try:
        addresses = [*_ipv4(), *_ipv6()]
    except OSError as error:
        log.warning("own_addresses.omitted", error=str(error))
        return []
    return [each for each in addresses if not ip_address(each).is_loopback]


def _ipv4() -> list[str]:
    """Return the IPv4 addresses of this machine's interfaces, as text, including loopback.

    The kernel returns an array of ifreq structures (netdevice(7)), each with its address at byte 20.
    """
    buffer = array.array("B", bytes(_RECORD_BYTES * _MAX_RECORDS))
    address, length = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        answer = fcntl.ioctl(query, _SIOCGIFCONF, struct.pack("iL", length, address))
    used = struct.unpack("iL", answer)[0]
    records = buffer.tobytes()[:used]
    return [socket.inet_ntoa(records[at + 20 : at + 24]) for at in range(0, used, _RECORD_BYTES)]


def _ipv6() -> list[str]:
    if not _IPV6.exists():  # a kernel without IPv6
        return []
    return [str(ip_address(bytes.fromhex(line.split()[0]))) for line in _IPV6.read_text().splitlines()]
