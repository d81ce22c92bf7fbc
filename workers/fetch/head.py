"""Heads of requests and responses as bytes and as fields (pure).

Everything that goes out in a request head is said here and nothing is left to libcurl's defaults, so `RequestHead.raw`
is what the server reads, byte for byte.
"""

import re
from base64 import b64encode
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes

ACCEPT_ENCODING: Final = "gzip, br, zstd, deflate"

# Printable ASCII without the delimiters: "/?#@" in the authority, "#" in path and query.
_URL: Final = re.compile(r"((?i:https?))://(?:([!\x22$-.0->A-~]*)@)?([!\x22$-.0->A-~]+)([!\x22$-~]*)(?:#[^\r\n]*)?")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FORBIDDEN_IN_VALUE: Final = re.compile(r"[\x00\r\n]")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL points: `authority` is host[:port], no default port; `path` is the origin form with its query."""

    scheme: str
    authority: str
    path: str
    credentials: str | None = None

    @property
    def url(self) -> str:
        """The URL without credentials and fragment, which is what libcurl gets to see."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def host_port(self) -> str:
        """`host:port` with the port always present."""
        has_port = re.search(r":\d+$", self.authority)
        return self.authority if has_port else self.authority + _DEFAULT_PORTS[self.scheme]

    @property
    def host(self) -> str:
        return re.sub(r":\d*$", "", self.authority)


def locate(url: str) -> Target | None:
    """The target of an absolute ASCII http or https URL; None where it is not one."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    scheme, credentials, authority, path = match.groups()
    scheme = scheme.lower()
    authority = authority.lower().removesuffix(_DEFAULT_PORTS[scheme])
    if not path.startswith("/"):
        path = "/" + path
    return Target(scheme, authority, path, credentials)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """`raw` as it is sent; `lines` the same headers in the form CURLOPT_HTTPHEADER takes."""

    raw: bytes
    lines: list[str]


def request_head(
    method: str, target: Target, headers: tuple[tuple[str, str], ...], body_bytes: int | None
) -> RequestHead:
    """The head of one request: Host first, then `headers` in order, then what is needed and was not given.

    Added where absent: Host, Accept-Encoding, Authorization for credentials in the URL, Content-Length for a body
    (`body_bytes` None: no body is sent). Raises ValueError for a name, value or method that cannot be said in HTTP.
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
    return RequestHead(raw, [host_line, *curl_lines, *extra])


@lru_cache(maxsize=256)
def _prepared(headers: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...], str | None]:
    """(the lines joined, each led by CRLF; curl's lines; the Host given)."""
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
    # What libcurl would add by itself is switched off where it was not given.
    curl.extend(f"{name}:" for name in _CURL_DEFAULTS if name.lower() not in given)
    return "".join(raw), tuple(curl), host


_CURL_DEFAULTS: Final = ("User-Agent", "Accept", "Expect", "Content-Type", "Proxy-Connection")


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response's final head; `raw` in HTTP/1.1 form with CRLF line ends and the closing empty line."""

    version: str
    status: int
    headers: tuple[tuple[str, str], ...]
    raw: bytes


def response_head(lines: list[bytes]) -> ResponseHead | None:
    """The last complete head among `lines` (as libcurl delivers them: interim and CONNECT responses first, each head
    closed by an empty line), or None where there is none but interim ones. Lines after the last head are trailers.
    """
    end = len(lines)
    while end and lines[end - 1] not in (b"\r\n", b"\n"):
        end -= 1
    if not end:
        return None
    start = end - 1
    while start and lines[start - 1] not in (b"\r\n", b"\n"):
        start -= 1
    version, _, rest = lines[start].decode("latin-1").rstrip("\r\n").partition(" ")
    code, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/") or not code.isdigit() or (status := int(code)) < 200:
        return None
    fields = []
    for line in lines[start + 1 : end - 1]:
        name, _, value = line.decode("latin-1").partition(":")
        fields.append((name.strip().lower(), value.strip()))
    if version in ("HTTP/1.1", "HTTP/1.0"):
        raw = b"".join(lines[start:end])
    else:
        status_line = f"HTTP/1.1 {status} {reason or _reason(status)}\r\n"
        raw = b"".join((status_line.encode("latin-1"), *lines[start + 1 : end]))
    if raw.count(b"\n") != raw.count(b"\r\n"):
        raw = re.sub(rb"(?<!\r)\n", b"\r\n", raw)
    return ResponseHead(version[5:], status, tuple(fields), raw)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
