"""Build lines of a CDXJ index, by which replay tools find stored pages.

A line has a sort key, a 14-digit timestamp, and a JSON object with the fields that pywb reads.
"""

import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from shared.domain.archive.model import RecordLocation, base32
from shared.domain.web.url import host_of

_WWW: Final = re.compile(r"^www\d*\.(?=.)")
_SLASHES: Final = re.compile("//+")
_ASP_SESSION: Final = re.compile(r"/\((?:(?:[a-z]\([0-9a-z]{24}\))+|[0-9a-z]{24})\)(?=/[^?]+\.aspx)")
_SESSION: Final = re.compile(r"(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}|aspsessionid[a-z]{8}=[a-z]{24}").fullmatch
_COLDFUSION: Final = re.compile(r"(^|&)cfid=[^&]+&cftoken=[^&]+(?:&|$)")
_ESCAPED: Final = re.compile(r"[^!-~]|[#%]").search
_SPACE: Final = re.compile(r"\s").search
_MAX_UNESCAPES: Final = 16


def surt(canonical: str) -> str:
    """Return the sort key of a canonical URL in a CDXJ index, such as `org,example)/a?b=1`: ASCII without spaces."""
    rest = canonical[canonical.index("/", 8) :]
    path, _, query = rest.partition("?")
    return f"{_reversed_host(host_of(canonical))}){_path(path)}{_query(query)}"


def _reversed_host(host: str) -> str:
    if host.startswith("["):
        return host[1:].replace("]", "", 1)
    name, colon, port = host.partition(":")
    return ",".join(reversed(_WWW.sub("", name, count=1).split("."))) + colon + port


def _path(path: str) -> str:
    path = _ASP_SESSION.sub("", _SLASHES.sub("/", _plain(path)))
    return path.removesuffix("/") or "/"


def _query(query: str) -> str:
    if not query:
        return ""
    parts = _COLDFUSION.sub(r"\1", _plain(query)).removesuffix("&").split("&")
    kept = sorted(part for part in parts if not _SESSION(part))
    return "?" + "&".join(kept) if any(kept) else ""


def _plain(text: str) -> str:
    """Return the path or query of a URL in the form that sort keys have: `/%41b%20c` becomes `/ab%20c`.

    Three steps lead to this form:

    1. Decode percent-escapes, until none is left: `%2541` becomes `%41`, and then `A`.
    2. Escape the characters that a key must not have: spaces, control characters, `#`, `%` and non-ASCII octets.
    3. Convert to lower case.
    """
    if _ESCAPED(text) is None:
        return text.lower()
    octets = text.encode()
    for _ in range(_MAX_UNESCAPES):
        if b"%" not in octets or (plain := unquote_to_bytes(octets)) == octets:
            break
        octets = plain
    return "".join(chr(o) if 0x20 < o < 0x7F and o not in b"#%" else f"%{o:02x}" for o in octets).lower()


class IndexRow(Struct, frozen=True):
    """One stored fetch (capture) as the CDXJ index lists it.

    `surt` is the sort key of the URL, `mime` the media type without parameters, `digest` the payload's SHA-1.
    `revisit`: the record has no body of its own. It is listed with the media type `warc/revisit`. Replay tools then
    take the body from an earlier record.
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
    """Return the line of the CDXJ index for `row`, without a line end.

    Raise ValueError for a sort key with a space, which would split the line wrongly.
    """
    if not row.surt or _SPACE(row.surt):
        raise ValueError(f"not an index key: {row.surt!r}")
    fields = {
        "url": row.url,
        "mime": "warc/revisit" if row.revisit else row.mime or "unk",
        "status": str(row.status),
        "digest": base32(row.digest),
        "length": str(row.location.length),
        "offset": str(row.location.offset),
        "filename": row.location.segment,
    }
    return f"{row.surt} {timestamp14(row.fetched_at_ms)} {json.dumps(fields)}".encode()


def timestamp14(ms: int) -> str:
    """Return a time in Unix ms as yyyymmddhhmmss in UTC."""
    return _of_second(ms // 1000)


@lru_cache(4096)
def _of_second(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%d%H%M%S")
