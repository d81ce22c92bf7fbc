"""Read a stored page from the bytes of its record."""

import zlib
from dataclasses import dataclass
from typing import Final

from shared.domain.web.coding import decode

RECORD_LIMIT: Final = 1 << 28
DECODED_LIMIT: Final = 1 << 26
_BLANK: Final = b"\r\n\r\n"


class NotARecord(ValueError):
    """The bytes are not one whole record of a stored HTTP answer."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A `response` or `revisit` record.

    `head` and `body` are the stored HTTP message (content coding as received). `decoded` is the body without content
    coding, cut at the reader's limit (`decoded_truncated`) or where it became unreadable (`decode_error`). `headers`
    have lower-cased names, in order, duplicates kept. A revisit has no body of its own: `refers_to` is the URL and
    WARC-Date of the capture that has it. `fields` are those of the WARC header, names lower-cased.
    """

    url: str
    date: str
    status: int
    headers: tuple[tuple[str, str], ...]
    head: bytes
    body: bytes
    decoded: bytes
    digest: str | None = None
    ip: str | None = None
    truncated: str | None = None
    decoded_truncated: bool = False
    decode_error: str | None = None
    refers_to: tuple[str, str] | None = None
    fields: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str | None:
        """Return the first value of HTTP header `name` (given in lower case), or None."""
        return first_of(self.headers, name)


def parse_stored(
    member: bytes, *, record_limit: int = RECORD_LIMIT, decoded_limit: int = DECODED_LIMIT
) -> StoredResponse:
    """Return one compressed record. Raise NotARecord if it is invalid, or over `record_limit` bytes uncompressed."""
    record = _uncompressed(member, record_limit)
    header, blank, rest = record.partition(_BLANK)
    if not blank or not header.startswith(b"WARC/"):
        raise NotARecord("no WARC header")
    fields = fields_of(header)
    kind = first_of(fields, "warc-type")
    length = first_of(fields, "content-length") or ""
    if kind not in ("response", "revisit") or not length.isdecimal() or len(rest) != int(length) + len(_BLANK):
        raise NotARecord(f"not a whole response: type {kind}, {len(rest)} bytes for a length of {length}")
    head, _, body = rest[: int(length)].partition(_BLANK)
    headers = fields_of(head)
    encodings = [value for name, value in headers if name == "content-encoding"]
    plain = decode(body, ",".join(encodings), decoded_limit)
    readable = plain.data
    if plain.error is not None and not readable:
        # The body is not in the declared coding: return it as it is, like browsers and replay tools.
        readable = body[:decoded_limit]
    refers_to = first_of(fields, "warc-refers-to-target-uri")
    return StoredResponse(
        url=first_of(fields, "warc-target-uri") or "",
        date=first_of(fields, "warc-date") or "",
        status=status_of(head),
        headers=headers,
        head=head + _BLANK,
        body=body,
        decoded=readable,
        digest=first_of(fields, "warc-payload-digest"),
        ip=first_of(fields, "warc-ip-address"),
        truncated=first_of(fields, "warc-truncated"),
        decoded_truncated=plain.truncated,
        decode_error=plain.error,
        refers_to=(refers_to, first_of(fields, "warc-refers-to-date") or "") if refers_to is not None else None,
        fields=fields,
    )


def _uncompressed(member: bytes, limit: int) -> bytes:
    decompressor = zlib.decompressobj(31)
    try:
        record = decompressor.decompress(member, limit)
    except zlib.error as failure:
        raise NotARecord(f"not a gzip member: {failure}") from failure
    if not decompressor.eof:
        raise NotARecord(f"cut short, or longer than {limit} bytes")
    return record


def status_of(head: bytes) -> int:
    """Return the status of an HTTP head. Raise NotARecord if there is none."""
    parts = head.split(b"\r\n", 1)[0].split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
        raise NotARecord("the stored message does not begin with an HTTP status line")
    return int(parts[1])


def fields_of(head: bytes) -> tuple[tuple[str, str], ...]:
    """Return the fields of a header block after its first line, with continuation lines joined."""
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
    """Return the first value of the field `name` (in lower case), or None."""
    return next((value for key, value in fields if key == name), None)
