"""The server's own record of what was asked of it: one JSON line per exchange, shared by servers, tests and judges."""

from collections.abc import Iterable
from pathlib import Path

import msgspec


class Exchange(msgspec.Struct, frozen=True):
    """One request and what became of it, as the server saw it.

    Times are CLOCK_MONOTONIC nanoseconds, comparable across the processes of one machine. `begun_ns` is taken when the
    request head had been read, so it is never before the request arrived. `ended_ns` is taken before the last bytes of
    the response are handed to the kernel, so it is never after the client could have read them. For an exchange that
    the client broke off (`complete` is False) it is when the server last knew that the client was still there, so it
    is never after the client left. It is before `begun_ns` if the client had left by then. A gap from one's `ended_ns`
    to the next one's `begun_ns` is therefore never shorter than what the client kept.
    """

    host: str
    method: str
    path: str
    user_agent: str
    status: int
    connection: int
    begun_ns: int
    ended_ns: int
    complete: bool = True
    sent_bytes: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Exchange)


def line_of(exchange: Exchange) -> bytes:
    """`exchange` as one line, line end included."""
    return _encoder.encode(exchange) + b"\n"


def parse_lines(lines: Iterable[bytes]) -> list[Exchange]:
    """The exchanges in `lines`, in their order."""
    return [_decoder.decode(line) for line in lines]


class LogTail:
    """Reads a growing log; each line once, a line still being written not yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Exchange]:
        """What was logged since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return parse_lines(whole.splitlines())
