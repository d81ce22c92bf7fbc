"""IP addresses: parse them, and find the IPv4 addresses that an IPv6 address carries."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_COMPATIBLE: Final = IPv6Network("::/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def embedded(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that an IPv6 address contains or tunnels to. Yield nothing for IPv4, `::` and `::1`."""
    if isinstance(address, IPv4Address):
        return
    yield from translated(address)
    number = int(address)
    if (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield IPv4Address(number & 0xFFFFFFFF)


def translated(address: Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses of an IPv6 address whose network exists only to reach IPv4 addresses.

    These are mapped, compatible, NAT64, 6to4 and Teredo addresses. Return () for every other address, also
    for an ISATAP address: it contains an IPv4 address, but it is in an ordinary IPv6 network.
    """
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    if address.ipv4_mapped is not None or address in _NAT64 or (address in _COMPATIBLE and number > 1):
        return (IPv4Address(number & 0xFFFFFFFF),)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    return address.teredo or ()


def parse_address(text: str) -> Address | None:
    """Parse an IP address (brackets and zone allowed). Return None for a name."""
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
