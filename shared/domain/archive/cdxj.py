"""Lines of a CDXJ index: sort key, 14-digit timestamp, and a JSON object with the fields that pywb reads."""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from shared.domain.archive.model import RecordLocation


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One capture as the index lists it.

    `surt` is the sort key of the URL, `mime` the media type without parameters, `digest` the payload's SHA-1. A revisit
    is listed under the media type `warc/revisit`, so that replay tools look for the payload elsewhere.
    """

    surt: str
    fetched_at_ms: int
    url: str
    mime: str
    status: int
    digest: bytes
    location: RecordLocation
    revisit: bool = False


def cdxj_line(row: IndexRow) -> bytes:
    """Return the row's line without a line end. Raise ValueError for a key with a space, which would split wrongly."""
    if not row.surt or any(character.isspace() for character in row.surt):
        raise ValueError(f"not an index key: {row.surt!r}")
    fields = {
        "url": row.url,
        "mime": "warc/revisit" if row.revisit else row.mime or "unk",
        "status": str(row.status),
        "digest": base64.b32encode(row.digest).decode("ascii"),
        "length": str(row.location.length),
        "offset": str(row.location.offset),
        "filename": row.location.segment,
    }
    return f"{row.surt} {timestamp14(row.fetched_at_ms)} {json.dumps(fields)}".encode()


def timestamp14(ms: int) -> str:
    """Return yyyymmddhhmmss in UTC, from milliseconds since 1970."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y%m%d%H%M%S")
