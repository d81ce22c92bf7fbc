"""Uploads seeds in pieces of limited size. Each piece is one request, sent after the answer to the previous one.

Each request has its own idempotency key, so it can be sent again if its answer is lost. If owners have a backlog, the
server may store only the first lines of a piece. The upload then waits as long as the server asks, and sends the other
lines. A file is always divided into the same pieces, so a second upload of it under the same id adds nothing.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final

from cli.ctl.client import Client
from cli.ctl.problems import Refusal, RejectedLine, rejected_line
from cli.terminal.exits import Usage

PIECE_BYTES: Final = 4 << 20
ANSWER_S: Final = 300.0
"""Maximum seconds until the server answers a request with a piece. It answers when the piece is stored durably."""

_LATER: Final = (429, 503)
"""HTTP statuses after which an upload waits. It then sends again the lines that are not stored durably yet."""

_WAIT_S: Final = 2.0
_GZIP: Final = b"\x1f\x8b"
_READ: Final = 1 << 18
_LONGEST: Final = (1 << 16) + 1
"""Maximum bytes that are kept of a line whose end was not read yet.

The server rejects a line of this length, so the rest of the line is not needed.
"""

_FIRST_REASONS: Final = 10
_SENT: Final = "The lines read before that were sent. Send a complete file for the rest: it adds no line twice."


@dataclass(slots=True)
class Total:
    """The results of an upload so far, summed over its pieces. Line numbers count from 1 over the whole upload.

    `first_rejected` has the line number, URL and reason of the first rejected lines.
    """

    pieces: int = 0
    lines: int = 0
    accepted: int = 0
    duplicate: int = 0
    rejected: int = 0
    first_rejected: list[tuple[int, str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the totals as a JSON object with the same fields as the API's answer to one upload."""
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
    """Sends the pieces of one upload, one after another. `total` has the results of what was sent so far.

    `at`: the API path of the crawl's seeds. `name`: the id of the upload.
    """

    def __init__(self, client: Client, at: str, name: str) -> None:
        self.total = Total()
        self._client = client
        self._at = at
        self._name = name

    def send(self, lines: list[bytes]) -> None:
        """Send the lines of one piece. Return when every line is checked, and every accepted seed is stored durably.

        Raise Refusal if the server rejects the request. Raise Refusal too if the server stores no further line for as
        many seconds as the client's `patience_s`.
        """
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
                    self._count(
                        durable, problem.accepted or 0, problem.duplicate, problem.rejected, problem.first_rejected
                    )
                    lines, part, until = lines[durable:], part + 1, self._client.now() + self._client.patience_s
                wait = _WAIT_S if problem.retry_after_s is None else problem.retry_after_s
                if self._client.now() + wait > until:
                    raise
                self._client.sleep(wait)
                continue
            body = answer.body
            rejected = map(rejected_line, body["first_rejected"])
            self._count(body["lines"], body["accepted"], body["duplicate"], body["rejected"], rejected)
            return

    def _count(
        self, lines: int, accepted: int, duplicate: int, rejected: int, first_rejected: Iterable[RejectedLine]
    ) -> None:
        """Add the results of a request to the total.

        `lines` is the number of lines with a result. The line numbers in `first_rejected` begin at 1 in each request.
        """
        total = self.total
        for each in first_rejected:
            if len(total.first_rejected) < _FIRST_REASONS:
                total.first_rejected.append((total.lines + each.line, each.url, each.reason))
        total.lines += lines
        total.accepted += accepted
        total.duplicate += duplicate
        total.rejected += rejected


def pieces_of(lines: Iterable[bytes], max_count: int = PIECE_BYTES) -> Iterator[list[bytes]]:
    """Yield the lines in lists (pieces) of at most `max_count` bytes. A longer line is a piece by itself.

    If `lines` raises Usage, because a file cannot be read further, first yield the lines before that.
    """
    piece: list[bytes] = []
    size = 0
    try:
        for line in lines:
            if piece and size + len(line) + 1 > max_count:
                yield piece
                piece, size = [], 0
            piece.append(line)
            size += len(line) + 1
    except Usage:
        if piece:
            yield piece
        raise
    if piece:
        yield piece


def lines_of(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the lines of a plain or gzip file without their line ends.

    Raise Usage if gzip data is invalid or truncated, without yielding the line that is cut there. `name` names the file
    in messages. The file is read in blocks, so it may have any size. Zero bytes after a gzip member are padding.
    """
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
            while piece := piece if within else piece.lstrip(b"\0"):
                yield gunzip.decompress(piece, _READ)
                piece, within = gunzip.unconsumed_tail, True
                if gunzip.eof:  # another gzip member may follow
                    piece = gunzip.unused_data
                    gunzip, within = zlib.decompressobj(31), False
    except zlib.error as error:
        raise Usage(f"{name} is not valid gzip: {error}. {_SENT}") from None
    if within:
        yield gunzip.flush()
    if within and not gunzip.eof:
        raise Usage(f"{name} is truncated: its gzip stream has no end. {_SENT}")


def _kind(lines: list[bytes]) -> str:
    """Return the media type of the lines. It is `application/jsonl` if the first seed is JSON, else `text/plain`."""
    first = next((text for line in lines if (text := line.strip()) and not text.startswith(b"#")), b"")
    return "application/jsonl" if first[:1] in (b'"', b"{") else "text/plain"
