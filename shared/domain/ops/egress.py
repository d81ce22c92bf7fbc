"""Where crawls may connect to: networks that operators open for workers, and servers that stay closed. No I/O."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final
from urllib.parse import parse_qs

Network = IPv4Network | IPv6Network

NATS_PORT: Final = 4222
ETCD_PORT: Final = 2379
POSTGRES_PORT: Final = 5432

_NAMED_WORKERS: Final = 3
_AUTHORITY: Final = re.compile(r"(?:[a-z0-9+.-]+://)?(?:[^/?#]*@)?([^/?#]*)", re.IGNORECASE)
_QUERY: Final = re.compile(r"\?([^#]*)")
_LOOPBACK: Final = re.compile(r"(?:127\.[\d.]+|::1|localhost|)", re.IGNORECASE)


class Networks(str):
    """A list of networks as text: in CIDR notation, separated by commas. Empty: no network."""

    __slots__ = ()

    @classmethod
    def read(cls, text: str) -> "Networks":
        """Return the list of networks in `text`, without spaces.

        Raise ValueError, with a hint, for the first invalid network.
        """
        parts = [part for part in map(str.strip, text.split(",")) if part]
        for part in parts:
            if problem := network_problem(part):
                message, hint = problem
                raise ValueError(f"{message} ({hint})")
        return cls(",".join(parts))

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in self.split(",") if part)

    @property
    def networks(self) -> tuple[Network, ...]:
        return tuple(map(ip_network, self.parts))


def network_problem(text: str) -> tuple[str, str] | None:
    """Return what is wrong with a network in CIDR notation, and a hint how to correct it.

    Return None if it is valid.
    """
    try:
        ip_network(text)
    except ValueError as error:
        try:
            return str(error), f"did you mean {ip_network(text, strict=False)}?"
        except ValueError:
            return str(error), "write a network as 10.0.0.0/8 or fd00::/8"
    return None


def closed_networks(allow: Sequence[str], workers: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a warning for each network in `allow` (a spec's `egress.allow`) that at least one worker does not open.

    `workers` maps the name of each live worker in the crawl's pool to the networks that its operator allows. A worker
    opens only addresses that both the spec and the worker's operator allow.
    """
    sentences = []
    for index, network in enumerate(allow):
        closed = sorted(name for name, allowed in workers.items() if not _opens(network, allowed))
        if closed:
            some = len(closed) < len(workers)
            more = ", ..." if len(closed) > _NAMED_WORKERS else ""
            where = f"at {', '.join(closed[:_NAMED_WORKERS])}{more}" if some else "at any worker of its pool"
            sentences.append(
                f"egress.allow[{index}] ({network}) opens nothing {where}: a worker opens only what its operator "
                "allows with --allow-net"
            )
    return sentences


def _opens(network: str, allowed: Sequence[str]) -> bool:
    requested = ip_network(network, strict=False)
    return any(requested.version == each.version and requested.overlaps(each) for each in map(ip_network, allowed))


def engine_endpoints(urls: Iterable[str], default_port: int) -> tuple[str, ...]:
    """Return the `host:port` endpoints in the URLs of servers such as NATS, etcd or PostgreSQL.

    A URL may name several hosts, separated by commas. A server at a loopback address may listen on every address of its
    machine. So for such an address the result also has `0.0.0.0:port`. A Unix socket has no endpoint.
    """
    endpoints: dict[str, None] = {}
    for url in urls:
        for host, port in _hosts(url, default_port):
            endpoints[f"{host}:{port}"] = None
            if _LOOPBACK.fullmatch(host.strip("[]")):
                endpoints[f"0.0.0.0:{port}"] = None
    return tuple(endpoints)


def _hosts(url: str, default_port: int) -> Iterator[tuple[str, int]]:
    if url.startswith("unix:"):
        return
    authority = _AUTHORITY.match(url)
    query = _QUERY.search(url)
    options = parse_qs(query[1]) if query is not None else {}
    hosts = [host for host in (authority[1] if authority is not None else "").split(",") if host]
    if not hosts:
        hosts = [host for text in options.get("host", ["localhost"]) for host in text.split(",")]
    ports = [port for text in options.get("port", []) for port in text.split(",")]
    for index, place in enumerate(hosts):
        if place.startswith("/"):
            continue
        host, port = split_endpoint(place)
        if port is None:
            option = ports[min(index, len(ports) - 1)] if ports else ""
            port = int(option) if option.isdigit() else default_port
        yield (f"[{host}]" if ":" in host else host), port


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Return the host, without brackets, and the port of `host:port`. The port is None if the text has none."""
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (":" not in host or host.startswith("[")):
        return host.strip("[]"), int(port)
    return text.strip("[]"), None
