"""Check if a client may use an identity: by the end of its validity, its networks, and its client certificate.

A certificate is named by its SHA-256 fingerprint (`sha256:<64 hex digits>`), or by one of its subject alternative names
(`dns:`, `uri:` or `email:` and the name). The authority that signs client certificates decides who gets a name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from shared.domain.ops.access import ApiKey

MAX_NETWORKS: Final = 32
"""The maximum number of networks that one identity may have."""

CERTIFICATE: Final = (
    r"^(sha256:[0-9a-f]{64}|dns:[!-9;-~]{1,253}|uri:[!-~]{1,1000}|email:[!-9;-?A-~]{1,64}@[!-9;-?A-~]{1,253})$"
)
"""The pattern of a certificate's name. It has only visible ASCII, as the names that a certificate holds."""

_KINDS: Final[Mapping[str, str]] = {"DNS": "dns", "URI": "uri", "email": "email"}
"""The kinds of subject alternative names that can name an identity, as the `ssl` module calls them."""


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The names of a client's certificate, which the TLS layer has verified."""

    names: frozenset[str]

    @classmethod
    def of(cls, digest: bytes, alternative_names: Iterable[tuple[str, str]]) -> "PeerCertificate":
        """Return the certificate with this SHA-256 and these subject alternative names.

        `alternative_names`: the (kind, name) pairs that `ssl.SSLSocket.getpeercert` lists.
        """
        known = (
            f"{_KINDS[kind]}:{name if kind == 'URI' else name.lower()}"
            for kind, name in alternative_names
            if kind in _KINDS
        )
        return cls(frozenset((f"sha256:{digest.hex()}", *known)))


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of a request: the address of its connection, and its client certificate.

    Either may be unknown (None).
    """

    address: str | None = None
    certificate: PeerCertificate | None = None


class IdentityRefusal(StrEnum):
    """Why an identity is not accepted.

    EXPIRED: its validity has ended. NETWORK: the client's address is in none of its networks. CERTIFICATE: the client's
    certificate does not have the required name.
    """

    EXPIRED = "expired"
    NETWORK = "network"
    CERTIFICATE = "certificate"


def refusal(kept: ApiKey, peer: Peer, now_ms: int) -> IdentityRefusal | None:
    """Return why `peer` may not use the stored identity `kept` at `now_ms` (Unix ms). Return None if it may.

    A revocation is not checked.
    """
    if kept.expires_at_ms is not None and now_ms >= kept.expires_at_ms:
        return IdentityRefusal.EXPIRED
    if kept.certificate is not None and (peer.certificate is None or kept.certificate not in peer.certificate.names):
        return IdentityRefusal.CERTIFICATE
    if kept.networks and not within(peer.address, kept.networks):
        return IdentityRefusal.NETWORK
    return None


def within(address: str | None, networks: Iterable[str]) -> bool:
    """Return True if `address` is in one of `networks`. Return False if `address` is None or no IP address.

    A text in `networks` that is not a valid network is ignored. It raises no error.
    """
    found = address_of(address)
    return found is not None and any(_contains(network, found) for network in networks)


def _contains(network: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(network)
    except ValueError:
        return False


def address_of(text: str | None) -> IPv4Address | IPv6Address | None:
    """Return the IP address in `text`, without its zone. Return None if `text` is no IP address.

    For an IPv4-mapped IPv6 address return the IPv4 address.
    """
    try:
        address = ip_address((text or "").partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def network_of(text: str) -> str:
    """Return a network in canonical CIDR notation. An address without a prefix length is a network of one address.

    Raise ValueError with a sentence if `text` is no network, has host bits set, has a zone, or writes IPv4 as IPv6.
    """
    if "%" in text:  # The address of a client is compared without its zone.
        raise ValueError("expected a network without a zone (%), as fe80::/64")
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(
            "expected a network as 10.1.0.0/16 or 2001:db8::/32, without bits beyond its length"
        ) from error
    mapped = network.network_address.ipv4_mapped if isinstance(network.network_address, IPv6Address) else None
    if mapped is not None:
        raise ValueError(f"write IPv4 networks as IPv4: {mapped}")
    return str(network)


def certificate_name(text: str) -> str:
    """Return the canonical form of a certificate's name.

    - `sha256:` with a fingerprint: lower-case hex digits without colons between the digits.
    - `dns:` or `email:` with a name: the name in lower case.
    - `uri:` with a name: the name unchanged.

    Raise ValueError if `text` is not one of the names that the module lists.
    """
    kind, _, name = text.partition(":")
    if kind == "sha256":
        name = name.replace(":", "").lower()
    elif kind in ("dns", "email"):
        name = name.lower()
    if re.fullmatch(CERTIFICATE, f"{kind}:{name}") is None:
        raise ValueError("expected sha256: and 64 hex digits, or dns:, uri: or email: and a name of the certificate")
    return f"{kind}:{name}"
