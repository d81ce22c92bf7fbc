"""Read a stored page in pieces: first its headers, then its body, in bounded memory.

A body may have any size: it is decoded piece by piece as it is read, and only the present pieces are in memory.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Final

from shared.domain.web.coding import Decoding

RECORD_LIMIT: Final = 1 << 28
DECODED_LIMIT: Final = 1 << 26

Member = Callable[[], Iterator[bytes]]
"""A function that starts to read one compressed record, and returns its pieces. It may be called more than once."""

_BLANK: Final = b"\r\n\r\n"
_PIECE: Final = 256 * 1024
_DIGITS: Final = 18
_HEAD_BYTES: Final = 1 << 20
"""The greatest size of a WARC or HTTP head in bytes. A record with a longer head counts as damaged."""


class NotARecord(ValueError):
    """The bytes are not one whole WARC record of a stored HTTP response."""


class StoredBody:
    """A stored page, read from its `response` or `revisit` record. Iterate over the object once to read the body.

    - `head`: the stored HTTP head.
    - `headers`: its fields in order, with names in lower case. A repeated field occurs repeatedly.
    - `refers_to`: of a revisit, the URL and WARC-Date of the record that has the body. None for a response.
    - `truncated`: why the body was cut when it was fetched, or None.
    - `incomplete`: after the iteration, None if the body is complete. "truncated": it was cut when it was fetched, or
      at `decoded_limit`. "undecodable": its content coding is invalid.

    The iteration yields the body without its content coding. It ends after `decoded_limit` bytes, or at the first byte
    that cannot be decoded. If no byte can be decoded, the iteration yields the body as received. It raises NotARecord
    if the record is damaged, perhaps after it has yielded a part of the body.
    """

    def __init__(self, member: Member, *, record_limit: int = RECORD_LIMIT, decoded_limit: int = DECODED_LIMIT) -> None:
        """Read the WARC and HTTP headers of the record in `member`. Raise NotARecord if they are invalid.

        At most `record_limit` bytes of the decompressed record are read, and at most `decoded_limit` bytes of the body
        are yielded after its content coding is removed.
        """
        self._member = member
        self._record_limit = record_limit
        self._decoded_limit = decoded_limit
        self._record, self._left, fields, head = self._opened()
        self.url = first_of(fields, "warc-target-uri") or ""
        self.date = first_of(fields, "warc-date") or ""
        self.status = status_of(head)
        self.head, self.headers = head + _BLANK, fields_of(head)
        refers_to = first_of(fields, "warc-refers-to-target-uri")
        self.refers_to = None if refers_to is None else (refers_to, first_of(fields, "warc-refers-to-date") or "")
        self.truncated = first_of(fields, "warc-truncated")
        self.decode_error: str | None = None
        self.incomplete: str | None = None if self.truncated is None else "truncated"

    def __repr__(self) -> str:
        return f"<StoredBody {self.status} {self.url}>"

    def __iter__(self) -> Iterator[bytes]:
        # An empty body, such as that of every revisit, has no coding to remove, whatever its head says.
        encodings = [value for name, value in self.headers if name == "content-encoding" and self._left]
        decoding = Decoding(_payload(self._record, self._left), ",".join(encodings), self._decoded_limit)
        some = False
        for piece in decoding:
            some = some or bool(piece)
            yield piece
        if decoding.truncated:
            self.incomplete = "truncated"
        elif decoding.error is not None:
            self.decode_error, self.incomplete = decoding.error, self.incomplete or "undecodable"
            if not some:
                # The body is not in the declared coding: return it as it is, like browsers and replay tools.
                record, left, _, _ = self._opened()
                yield from Decoding(_payload(record, left), "", self._decoded_limit)

    def _opened(self) -> tuple["_Record", int, tuple[tuple[str, str], ...], bytes]:
        """Open the record and read up to its body. Raise NotARecord if it is not a stored response.

        Return the record, the number of bytes of its body, the fields of the HTTP head, and that head.
        """
        record = _Record(self._member(), self._record_limit)
        header = record.head()
        fields = fields_of(header)
        kind, length = first_of(fields, "warc-type"), first_of(fields, "content-length") or ""
        is_answer = header.startswith(b"WARC/") and kind in ("response", "revisit")
        if not is_answer or not length.isdecimal() or len(length) > _DIGITS:
            raise NotARecord(f"not a stored answer: type {kind}, length {length[:20]!r}")
        head = record.head()
        left = int(length) - len(head) - len(_BLANK)
        if left < 0:
            raise NotARecord("its HTTP head is longer than the record says")
        return record, left, fields, head


class _Record:
    """One gzip member that contains a WARC record. It is decompressed piece by piece, as it is read."""

    def __init__(self, member: Iterator[bytes], limit: int) -> None:
        self._pieces = _inflated(member, limit)
        self._rest = b""

    def head(self) -> bytes:
        """Return the bytes before the next blank line, and skip that line."""
        while _BLANK not in self._rest:
            piece = next(self._pieces, None)
            if piece is None or len(self._rest) > _HEAD_BYTES:
                raise NotARecord("a head does not end")
            self._rest += piece
        head, _, self._rest = self._rest.partition(_BLANK)
        return head

    def piece(self) -> bytes:
        """Return the next bytes, or empty bytes at the end."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        return next(self._pieces, b"")


def _payload(record: _Record, length: int) -> Iterator[bytes]:
    """Yield the next `length` bytes of `record`: the body after the heads that were read already.

    Raise NotARecord if the record does not end directly after these bytes.
    """
    left = length
    while left:
        piece = record.piece()
        if not piece:
            raise NotARecord(f"it ends {left} bytes early")
        yield piece[:left]
        if len(piece) >= left:
            end = piece[left:]
            break
        left -= len(piece)
    else:
        end = b""
    while len(end) <= len(_BLANK) and (piece := record.piece()):
        end += piece
    if end != _BLANK:
        raise NotARecord("it does not end where it says")


def _inflated(member: Iterator[bytes], limit: int) -> Iterator[bytes]:
    inflater, left = zlib.decompressobj(31), limit
    for data in member:
        while True:
            try:
                out = inflater.decompress(data, _PIECE)
            except zlib.error as failure:
                raise NotARecord(f"not a gzip member: {failure}") from failure
            left -= len(out)
            if left < 0:
                raise NotARecord(f"longer than {limit} bytes")
            if out:
                yield out
            if inflater.eof:
                return
            data = inflater.unconsumed_tail
            if not data and len(out) < _PIECE:
                break
    raise NotARecord("cut short")


def status_of(head: bytes) -> int:
    """Return the status code in the first line of a stored HTTP response's head. Raise NotARecord if there is none."""
    parts = head.split(b"\r\n", 1)[0].split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
        raise NotARecord("the stored message does not begin with an HTTP status line")
    return int(parts[1])


def fields_of(head: bytes) -> tuple[tuple[str, str], ...]:
    """Return the fields of an HTTP or WARC head as (lower-case name, value). Folded lines are joined."""
    fields: list[tuple[str, str]] = []
    for line in head.split(b"\r\n")[1:]:
        if line[:1] in (b" ", b"\t") and fields:
            fields[-1] = (fields[-1][0], f"{fields[-1][1]} {_text(line)}")
            continue
        name, colon, value = line.partition(b":")
        if colon:
            fields.append((_text(name).lower(), _text(value)))
    return tuple(fields)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8").strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()


def first_of(fields: tuple[tuple[str, str], ...], name: str) -> str | None:
    """Return the value of the first of `fields` with this name (in lower case), or None."""
    return next((value for key, value in fields if key == name), None)
