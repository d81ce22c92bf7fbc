"""A link does what a network does to those who talk over it: it breaks, falls silent, is late, and heals."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faults.link import Links, links


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it hears, on each connection until its end."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while heard := connection.recv(65536):
                    connection.sendall(heard)
            except ConnectionError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


@pytest.fixture
def wires() -> Iterator[Links]:
    with links() as made:
        yield made


def connected(wires: Links, echo: int) -> socket.socket:
    port = wires.between("w1", "broker", f"127.0.0.1:{echo}")
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def asked(connection: socket.socket, said: bytes) -> bytes:
    connection.sendall(said)
    heard = b""
    while len(heard) < len(said):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("closed")
        heard += piece
    return heard


def test_it_carries_everything_unchanged(wires: Links, echo: int) -> None:
    said = bytes(range(256)) * 8192
    with connected(wires, echo) as connection:
        heard: list[bytes] = []
        reader = threading.Thread(target=lambda: heard.append(_read(connection, len(said))))
        reader.start()
        connection.sendall(said)
        reader.join(30)
    assert heard == [said]


def _read(connection: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        heard += connection.recv(65536)
    return heard


def test_cut_breaks_what_is_open_and_refuses_what_is_new_until_it_heals(wires: Links, echo: int) -> None:
    with connected(wires, echo) as before:
        assert asked(before, b"one") == b"one"
        wires.cut("w1", "broker")
        with pytest.raises(ConnectionError):
            asked(before, b"two")
        with pytest.raises(ConnectionError), connected(wires, echo) as refused:
            asked(refused, b"three")
    wires.heal("w1", "broker")
    with connected(wires, echo) as after:
        assert asked(after, b"four") == b"four"


def test_silence_keeps_connections_and_what_was_said_arrives_when_it_heals(wires: Links, echo: int) -> None:
    with connected(wires, echo) as connection:
        assert asked(connection, b"one") == b"one"
        wires.silence("w1", "broker")
        connection.sendall(b"two")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(16)
        wires.heal("w1", "broker")
        connection.settimeout(10)
        assert connection.recv(16) == b"two"


def test_a_delay_makes_all_late_and_keeps_the_order(wires: Links, echo: int) -> None:
    with connected(wires, echo) as connection:
        asked(connection, b"one")
        wires.delay("w1", "broker", 0.2)
        begun = time.monotonic()
        for number in range(10):
            connection.sendall(bytes([number]))
        assert _read(connection, 10) == bytes(range(10))
        assert time.monotonic() - begun >= 0.4, "once there and once back"


def test_a_members_links_are_its_own(wires: Links, echo: int) -> None:
    other = wires.between("w2", "broker", f"127.0.0.1:{echo}")
    with connected(wires, echo) as first, socket.create_connection(("127.0.0.1", other), timeout=10) as second:
        assert asked(first, b"one") == b"one"
        wires.cut("w1", "broker")
        assert asked(second, b"two") == b"two"


def test_the_end_of_one_side_ends_the_other(wires: Links) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = wires.between("w1", "etcd", f"127.0.0.1:{server.getsockname()[1]}")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            accepted, _ = server.accept()
            accepted.settimeout(10)
            connection.close()
            with accepted:
                assert _ended(accepted)


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(16) == b""
    except ConnectionError:
        return True
