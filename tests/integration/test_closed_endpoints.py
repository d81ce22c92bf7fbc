"""Endpoints of engines and members are closed to the crawl, by the addresses that this machine has."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from workers.fetch import closed_endpoints as closed_module
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


def test_address_is_closed_with_its_port_and_no_other() -> None:
    closed = ClosedEndpoints(Names())
    closed.add(["127.0.0.1:4222", "[fd00::7]:8081"])
    assert covers(closed, "127.0.0.1", 4222)
    assert covers(closed, "fd00::7", 8081)
    assert not covers(closed, "127.0.0.1", 8081)
    assert not covers(closed, "127.0.0.2", 4222), "another server may listen there"


def test_server_on_all_addresses_closes_its_port_on_this_machine() -> None:
    closed = ClosedEndpoints(Names())
    closed.add(["0.0.0.0:8081"])
    assert covers(closed, "127.9.9.9", 8081)
    assert covers(closed, "::1", 8081)
    assert not covers(closed, "203.0.113.9", 8081), "this is another machine's"


def test_name_is_closed_by_every_address_that_it_ever_had() -> None:
    names = Names(db=["10.0.0.1", "10.0.0.2", "fd00::1"])
    closed = ClosedEndpoints(names)
    closed.add(["DB:5432"])
    assert closed.names("db.", 5432)
    asyncio.run(closed.resolve())
    names.addresses = {"db": ["10.0.0.3"]}
    asyncio.run(closed.resolve())
    names.addresses = {}
    asyncio.run(closed.resolve())
    assert all(covers(closed, each, 5432) for each in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"))
    assert not covers(closed, "10.0.0.4", 5432)


def test_endpoints_are_bounded_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_module, "MAX_ENDPOINTS", 2)
    closed = ClosedEndpoints(Names())
    closed.add(["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"])
    assert [covers(closed, f"10.0.0.{number}", 1) for number in (1, 2, 3)] == [False, True, True]
