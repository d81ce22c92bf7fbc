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
    number = int(address)
    low = IPv4Address(number & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64 or (address in _COMPATIBLE and number > 1):
        yield low
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    if (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield low


def parse_address(text: str) -> Address | None:
    """Parse an IP address (brackets and zone allowed). Return None for a name."""
    try:
        return ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
