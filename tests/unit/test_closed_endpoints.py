"""Endpoints of the cluster stay closed by every address under which a worker's machine reaches them."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from shared.domain.ops.egress import Networks, closed_networks, engine_endpoints
from workers.fetch.closed_endpoints import ClosedEndpoints


class Names:
    """A name server that answers as a test says."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = addresses

    async def __call__(self, host: str) -> Sequence[str]:
        if host not in self.addresses:
            raise OSError("no such name")
        return self.addresses[host]


def covers(closed: ClosedEndpoints, address: str, port: int) -> bool:
    return closed.covers(ip_address(address), port)


def test_unspecified_target_reaches_whatever_listens_on_loopback() -> None:
    closed = ClosedEndpoints(Names())
    closed.add(["127.0.0.1:4222"])
    assert covers(closed, "0.0.0.0", 4222)
    assert covers(closed, "::", 4222)
    assert not covers(closed, "0.0.0.0", 80)


def test_name_of_this_machine_closes_the_port_on_all_its_addresses() -> None:
    closed = ClosedEndpoints(Names(localhost=["127.0.0.1"]))
    closed.add(["localhost:2379"])
    asyncio.run(closed.resolve())
    assert covers(closed, "127.0.0.5", 2379)


@pytest.mark.parametrize(
    ("url", "port", "endpoints"),
    [
        ("nats://token@nats-1", 4222, ["nats-1:4222"]),
        ("tls://[fd00::1]:4443", 4222, ["[fd00::1]:4443"]),
        ("unix:/run/etcd/client.sock:1", 2379, []),
        ("http://127.0.0.1:2379", 2379, ["127.0.0.1:2379", "0.0.0.0:2379"]),
        ("postgresql://u:p@h1:1,h2/db?application_name=x", 5432, ["h1:1", "h2:5432"]),
        ("postgresql:///db?host=a,b&port=7", 5432, ["a:7", "b:7"]),
        ("postgresql:///db?host=/run/postgresql", 5432, []),
        ("postgresql:///db", 5432, ["localhost:5432", "0.0.0.0:5432"]),
    ],
)
def test_engine_url_yields_the_endpoints_of_its_hosts(url: str, port: int, endpoints: list[str]) -> None:
    assert list(engine_endpoints([url], port)) == endpoints


def test_network_that_no_worker_opens_is_named_with_its_place() -> None:
    workers = {"w1": ("10.0.0.0/8",), "w2": ("10.1.0.0/16", "fd00::/8")}
    assert closed_networks(["10.1.2.0/24", "fd00::/8", "127.0.0.0/8"], workers) == [
        "egress.allow[1] (fd00::/8) opens nothing at w1: a worker opens only what its operator allows with --allow-net",
        "egress.allow[2] (127.0.0.0/8) opens nothing at any worker of its pool: a worker opens only what its operator "
        "allows with --allow-net",
    ]


def test_networks_are_read_from_text_and_refused_with_the_one_meant() -> None:
    assert Networks.read(" 10.0.0.0/8, fd00::/8,").parts == ("10.0.0.0/8", "fd00::/8")
    assert Networks.read("").networks == ()
    with pytest.raises(ValueError, match=r"host bits set \(did you mean 10\.0\.0\.0/8\?\)"):
        Networks.read("10.0.0.1/8")
