"""A second reader of stored pages, from the bytes of the whole record. The product reads them piece by piece."""

import zlib
from dataclasses import dataclass
from typing import Final

from shared.domain.archive.model import RecordLocation
from shared.domain.archive.stored_body import DECODED_LIMIT, RECORD_LIMIT, NotARecord, fields_of, first_of, status_of
from shared.domain.web.coding import decode
from shared.ports.archive import RecordUnreadable, SegmentStore

_BLANK: Final = b"\r\n\r\n"


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


def read_response(
    store: SegmentStore,
    location: RecordLocation,
    *,
    record_limit: int = RECORD_LIMIT,
    decoded_limit: int = DECODED_LIMIT,
) -> StoredResponse:
    """Return the response or revisit record at `location`, by one seek and one read. Blocks.

    Raise RecordUnreadable if there is none.
    """
    member = store.read(location)
    try:
        return parse_stored(member, record_limit=record_limit, decoded_limit=decoded_limit)
    except NotARecord as failure:
        raise RecordUnreadable(f"{location.segment} at byte {location.offset}: {failure}") from failure
