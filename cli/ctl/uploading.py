"""An upload of seeds as a sequence of requests, none of which is left before it is answered.

Each piece goes under an idempotency key of its own, so that it can be sent again as often as its answer is lost; where
the owners have too much waiting, it goes on behind the last line that is durable, after the time the server asked for.
The pieces of one file are always the same, and so is what an upload that is repeated under its id changes: nothing.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final

from cli.ctl.client import Answer, Client
from cli.ctl.problems import Refusal
from cli.exits import Usage

PIECE_BYTES: Final = 4 << 20
ANSWER_S: Final = 300.0
"""What a piece may take: it is durable when it is answered."""

_LATER: Final = (429, 503)
"""Answers after which an upload goes on behind what is durable."""

_WAIT_S: Final = 2.0
_GZIP: Final = b"\x1f\x8b"
_READ: Final = 1 << 18
_LONGEST: Final = (1 << 16) + 1
"""Of a line that is longer this much is kept: enough for the server to refuse it."""

_FIRST_REASONS: Final = 10


@dataclass(slots=True)
class Total:
    """What became of the lines of all pieces. Lines count from 1 over all of them."""

    pieces: int = 0
    lines: int = 0
    accepted: int = 0
    duplicate: int = 0
    rejected: int = 0
    first_rejected: list[tuple[int, str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As one request would have been answered."""
        return {
            "lines": self.lines,
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "rejected": self.rejected,
            "durable_lines": self.lines,
            "first_rejected": [
                {"line": line, "url": url, "reason": reason} for line, url, reason in self.first_rejected
            ],
        }


class Upload:
    """Sends pieces one after another. `total` is what is durable."""

    def __init__(self, client: Client, at: str, name: str) -> None:
        self.total = Total()
        self._client = client
        self._at = at
        self._name = name

    def send(self, lines: list[bytes]) -> None:
        """A piece: returns once every line of it was judged and what was taken is durable. Refusal where nothing more
        becomes durable for as long as the client is patient."""
        self.total.pieces += 1
        part, until = 1, self._client.now() + self._client.patience_s
        while True:
            headers = {
                "Content-Type": _kind(lines),
                "Content-Encoding": "gzip",
                "Idempotency-Key": f"{self._name}-{self.total.pieces}.{part}",
            }
            content = gzip.compress(b"\n".join(lines), compresslevel=1, mtime=0)
            try:
                answer = self._client.ask(
                    "POST", self._at, content=content, headers=headers, answer_s=ANSWER_S, given_back=_LATER
                )
            except Refusal as refusal:
                problem = refusal.problem
                if problem.status not in _LATER:
                    raise
                if durable := problem.durable_lines or 0:
                    self.total.lines += durable
                    self.total.accepted += problem.accepted or 0
                    lines, part, until = lines[durable:], part + 1, self._client.now() + self._client.patience_s
                wait = _WAIT_S if problem.retry_after_s is None else problem.retry_after_s
                if self._client.now() + wait > until:
                    raise
                self._client.sleep(wait)
                continue
            self._count(answer)
            return

    def _count(self, answer: Answer) -> None:
        total, said = self.total, answer.body
        for each in said["first_rejected"]:
            if len(total.first_rejected) < _FIRST_REASONS:
                total.first_rejected.append((total.lines + each["line"], each["url"], each["reason"]))
        total.lines += said["lines"]
        total.accepted += said["accepted"]
        total.duplicate += said["duplicate"]
        total.rejected += said["rejected"]


def pieces_of(lines: Iterable[bytes], most: int = PIECE_BYTES) -> Iterator[list[bytes]]:
    """The lines in portions of at most `most` bytes, each of one kind."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) + 1 > most:
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += len(line) + 1
    if piece:
        yield piece


def lines_of(file: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a file, unpacked where it is gzip, at constant memory. Usage where it is cut short."""
    begin = file.read(len(_GZIP))
    pieces = _plain(file, begin)
    if begin == _GZIP:
        pieces = _unpacked(pieces, name)
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in whole)
        rest = rest[:_LONGEST]
    if rest:
        yield rest


def _plain(file: IO[bytes], begin: bytes) -> Iterator[bytes]:
    yield begin
    while piece := file.read(_READ):
        yield piece


def _unpacked(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    gunzip, within = zlib.decompressobj(31), False
    try:
        for piece in pieces:
            while piece:
                yield gunzip.decompress(piece, _READ)
                piece, within = gunzip.unconsumed_tail, True
                if gunzip.eof:  # another member follows, or nothing
                    piece = gunzip.unused_data
                    gunzip, within = zlib.decompressobj(31), False
    except zlib.error as error:
        raise Usage(f"{name} is not gzip throughout: {error}.") from None
    if within:
        yield gunzip.flush()
    if within and not gunzip.eof:
        raise Usage(f"{name} is cut short: its gzip stream has no end. What came before was sent.")


def _kind(lines: list[bytes]) -> str:
    """NDJSON where the first line that says something is JSON; else a URL a line."""
    first = next((text for line in lines if (text := line.strip()) and not text.startswith(b"#")), b"")
    return "application/jsonl" if first[:1] in (b'"', b"{") else "text/plain"
