"""Exclusions: hosts, URL prefixes and address ranges that no crawl may request. The module does no I/O.

An exclusion has one target, in one of three forms:

- a host, such as `example.org`: all URLs of the host and its subdomains, on every port. With a port, such as
  `example.org:8080`, only URLs of that port of that host. A default port (80 or 443) is refused: no usual URL has it.
- a URL prefix, such as `https://example.org/private/`: all URLs of that host and port that begin with it, by http and
  by https. Paths are compared in canonical form and are case-sensitive.
- an address range, such as `192.0.2.0/24`, or a single address: URLs with such an address as their host, and every
  connection to such an address.

A target is stored in canonical form. So another spelling of a host or path cannot evade an exclusion.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from msgspec import Struct

from shared.domain.ids import Partition
from shared.domain.web.addresses import Address, Network, embedded, parse_address
from shared.domain.web.url import (
    DEFAULT_PORT,
    has_several_domains,
    locate,
    partition_of,
    with_normal_escapes,
    without_default_port,
)

OWNER: Final = "owner"
"""The exclusion reason of a URL that an exclusion covers."""

MAX_EXCLUSIONS: Final = 10_000
MAX_EXCLUSIONS_BYTES: Final = 1_000_000
"""The limit of all targets together, in bytes. The leader publishes them as one record, which etcd bounds."""

MAX_TARGET_CHARS: Final = 2_048
"""The limit of a new target, both as written and in canonical form."""

_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_CACHE: Final = 16_384
"""The results for at most this many hosts are cached (about 200 bytes each)."""


class TargetKind(StrEnum):
    """The forms of a target: a host with its subdomains, a URL prefix, or an address range."""

    HOST = "host"
    PREFIX = "url_prefix"
    NETWORK = "network"


class Target(Struct, frozen=True):
    """What one exclusion covers, in canonical form.

    - `text`: the target as text.
    - `host`: the host of a target of kind HOST or PREFIX, as `name` or `name:port`. Empty for kind NETWORK.
    """

    kind: TargetKind
    text: str
    host: str = ""


class TargetRefused(ValueError):
    """Raised for a text that is no valid target of an exclusion. `reason` says why, `hint` what to write instead."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason} ({hint})")
        self.reason = reason
        self.hint = hint


_EXPECTED: Final = "write a host (example.org), a URL prefix (https://example.org/private/) or a range (192.0.2.0/24)"
_SHORTER: Final = "exclude a shorter prefix, or the host"


def read_target(text: str) -> Target:
    """Return the target that a request names, in canonical form. Raise TargetRefused if it is not a valid target."""
    if len(text) > MAX_TARGET_CHARS:
        raise TargetRefused(f"is longer than {MAX_TARGET_CHARS} characters", _SHORTER)
    target = stored_target(text)
    if len(target.text) > MAX_TARGET_CHARS:
        escaped = f"has {len(target.text)} characters in canonical form, which escapes such as %20 make longer"
        raise TargetRefused(f"{escaped}; at most {MAX_TARGET_CHARS} are allowed", _SHORTER)
    if target.kind is not TargetKind.PREFIX and (name := without_default_port(text)) is not None:
        hint = f"write {name} for all its ports and subdomains, or https://{name}/ for ports 80 and 443 of that host"
        raise TargetRefused(DEFAULT_PORT, hint)
    return target


def stored_target(text: str) -> Target:
    """Return the target with the canonical form `text`, also if its length or port is refused in new ones.

    Raise TargetRefused if this version of the program cannot read it, because another version stored it.
    """
    if "://" in text:
        return _prefix(text)
    if "/" in text:
        return Target(TargetKind.NETWORK, str(_network(text)))
    address = parse_address(text) if "%" not in text else None
    if address is not None:
        return Target(TargetKind.NETWORK, str(_unmapped(ip_network(address))))
    return _host(text)


def kind_of(canonical: str) -> TargetKind:
    """Return the kind of a target in canonical form, also of one that this version of the program cannot read."""
    if "://" in canonical:
        return TargetKind.PREFIX
    return TargetKind.NETWORK if "/" in canonical else TargetKind.HOST


def partitions_with(target: Target, partitions: int) -> Sequence[Partition]:
    """Return the partitions that may have hosts or URLs that `target` covers.

    The result is all partitions for an address range, and for a host whose subdomains may have different registrable
    domains (such as `co.uk`). Otherwise it is one partition. `partitions`: the number of partitions in the cluster.
    """
    several = target.kind is TargetKind.HOST and has_several_domains(_split(target.host)[0])
    if target.kind is TargetKind.NETWORK or several:
        return [Partition(number) for number in range(partitions)]
    return [partition_of(target.host, partitions)]


def _prefix(text: str) -> Target:
    location = locate(text)
    if location is None:
        raise TargetRefused("is not an http or https URL without user and password", _EXPECTED)
    url = location.url
    scheme = url[: url.index(":")]
    return Target(TargetKind.PREFIX, f"{scheme}://{location.host}{_path(url)}", location.host)


