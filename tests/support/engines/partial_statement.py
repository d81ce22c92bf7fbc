"""A session of PostgreSQL whose client stops between two messages of one statement, spoken in bytes."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.engines.postgres import PostgresServer


class HalfStatement:
    """A client that has a transaction open, and can leave a statement half sent."""

    def __init__(self, server: PostgresServer, database: str, limits: dict[str, str]) -> None:
        """`limits`: settings of the session beside its name."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(server.socket))
        self._stream = self._socket.makefile("rb")
        settings = {"user": "orb", "database": database, "application_name": "orbweaver", **limits}
        said = b"".join(f"{name}\0{value}\0".encode() for name, value in settings.items())
        body = struct.pack("!i", 3 << 16) + said + b"\0"
        self._socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self._until(b"Z")
        self.run("BEGIN")

    def run(self, sql: str) -> None:
        """Run a whole statement in the transaction."""
        self._send(b"Q", sql.encode() + b"\0")
        self._until(b"Z")

    def send_half(self, sql: str) -> None:
        """Send the first message of a statement and not the rest; return when the server has read it."""
        self._send(b"P", b"\0" + sql.encode() + b"\0" + struct.pack("!h", 0))
        self._send(b"H", b"")
        self._until(b"1")

    def ask(self, sql: str) -> None:
        """Send a whole statement and read nothing of its result."""
        self._send(b"Q", sql.encode() + b"\0")

    def ended(self) -> bool:
        """Return True if the server ended the session."""
        self._socket.settimeout(0)
        try:
            return b"57P01" in self._socket.recv(65536)
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def _send(self, kind: bytes, body: bytes) -> None:
        self._socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def _until(self, wanted: bytes) -> None:
        while True:
            kind = self._stream.read(1)
            (size,) = struct.unpack("!i", self._stream.read(4))
            body = self._stream.read(size - 4)
            assert kind != b"E", body
            if kind == wanted:
                return


@contextmanager
def half_statement(server: PostgresServer, url: str, **limits: str) -> Iterator[HalfStatement]:
    """A client for the block."""
    client = HalfStatement(server, url.partition("@/")[2].partition("?")[0], limits)
    try:
        yield client
    finally:
        client.close()
