"""Where masters listen: where they did before, as far as that is free; a place that was asked for is kept to."""

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from api.server.serving import address_of, bound, listen, listening
from cli.local import addresses
from cli.local.addresses import Address, is_free, parsed
from cli.terminal.exits import Environment, Usage
from shared.domain.errors import Unusable


@pytest.fixture
def free() -> int:
    """A port behind which some are free. Not one that the system gives to whoever asks for any: it would, between two
    steps of a test."""
    return next(port for port in random.sample(range(20_000, 32_000), 1000) if is_free(port))


def chosen(wanted: Address | None, kept: Sequence[int], count: int, first: int = 8081) -> list[Address]:
    with ExitStack() as holding:
        return addresses.chosen(holding, wanted, kept, count, first=first)


def test_the_first_start_begins_at_the_usual_port_and_passes_over_taken_ones(free: int) -> None:
    with socket.create_server(("127.0.0.1", free)):
        ports = [place.port for place in chosen(None, (), 3, free)]
    assert len(set(ports)) == 3
    assert min(ports) > free


def test_masters_return_to_where_they_were(free: int) -> None:
    first = [place.port for place in chosen(None, (), 3, free)]
    assert [place.port for place in chosen(None, first[::-1], 3, free)] == first[::-1]


def test_a_port_that_was_taken_meanwhile_moves_that_master_only(free: int) -> None:
    before = [place.port for place in chosen(None, (), 2, free)]
    with socket.create_server(("127.0.0.1", before[0])):
        now = [place.port for place in chosen(None, before, 2, free)]
    assert now[0] != before[0]
    assert now[1] == before[1] or now[0] == before[1]


def test_requested_port_is_taken_exactly_or_the_error_says_why(free: int) -> None:
    assert chosen(Address("127.0.0.1", free), (1, 2), 1) == [Address("127.0.0.1", free)]
    with (
        socket.create_server(("127.0.0.1", free)),
        pytest.raises(Environment, match=rf"cannot listen at 127\.0\.0\.1:{free} .*--http"),
    ):
        chosen(Address("127.0.0.1", free), (), 2)


def test_a_port_is_free_as_long_as_nobody_listens_there(free: int) -> None:
    with socket.create_server(("127.0.0.1", free)):
        assert not is_free(free)
    assert is_free(free)


def test_an_address_that_is_none_of_ours_is_refused_at_once() -> None:
    with pytest.raises(Environment, match=r"cannot listen at 192\.0\.2\.1:8081"):
        chosen(Address("192.0.2.1", 8081), (), 2)
    with pytest.raises(Environment, match="cannot listen at"):
        chosen(Address("192.0.2.1", 0), (8081,), 2)


def test_port_0_is_any_free_one_for_each() -> None:
    places = chosen(Address("127.0.0.1", 0), (), 3)
    assert len({place.port for place in places}) == 3
    assert 0 not in {place.port for place in places}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8081", Address("127.0.0.1", 8081)),
        ("[::1]:0", Address("::1", 0)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parsed(text) == address


@pytest.mark.parametrize("text", ["", "8081", ":8081", "localhost", "a:b", "a:65536", "a:-1", "a:٣"])
def test_what_is_no_address_is_wrong_usage(text: str) -> None:
    with pytest.raises(Usage, match="HOST:PORT"):
        parsed(text)


@pytest.mark.parametrize("address", ["0", ":0"])
def test_the_api_listens_on_every_interface_only_where_that_is_said(address: str) -> None:
    with pytest.raises(Unusable, match="names no host"):
        listening(address)


def test_what_listens_everywhere_is_reached_here() -> None:
    shown = [str(Address(host, 1).reached_at) for host in ("0.0.0.0", "::", "10.0.0.1")]
    assert shown == ["127.0.0.1:1", "[::1]:1", "10.0.0.1:1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_place_that_is_held_refuses_clients_until_it_listens(host: str) -> None:
    with bound(f"{host}:0") as listener, bound(address_of(listener)) as late:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host.strip("[]"), port), timeout=30)
        listen(listener)
        socket.create_connection((host.strip("[]"), port), timeout=30).close()
        with pytest.raises(Unusable, match=r"cannot listen at .*Address already in use"):
            listen(late)
        with pytest.raises(Unusable, match=r"cannot listen at .*Address already in use"):
            bound(address_of(listener))