def _network(text: str) -> Network:
    try:
        return _unmapped(ip_network(text))
    except ValueError as error:
        try:
            near = ip_network(text, strict=False)
        except ValueError:
            raise TargetRefused("is neither a host nor an address range", _EXPECTED) from error
        raise TargetRefused(str(error), f"did you mean {near}?") from error


def _unmapped(network: Network) -> Network:
    """Return the IPv4 range if `network` is a range of IPv4-mapped IPv6 addresses. Otherwise return it unchanged."""
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def _host(text: str) -> Target:
    location = locate(f"http://{text}/") if text.strip() == text and not set(text) & set("?#\\@\t\r\n") else None
    if location is None or _path(location.url) != "/":
        hint = "a host covers its subdomains: leave out `*.`" if text.startswith(("*.", ".")) else _EXPECTED
        raise TargetRefused("is not a host", hint)
    address = parse_address(location.host)
    if address is not None:  # another way to write an address, such as 0x7f.1
        return Target(TargetKind.NETWORK, str(_unmapped(ip_network(address))))
    return Target(TargetKind.HOST, location.host, location.host)


def _path(url: str) -> str:
    """Return path and query of a canonical URL."""
    return url[url.index("/", 8) :]


def _compared_path(url: str) -> str:
    """Return path and query of a canonical URL, in the form in which exclusions compare them.

    A canonical URL with a stray `%` keeps all its escapes as they were written. Such a URL must not evade an exclusion.
    """
    return with_normal_escapes(_path(url))


def _split(host: str) -> tuple[str, str]:
    """Return the name or address of a host, without brackets, and its port. The port is empty if the host has none."""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name, port.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


class Exclusions:
    """All exclusions in force, compiled so that URLs, hosts and addresses can be checked quickly.

    - `revision`: the revision of the cluster's exclusions. It grows with each change.
    - `targets`: the targets in canonical form.
    - `unread`: the errors of the targets that this version of the program cannot read. All others are in force.
    """

    def __init__(self, revision: int = 0, targets: Iterable[str] = ()) -> None:
        self.revision: Final = revision
        self._hosts: Final[dict[str, str]] = {}
        self._prefixes: Final[dict[str, dict[str, str]]] = {}
        self._networks: Final[dict[tuple[int, int], dict[int, str]]] = {}
        self.unread: Final[dict[str, TargetRefused]] = {}
        for text in targets:
            try:
                self._add(stored_target(text))
            except TargetRefused as error:
                self.unread[text] = error
        self._on_host: Final = lru_cache(_CACHE)(self._find)

    def __repr__(self) -> str:
        return f"<Exclusions revision={self.revision} {len(self._hosts)} hosts, {len(self._prefixes)} with prefixes>"

    def __bool__(self) -> bool:
        """Return True if there is any exclusion."""
        return bool(self._hosts or self._prefixes or self._networks)

    def _add(self, target: Target) -> None:
        match target.kind:
            case TargetKind.HOST:
                self._hosts[target.host] = target.text
            case TargetKind.PREFIX:
                self._prefixes.setdefault(target.host, {})[_compared_path(target.text)] = target.text
            case TargetKind.NETWORK:
                network = ip_network(target.text)
                bits = network.max_prefixlen
                at = int(network.network_address) >> (bits - network.prefixlen)
                self._networks.setdefault((bits, network.prefixlen), {})[at] = target.text

    def first(self, url: str, host: str) -> str | None:
        """Return the target that covers `url` (canonical, on `host`), None if there is none."""
        whole, prefixes = self._on_host(host)
        if whole is not None or not prefixes:
            return whole
        path = _compared_path(url)
        if not path.startswith(tuple(prefixes)):
            return None
        return next(target for prefix, target in prefixes.items() if path.startswith(prefix))

    def of_host(self, host: str) -> str | None:
        """Return the target that covers every URL of `host`, None if there is none."""
        return self._on_host(host)[0]

    def touches(self, host: str) -> bool:
        """Return True if a target covers `host`, or some of its URLs."""
        whole, prefixes = self._on_host(host)
        return whole is not None or bool(prefixes)

    def of_address(self, address: Address) -> str | None:
        """Return the target of an address range that contains `address`. Return None if there is none.

        An IPv6 address that embeds an IPv4 address is also covered if a range contains the IPv4 address.
        """
        if not self._networks:
            return None
        for each in (address, *embedded(address)):
            number, size = int(each), each.max_prefixlen
            for (bits, length), known in self._networks.items():
                if bits == size and (target := known.get(number >> (bits - length))) is not None:
                    return target
        return None

    def _find(self, host: str) -> tuple[str | None, dict[str, str]]:
        """Return the target that covers the whole host (or None), and the host's excluded paths with their targets."""
        prefixes = self._prefixes.get(host, {})
        name, port = _split(host)
        if (address := parse_address(name)) is not None:
            return self._hosts.get(host) or self.of_address(address), prefixes
        found = self._hosts.get(host) if port else None
        labels = name.split(".")
        for start in range(len(labels)):
            found = found or self._hosts.get(".".join(labels[start:]))
        return found, prefixes


NO_EXCLUSIONS: Final = Exclusions()
