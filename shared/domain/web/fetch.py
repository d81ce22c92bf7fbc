"""A fetch's request and its result. A fetch that fails has a result, too (`FetchFailed`), and raises no exception."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

CLUSTER_ENDPOINT: Final = "belongs to the cluster itself (an engine or a member): no crawl reaches it"
"""The end of `FetchFailed.detail` if egress is denied because the address is the cluster's own.

No setting allows crawls to connect to such an address."""


class FailureKind(StrEnum):
    """Why a fetch gave no usable response. shared/domain/frontier/failure.py decides what follows from each kind."""

    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    RESET = "reset"
    PROTOCOL = "protocol"
    HEADERS_TOO_LARGE = "headers_too_large"
    EGRESS_DENIED = "egress_denied"
    EXCLUDED = "excluded"
    PROXY = "proxy"
    OTHER = "other"


class Truncation(StrEnum):
    """Why a stored body is shorter than what the server sent (WARC-Truncated values)."""

    LENGTH = "length"
    TIME = "time"
    DISCONNECT = "disconnect"


class FetchLimits(Struct, frozen=True):
    """Limits of one request, in seconds and bytes.

    If the body exceeds its limit, or is not complete after `total_s`, it is truncated (`Answer.truncated`). If any
    other limit is exceeded, or the head is not complete after `total_s`, the fetch fails.
    """

    connect_s: float = 10.0
    first_byte_s: float = 20.0
    total_s: float = 120.0
    header_bytes: int = 256 * 1024
    body_bytes: int = 10 * 1024 * 1024
    decoded_bytes: int = 30 * 1024 * 1024


class FetchRequest(Struct, frozen=True):
    """One HTTP request for the fetcher, which never follows redirects.

    `proxy`: the URL of the proxy to use. `http2`: HTTP/2 may be used. `fresh`: use a new connection.

    `skips_body` is called with the status and Content-Type of the response. If it returns True, the transfer ends after
    the head, and the answer has no body. It must not raise. None: every body is fetched.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "GET"
    body: bytes = b""
    limits: FetchLimits = field(default_factory=FetchLimits)
    proxy: str | None = None
    http2: bool = True
    fresh: bool = False
    skips_body: Callable[[int, str | None], bool] | None = None


class Timings(Struct, frozen=True):
    """When each phase of a fetch ended, in seconds since its start.

    None: the phase was not reached, or not needed (a reused connection).
    """

    dns_s: float | None = None
    connect_s: float | None = None
    tls_s: float | None = None
    first_byte_s: float | None = None
    total_s: float = 0.0


class Answer(Struct, frozen=True):
    """An HTTP response of any status. `truncated`: why its body is incomplete.

    - `headers`: the response's headers in order, with names in lower case. Duplicates are kept.
    - `request_head`, `response_head`: the start line and headers as sent and received, with CRLF line ends and the
      closing empty line. HTTP/2 heads are rendered in HTTP/1.1 form.
    - `body`: the payload without the transfer coding, but with the content coding (as WARC stores it).
    - `decoded`: the payload without the content coding, cut at `FetchLimits.decoded_bytes`.
    """

    url: str
    status: int
    headers: tuple[tuple[str, str], ...]
    request_head: bytes
    response_head: bytes
    body: bytes
    decoded: bytes
    ip: str
    timings: Timings
    truncated: Truncation | None = None
    decode_error: str | None = None
    decoded_truncated: bool = False
    http_version: str = "1.1"

    def header(self, name: str) -> str | None:
        """Return the first value of header `name` (given in lower case), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def joined(self, name: str) -> str | None:
        """Return all values of header `name` (given in lower case) joined by commas, or None if there is none."""
        values = [value for key, value in self.headers if key == name]
        return ", ".join(values) if values else None


class FetchFailed(Struct, frozen=True):
    """The result of a fetch without a usable response. `detail` is one line for people.

    - `sent`: the request may have reached the server.
    - `stale`: the server closed a reused connection without a response, which says nothing about the URL. The caller
      may send the request once more on a fresh connection, after the host's delay.
    """

    url: str
    kind: FailureKind
    detail: str
    timings: Timings
    ip: str | None = None
    sent: bool = True
    stale: bool = False
