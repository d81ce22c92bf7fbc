"""Heads of HTTP requests and responses, as bytes and as header fields. Pure functions.

This module sets the whole request head and uses none of libcurl's defaults. So `RequestHead.raw` is what the server
receives, byte for byte.
"""

import re
from base64 import b64encode
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

ACCEPT_ENCODING: Final = "gzip, br, zstd, deflate"

# Printable ASCII without the delimiters: "/?#@" in the authority, "#" in path and query.
_URL: Final = re.compile(r"((?i:https?))://(?:([!\x22$-.0->A-~]*)@)?([!\x22$-.0->A-~]+)([!\x22$-~]*)(?:#[^\r\n]*)?")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_FORBIDDEN_IN_VALUE: Final = re.compile(r"[\x00\r\n]")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class Target(Struct, frozen=True):
    """The parts of a request's URL.

    `authority`: host[:port] without a default port. `path`: path and query. `credentials`: `user:password`, or None.
    """

    scheme: str
    authority: str
    path: str
    credentials: str | None = None

    @property
    def url(self) -> str:
        """The URL to pass to libcurl, without credentials and fragment."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def host_port(self) -> str:
        """`host:port` with the port always present."""
        has_port = re.search(r":\d+$", self.authority)
        return self.authority if has_port else self.authority + _DEFAULT_PORTS[self.scheme]

    @property
    def server(self) -> str:
        """`scheme://host:port`: connections are kept and reused for each such server."""
        return f"{self.scheme}://{self.host_port}"

    @property
    def host(self) -> str:
        return re.sub(r":\d*$", "", self.authority)


def locate(url: str) -> Target | None:
    """Split an absolute ASCII http or https URL into its parts. Return None for any other text."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    scheme, credentials, authority, path = match.groups()
    scheme = scheme.lower()
    authority = authority.lower().removesuffix(_DEFAULT_PORTS[scheme])
    if not path.startswith("/"):
        path = "/" + path
    return Target(scheme, authority, path, credentials)


class RequestHead(Struct, frozen=True):
    """A request head.

    `raw` is the bytes that are sent; `lines` are the same headers in the form of CURLOPT_HTTPHEADER. They are bytes,
    because pycurl takes only ASCII as text.
    """

    raw: bytes
    lines: list[bytes]


def request_head(
    method: str, target: Target, headers: tuple[tuple[str, str], ...], body_bytes: int | None
) -> RequestHead:
    """Return the head of one request: Host, then `headers` in order, then the required headers that they lack.

    Required are Accept-Encoding, Authorization if the URL has credentials, and Content-Length for a body (`body_bytes`;
    None: no body). Raise ValueError for a name, value or method that is invalid in HTTP.
    """
    lines, curl_lines, host = _prepared(headers)
    if _TOKEN.fullmatch(method) is None:
        raise ValueError(f"method {method!r} is not a token")
    host_line = f"Host: {host if host is not None else target.authority}"
    extra = []
    names = lines.lower() if target.credentials is not None or body_bytes is not None else ""
    if target.credentials is not None and "\r\nauthorization:" not in names:
        pair = target.credentials if ":" in target.credentials else target.credentials + ":"
        token = b64encode(unquote_to_bytes(pair))
        extra.append(f"Authorization: Basic {token.decode('ascii')}")
    if body_bytes is not None and "\r\ncontent-length:" not in names:
        extra.append(f"Content-Length: {body_bytes}")
    tail = "".join(f"\r\n{line}" for line in extra)
    raw = f"{method} {target.path} HTTP/1.1\r\n{host_line}{lines}{tail}\r\n\r\n".encode("latin-1")
    return RequestHead(raw, [host_line.encode("latin-1"), *curl_lines, *(line.encode("latin-1") for line in extra)])


@lru_cache(maxsize=256)
def _prepared(headers: tuple[tuple[str, str], ...]) -> tuple[str, tuple[bytes, ...], str | None]:
    """Return the header lines as raw text, the lines for CURLOPT_HTTPHEADER, and the Host in `headers`, if any.

    In the raw text each line follows a CRLF. Raise ValueError for an invalid name or value.
    """
    raw: list[str] = []
    curl: list[str] = []
    host: str | None = None
    given: set[str] = set()
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None or _FORBIDDEN_IN_VALUE.search(value):
            raise ValueError(f"header {name!r}: {value!r} cannot be sent")
        lowered, value = name.lower(), value.strip(" \t")
        given.add(lowered)
        if lowered == "host":
            host = value
            continue
        raw.append(f"\r\n{name}: {value}" if value else f"\r\n{name}:")
        curl.append(f"{name}: {value}" if value else f"{name};")
    if "accept-encoding" not in given:
        raw.append(f"\r\nAccept-Encoding: {ACCEPT_ENCODING}")
        curl.append(f"Accept-Encoding: {ACCEPT_ENCODING}")
    # Disable the headers that libcurl would add by itself, unless the caller gave them.
    curl.extend(f"{name}:" for name in _CURL_DEFAULTS if name.lower() not in given)
    return "".join(raw), tuple([line.encode("latin-1") for line in curl]), host


_CURL_DEFAULTS: Final = ("User-Agent", "Accept", "Expect", "Content-Type", "Proxy-Connection")


class ResponseHead(Struct, frozen=True):
    """The head of a final response, not of an interim one such as 103.

    `raw` is in HTTP/1.1 form, with CRLF line ends and the closing empty line.
    """

    version: str
    status: int
    headers: tuple[tuple[str, str], ...]
    raw: bytes

    def joined(self, name: str) -> str | None:
        """Return all values of header `name` (given in lower case) joined by commas, or None if there is none."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None


def response_head(lines: list[bytes]) -> ResponseHead | None:
    """Return the head of the response in the header lines from libcurl. Return None if it is missing or incomplete.

    libcurl delivers interim responses first, and an empty line closes each head. Lines after the final head are
    trailers.
    """
    if b"\r\n" in lines and lines.index(b"\r\n") == len(lines) - 1:
        start, end = 0, len(lines)
    else:
        start, end = _last_block(lines)
    raw = b"".join(lines[start:end])
    if len(lines[start:end]) != raw.count(b"\r\n"):
        raw = _BARE_LF.sub(b"\r\n", raw)
    status_line, _, fields = raw.decode("latin-1").partition("\r\n")
    version, _, rest = status_line.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/") or not (code.isascii() and code.isdigit()) or (status := int(code)) < 200:
        return None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        status_line = f"HTTP/1.1 {status} {rest[4:].strip() or _reason(status)}"
        raw = f"{status_line}\r\n{fields}".encode("latin-1")
    parts = [line.partition(":") for line in fields.split("\r\n")[:-2]]
    headers = tuple([(name.strip(" \t").lower(), value.strip(" \t")) for name, _, value in parts])
    return ResponseHead(version[5:], status, headers, raw)


def _last_block(lines: list[bytes]) -> tuple[int, int]:
    """Return the range [start, end) of the last complete head in `lines`: up to and including its empty line.

    Return (0, 0) if no head is complete, or if an incomplete head follows the last complete one.
    """
    empty = [number for number, line in enumerate(lines) if line in (b"\r\n", b"\n")]
    if not empty or any(line.startswith(b"HTTP/") for line in lines[empty[-1] + 1 : empty[-1] + 2]):
        return 0, 0
    return empty[-2] + 1 if len(empty) > 1 else 0, empty[-1] + 1


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
