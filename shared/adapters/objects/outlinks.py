"""Reads the outlinks of a stored page. They are in the metadata record that follows its response in the archive."""

import zlib
from typing import Final

from shared.domain.archive.model import RecordLocation
from shared.ports.archive import RecordUnreadable, SegmentReader

_PIECE: Final = 64 << 10
_MOST: Final = 64 << 20
_BESIDE: Final = 2
"""The number of records that follow the response of a page in the WARC file: its request, and then its metadata."""


def read_outlinks(segments: SegmentReader, page: RecordLocation) -> list[tuple[str, str]]:
    """Return the outlinks of the page whose response is at `page`, as pairs of a URL and how the link was found.

    The list is empty if no metadata record follows the response. Raise RecordUnreadable if a record is damaged or too
    large.
    """
    place, members = page.offset + page.length, 0
    decompressor = zlib.decompressobj(31)
    record, pending = bytearray(), b""
    while members < _BESIDE:
        if not pending:
            pending = segments.read_up_to(page.segment, place, _PIECE)
            place += len(pending)
            if not pending:
                return []
        try:
            record += decompressor.decompress(pending, _MOST - len(record))
        except zlib.error as failure:
            raise RecordUnreadable(f"{page.segment} behind byte {page.offset}: {failure}") from failure
        if len(record) >= _MOST:
            raise RecordUnreadable(f"{page.segment} behind byte {page.offset}: a record of more than {_MOST} bytes")
        pending = decompressor.unused_data or decompressor.unconsumed_tail
        if decompressor.eof:
            members += 1
            if b"\r\nWARC-Type: metadata\r\n" in record[:512]:
                return _outlinks(bytes(record))
            decompressor, record = zlib.decompressobj(31), bytearray()
    return []


def _outlinks(record: bytes) -> list[tuple[str, str]]:
    body = record.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")
    outlinks = []
    for line in body.split("\r\n"):
        if line.startswith("outlink: "):
            url, _, how = line.removeprefix("outlink: ").partition(" ")
            outlinks.append((url, how))
    return outlinks
