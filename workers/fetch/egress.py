"""The egress rules: which addresses a fetch may connect to. Pure functions.

The defaults allow only ordinary public unicast addresses. They deny the special-purpose registries of IANA (RFC 6890
and its updates) and the metadata services of cloud providers. An IPv6 address that carries an IPv4 address is judged by
the IPv4 address too. An operator opens networks with `allow`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Network, ip_network
from typing import Final, Protocol

from shared.domain.web.addresses import Address, Network, embedded, translated
from shared.domain.web.fetch import CLUSTER_ENDPOINT

_SPECIAL: Final = """
169.254.169.254/32 cloud metadata
168.63.129.16/32   cloud metadata
100.100.100.200/32 cloud metadata
192.0.0.192/32     cloud metadata
fd00:ec2::254/128  cloud metadata
fd20:ce::254/128   cloud metadata
0.0.0.0/8          unspecified
10.0.0.0/8         private
100.64.0.0/10      shared (carrier-grade NAT)
127.0.0.0/8        loopback
169.254.0.0/16     link-local
172.16.0.0/12      private
192.0.0.0/24       reserved
192.0.2.0/24       documentation
192.88.99.0/24     reserved
192.168.0.0/16     private
198.18.0.0/15      benchmarking
198.51.100.0/24    documentation
203.0.113.0/24     documentation
224.0.0.0/4        multicast
240.0.0.0/4        reserved
::/128             unspecified
::1/128            loopback
64:ff9b:1::/48     private (local NAT64)
100::/64           reserved (discard)
2001::/23          reserved
2001:db8::/32      documentation
3fff::/20          documentation
5f00::/16          reserved (segment routing)
fc00::/7           private
fe80::/10          link-local
fec0::/10          private (site-local)
ff00::/8           multicast
"""
DEFAULT_DENY: Final[tuple[tuple[Network, str], ...]] = tuple(
    (ip_network(network), reason)
    for network, reason in (line.split(maxsplit=1) for line in _SPECIAL.strip().splitlines())
)
"""The networks that are denied by default, each with the reason.

If networks overlap, the one with the most specific reason comes first."""

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")


class Closed(Protocol):
    """Endpoints that no crawl may connect to, even if `allow` opens their addresses."""

    def covers(self, address: Address, port: int) -> bool:
        """Return True if a connection to `address` and `port` could reach a closed endpoint, and must be refused."""

    def names(self, host: str, port: int) -> bool:
        """Return True if `host:port` was added as a closed endpoint by name. The name is not resolved."""


@dataclass(frozen=True, slots=True)
class EgressRules:
    """The egress rules of a crawl: which addresses its requests may connect to.

    - `allow`: these networks are open, even if they are private or in `deny`.
    - `deny`: these networks are closed, each for a reason. By default they include all private and local networks.
    - Addresses in neither list: IPv4 addresses and the IPv6 addresses in 2000::/3 are open. All others are closed.
    - `bound`: `allow` opens only addresses that are also in these networks. None: `allow` opens all its networks.
    - `closed`: endpoints that always stay closed.
    - `excluded`: a function that returns the exclusion that covers an address now, None if there is none.

    Two EgressRules are equal if their `allow` and `deny` are equal.
    """

    allow: tuple[Network, ...] = ()
    deny: tuple[tuple[Network, str], ...] = DEFAULT_DENY
    bound: tuple[Network, ...] | None = field(default=None, compare=False, repr=False)
    closed: Closed | None = field(default=None, compare=False, repr=False)
    excluded: Callable[[Address], str | None] = field(default=lambda address: None, compare=False, repr=False)

    def verdict(self, address: Address) -> str | None:
        """Return why `address` is denied ("loopback", "private", ...), or None if it is allowed.

        The first of these rules that applies decides:

        1. If `bound` is set: `::`, `0.0.0.0` and each IPv6 address that contains `0.0.0.0` are denied. The kernel would
           connect them to this machine.
        2. An address that `allow` opens is allowed.
        3. An IPv6 address that contains a denied IPv4 address is denied.
        4. An IPv6 address that only stands for IPv4 addresses is allowed: mapped, compatible, NAT64, 6to4 or Teredo.
        5. Any other address, also an ISATAP address, is denied if it is in `deny`, or is IPv6 outside of 2000::/3.
        """
        if self.bound is not None and any(each.is_unspecified for each in (address, *embedded(address))):
            return "unspecified"
        if _within(address, self.allow) and (self.bound is None or _within(address, self.bound)):
            return None
        for inner in embedded(address):
            if reason := self.verdict(inner):
                return f"{reason}, as {inner}"
        if translated(address):
            return None
        for network, reason in self.deny:
            if address in network:
                return reason
        if address.version == 6 and address not in _GLOBAL_UNICAST:
            return "reserved"
        return None

    def explain(self, address: Address, port: int) -> str | None:
        """Return why a connection to `address` and `port` is denied, and what would open it, as text for the operator.

        Return None if it is allowed.
        """
        if self.closed is not None and any(self.closed.covers(each, port) for each in (address, *embedded(address))):
            return f"{address} port {port} {CLUSTER_ENDPOINT}"
        reason = self.verdict(address)
        if reason is None:
            return None
        denied = f"{address} is not reachable by the egress rules ({reason})"
        if self.bound is None:
            return f"{denied}; --allow-net {address} opens it"
        if any(_within(each, self.allow) for each in (address, *embedded(address))):
            return f"{denied}: egress.allow of the spec names it, and --allow-net of this worker does not"
        return f"{denied}; egress.allow in the spec opens it where --allow-net of the worker allows it"

    def explain_name(self, host: str, port: int) -> str | None:
        """Return why a request for `host` and `port` must not be sent to a proxy. Return None if it may be sent.

        Only the name is checked, since the proxy resolves it.
        """
        if self.closed is not None and self.closed.names(host, port):
            return f"{host}:{port} {CLUSTER_ENDPOINT}"
        return None


def _within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)
