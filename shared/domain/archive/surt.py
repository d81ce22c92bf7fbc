"""SURT: the sort-friendly key of a URL in a CDXJ index (`org,example)/path?query`), as replay tools compute it.

This is the Internet Archive's canonicalisation, so that pywb and similar tools find their keys. The scheme is dropped,
host labels are reversed without `www.`/`www2.`, everything is lower-cased, and escapes are decoded repeatedly. Doubled
and final slashes are dropped, parameters are sorted, and well-known session ids are removed. It merges URLs on purpose;
an index line's `url` distinguishes them.
"""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from shared.domain.web.url import host_of

_WWW: Final = re.compile(r"^www\d*\.(?=.)")
_SLASHES: Final = re.compile("//+")
_ASP_SESSION: Final = re.compile(r"/\((?:(?:[a-z]\([0-9a-z]{24}\))+|[0-9a-z]{24})\)(?=/[^?]+\.aspx)")
_SESSION: Final = re.compile(r"(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}|aspsessionid[a-z]{8}=[a-z]{24}").fullmatch
_COLDFUSION: Final = re.compile(r"(^|&)cfid=[^&]+&cftoken=[^&]+(?:&|$)")
_MAX_UNESCAPES: Final = 16


def surt(canonical: str) -> str:
    """Return the key of a canonical URL: printable ASCII without spaces."""
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
    parts = _COLDFUSION.sub(r"\1", _plain(query)).removesuffix("&").split("&")
    kept = sorted(part for part in parts if not _SESSION(part))
    return "?" + "&".join(kept) if any(kept) else ""


def _plain(text: str) -> str:
    """Return the text in lower case, unescaped until nothing changes, then escaped where necessary."""
    octets = text.encode()
    for _ in range(_MAX_UNESCAPES):
        if b"%" not in octets or (plain := unquote_to_bytes(octets)) == octets:
            break
        octets = plain
    return "".join(chr(o) if 0x20 < o < 0x7F and o not in b"#%" else f"%{o:02x}" for o in octets).lower()
