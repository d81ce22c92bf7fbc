"""One HTTP exchange on one curl handle: it sets up the request, collects the response, and returns the result."""

import asyncio
import os
import socket
from collections.abc import Sequence
from enum import Enum, auto
from http import HTTPStatus
from math import inf
from typing import Any, Final

import pycurl
from msgspec import Struct

from shared.domain.web.addresses import parse_address
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchLimits, FetchRequest, Timings, Truncation
from workers.fetch.egress import EgressRules
from workers.fetch.head import RequestHead, ResponseHead, Target, response_head
from workers.fetch.result_codes import FAILURES
from workers.fetch.transfers import Result

_HEAD_ENDS: Final = (b"\r\n", b"\n")
_DIGITS: Final = 18
_TIMER_GRAIN_S: Final = 0.001
_CURL_HEADER_BYTES: Final = 300 * 1024
"""libcurl's own limit on one response head (MAX_HTTP_RESP_HEADER_SIZE). Above it the transfer fails."""
_SUPPRESS_CONNECT_HEADERS: Final = 265
"""CURLOPT_SUPPRESS_CONNECT_HEADERS, which pycurl does not name."""
DRAINED_BYTES: Final = 16 * 1024
"""An unwanted body of at most this size is received and dropped, so that its connection can be reused. For a
longer body, the connection is closed."""
_FEW_PIECES: Final = 32
_SMALL_PIECE: Final = 4096
"""After the first _FEW_PIECES of a body, pieces of fewer bytes are joined as they arrive. A server may send chunks of
one or two bytes, and an object for each took 65 times the size of the body."""

_LOGIN_AT_PROXY: Final = "the proxy asks for a login (407): let it admit the worker's address, as workers do not log in"
_TOO_LARGE_HEAD: Final = "Too large response headers"


class HandleOptions(Struct, frozen=True):
    """The options that all exchanges of a fetcher share."""

    rules: EgressRules
    verify: bool
    ca_bundle: str
    source_address: str | None


class Cut(Enum):
    """Why the exchange ended its own transfer: a limit, an exclusion, a repeated request, or a body to skip."""

    BODY = auto()
    EXCLUDED = auto()
    HEADERS = auto()
    FIRST_BYTE = auto()
    RESENDING = auto()
    SKIPPED = auto()
    TOTAL = auto()


class CurlExchange:
    """A curl handle with the buffers for one fetch. From `begin` to `reset` it belongs to this fetch.

    After `reset` it can serve the next fetch. But after a request with a body, a proxy or another method than GET, it
    must be closed. libcurl calls the callbacks (`_on_body`, ...) during a transfer. They collect data, or end the
    transfer by their return value. They must neither raise nor use the multi handle.
    """

    __slots__ = (
        "_denied",
        "_excluded",
        "_future",
        "_head",
        "_head_lines",
        "_lines",
        "_loop",
        "_no_socket",
        "_options",
        "_pieces",
        "_request",
        "_requests",
        "_resolving",
        "_size",
        "_skips",
        "_started",
        "curl",
        "cut",
        "set_connect_s",
        "set_fresh",
        "set_http2",
        "set_skipping",
        "tried",
    )

    def __init__(self, options: HandleOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._pieces: list[bytes | bytearray] = []
        self.set_connect_s = -1.0
        self.set_fresh = False
        self.set_http2: bool | None = None
        self.set_skipping = False
        self._resolving = False
        self.curl: Any = pycurl.Curl()
        self._configure()
        self.reset()

    def reset(self) -> None:
        """Clear the results of the last fetch, so that the handle can be used again."""
        self._lines.clear()
        self._pieces = []
        self._size = 0
        self._head_lines = 0
        self._requests = 0
        self._skips = False
        self.cut: Cut | None = None
        self._denied: str | None = None
        self._excluded: str | None = None
        self.tried = False
        self._no_socket: OSError | None = None
        self._future: asyncio.Future[Result] | None = None

    def _configure(self) -> None:
        curl, options = self.curl, self._options
        http_only = pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS
        curl.setopt(pycurl.PROTOCOLS, http_only)
        curl.setopt(pycurl.REDIR_PROTOCOLS, http_only)
        curl.setopt(pycurl.FOLLOWLOCATION, 0)
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.PATH_AS_IS, 1)
        curl.setopt(pycurl.HTTP_CONTENT_DECODING, 0)
        curl.setopt(pycurl.BUFFERSIZE, 128 * 1024)
        curl.setopt(pycurl.NETRC, pycurl.NETRC_IGNORED)
        # Set empty strings: if unset, libcurl would take proxies from the environment.
        curl.setopt(pycurl.PROXY, "")
        curl.setopt(pycurl.NOPROXY, "")
        curl.setopt(_SUPPRESS_CONNECT_HEADERS, 1)
        curl.setopt(pycurl.CAINFO, options.ca_bundle)
        curl.setopt(pycurl.PROXY_CAINFO, options.ca_bundle)
        for peer in (pycurl.SSL_VERIFYPEER, pycurl.PROXY_SSL_VERIFYPEER):
            curl.setopt(peer, int(options.verify))
        for host in (pycurl.SSL_VERIFYHOST, pycurl.PROXY_SSL_VERIFYHOST):
            curl.setopt(host, 2 if options.verify else 0)
        if options.source_address is not None:
            curl.setopt(pycurl.INTERFACE, f"host!{options.source_address}")
        curl.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        curl.setopt(pycurl.SOCKOPTFUNCTION, _close_on_exec)
        curl.setopt(pycurl.PREREQFUNCTION, self._on_request)
        curl.setopt(pycurl.HEADERFUNCTION, self._lines.append)
        curl.setopt(pycurl.WRITEFUNCTION, self._on_body)

    def begin(self, request: FetchRequest, target: Target, head: RequestHead, addresses: Sequence[str]) -> None:
        """Set the handle `curl` up for `request`. To start the transfer, the caller passes it to `Transfers.start`.

        `addresses`: the addresses of the target's name. Empty: libcurl finds them.
        """
        curl, limits = self.curl, request.limits
        self._request, self._head = request, head
        self._started = self._loop.time()
        curl.setopt(pycurl.URL, target.url)
        curl.setopt(pycurl.HTTPHEADER, head.lines)
        if limits.connect_s != self.set_connect_s:
            curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, round(limits.connect_s * 1000)))
            self.set_connect_s = limits.connect_s
        if request.fresh is not self.set_fresh:
            curl.setopt(pycurl.FRESH_CONNECT, int(request.fresh))
            self.set_fresh = request.fresh
        if request.http2 is not self.set_http2:
            version = pycurl.CURL_HTTP_VERSION_2TLS if request.http2 else pycurl.CURL_HTTP_VERSION_1_1
            curl.setopt(pycurl.HTTP_VERSION, version)
            self.set_http2 = request.http2
        if (request.skips_body is not None) is not self.set_skipping:
            self.set_skipping = not self.set_skipping
            curl.setopt(pycurl.HEADERFUNCTION, self._on_header if self.set_skipping else self._lines.append)
        if addresses or self._resolving:
            self._resolve(target, addresses)

    def specialise(self, proxy: str | None) -> None:
        """Set the method, body and proxy of the request that `begin` got. The handle then serves only this request."""
        curl, request = self.curl, self._request
        if request.body:
            curl.setopt(pycurl.POSTFIELDS, request.body)
        elif request.method == "HEAD":
            curl.setopt(pycurl.NOBODY, 1)
        curl.setopt(pycurl.CUSTOMREQUEST, request.method)
        if request.method not in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"):
            # A kept connection may fail only after the request is sent. Then we cannot tell whether the server handled
            # it, and a request that is not idempotent must not be repeated.
            curl.setopt(pycurl.FRESH_CONNECT, 1)
        if proxy is not None:
            curl.setopt(pycurl.PROXY, proxy)

    def _resolve(self, target: Target, addresses: Sequence[str]) -> None:
        bracketed = ",".join(f"[{each}]" if ":" in each else each for each in addresses)
        # With "+" libcurl forgets the entry like one that it looked up.
        self.curl.setopt(pycurl.RESOLVE, [f"+{target.host_port}:{bracketed}"] if addresses else [])
        self._resolving = bool(addresses)

    def awaiting(self, future: asyncio.Future[Result]) -> float:
        """Store the future of the transfer. Return the event loop's time at which `check` must first be called."""
        self._future = future
        return self._started + min(self._request.limits.first_byte_s, self._request.limits.total_s)

    def check(self, now: float) -> float:
        """End the transfer if its time limit has passed. Return when to check next (loop time; `inf`: never)."""
        limits, future = self._request.limits, self._future
        if future is None or future.done():
            return inf
        late = now - self._started + _TIMER_GRAIN_S
        if late >= limits.total_s:
            self.cut = Cut.TOTAL
        elif late >= limits.first_byte_s and not self._lines:
            self.cut = Cut.FIRST_BYTE
        else:
            return self._started + (limits.total_s if self._lines else min(limits.first_byte_s, limits.total_s))
        future.set_result((pycurl.E_OPERATION_TIMEDOUT, ""))
        return inf

    def _open_socket(self, purpose: int, address: Any) -> Any:
        """Return a new socket for `address`. Return SOCKET_BAD on failure, or if connections to it are forbidden."""
        if address.family in (socket.AF_INET, socket.AF_INET6):
            parsed = parse_address(address.addr[0])
            denial = "not an address" if parsed is None else self._options.rules.explain(parsed, address.addr[1])
        else:
            denial = "only IPv4 and IPv6 are spoken"
        if denial is not None:
            self._denied = self._denied or denial
            return pycurl.SOCKET_BAD
        if self._covered(address.addr[0]):
            return pycurl.SOCKET_BAD
        self.tried = True
        try:
            ours = socket.socket(address.family, address.socktype, address.protocol)
        except OSError as error:
            self._no_socket = error
            return pycurl.SOCKET_BAD
        # libcurl duplicates the socket as soon as this returns, and uses the duplicate.
        self._loop.call_soon(ours.close)
        return ours

    def _covered(self, address: str) -> bool:
        """Return True if an exclusion covers `address`. Return False if the fetch uses a proxy."""
        parsed = parse_address(address) if self._request.proxy is None else None
        target = None if parsed is None else self._options.rules.excluded(parsed)
        if target is not None:
            self._excluded = f"the exclusion {target} covers {address}"
        return target is not None

    def _on_request(self, address: str, *_: object) -> int:
        """Return PREREQFUNC_OK to send the request. Return PREREQFUNC_ABORT if an exclusion covers the address by now.

        Also return PREREQFUNC_ABORT if libcurl sends a second request, which would not wait for the host's delay.
        """
        if self._covered(address):
            self.cut = Cut.EXCLUDED
            return int(pycurl.PREREQFUNC_ABORT)
        self._requests += 1
        if self._requests > 1:
            self.cut = Cut.RESENDING
            return int(pycurl.PREREQFUNC_ABORT)
        return int(pycurl.PREREQFUNC_OK)

    def _on_header(self, line: bytes) -> int | None:
        """Collect a header line. Return 0 to end the transfer before the body, or None to continue.

        The result is 0 only for the empty line after the headers of a body that is unwanted (`skips_body`) and long.
        "Long" means: its Content-Length is above DRAINED_BYTES or unknown. A short unwanted body is received later.
        """
        self._lines.append(line)
        skips = self._request.skips_body
        if line not in _HEAD_ENDS or self._head_lines or self._skips or skips is None:
            return None
        head = response_head(self._lines)
        if head is None or not skips(head.status, head.joined("content-type")):
            return None
        self._skips = True
        length = head.joined("content-length") or ""
        if length.isascii() and length.isdigit() and len(length) < _DIGITS and int(length) <= DRAINED_BYTES:
            return None
        self.cut = Cut.SKIPPED
        return 0

    def _on_unwanted(self, piece: bytes) -> int | None:
        """Drop a piece of a skipped body. Return None, or 0 to end the transfer if the body exceeds DRAINED_BYTES."""
        self._size += len(piece)
        if self._size <= DRAINED_BYTES:
            return None
        self.cut = Cut.SKIPPED
        return 0

    def _on_body(self, piece: bytes) -> int | None:
        """Collect a piece of the body, up to the limit. Return 0 to end the transfer, None to continue."""
        limits = self._request.limits
        if self._skips:
            return self._on_unwanted(piece)
        if not self._head_lines:
            self._head_lines = len(self._lines)
            if sum(map(len, self._lines)) > limits.header_bytes:
                self.cut = Cut.HEADERS
                return 0
        size = self._size + len(piece)
        if size > limits.body_bytes:
            self._pieces.append(piece[: limits.body_bytes - self._size])
            self._size = limits.body_bytes
            self.cut = Cut.BODY
            return 0
        self._size = size
        pieces = self._pieces
        if len(pieces) < _FEW_PIECES or len(piece) >= _SMALL_PIECE:
            pieces.append(piece)
        elif type(pieces[-1]) is bytearray:
            pieces[-1] += piece
        else:
            pieces.append(bytearray(piece))
        return None

    def outcome(self, result: Result) -> Answer | FetchFailed:
        """Return the answer or failure of the fetch. `result`: libcurl's result code and error text.

        The body of the answer is not decoded yet: `decoded` is equal to `body`. Raise OSError if no socket could be
        opened.
        """
        if self._no_socket is not None:
            raise self._no_socket
        code, text = result
        limits = self._request.limits
        unseen = not self._head_lines and sum(map(len, self._lines)) > limits.header_bytes
        if unseen or self.cut is Cut.HEADERS or _TOO_LARGE_HEAD in text:
            limit = min(limits.header_bytes, _CURL_HEADER_BYTES)
            return self._failed(FailureKind.HEADERS_TOO_LARGE, f"the response head is longer than {limit} bytes")
        head = response_head(self._lines[: self._head_lines] if self._head_lines else self._lines)
        if head is not None and head.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and self._forwarded():
            return self._failed(FailureKind.PROXY, _LOGIN_AT_PROXY)
        if head is not None and (self._skips or (code == 0 and self.cut is None)):
            return self._answer(head, None)
        match self.cut:
            case Cut.BODY if head is not None:
                return self._answer(head, Truncation.LENGTH)
            case Cut.TOTAL if head is not None:
                return self._answer(head, Truncation.TIME)
            case Cut.TOTAL | Cut.FIRST_BYTE:
                return self._late(limits)
            case Cut.EXCLUDED:
                return self._failed(FailureKind.EXCLUDED, self._excluded or "")
            case Cut.RESENDING:
                return self._failed(FailureKind.RESET, "the server closed a kept connection without an answer")
        if head is not None and FAILURES.get(code) in (FailureKind.RESET, FailureKind.PROTOCOL, FailureKind.TLS):
            return self._answer(head, Truncation.DISCONNECT)
        return self._broken(code, text)

    def _forwarded(self) -> bool:
        """Return True if an HTTP proxy gets the request itself and forwards it, so that a 407 is the proxy's own.

        For an https URL or with a SOCKS proxy, the response comes from the site.
        """
        request = self._request
        return (request.proxy or "").lower().startswith("http") and request.url.lower().startswith("http:")

    def _late(self, limits: FetchLimits) -> FetchFailed:
        if self._lines:
            return self._failed(FailureKind.TOTAL_TIMEOUT, f"no complete response head within {limits.total_s:g} s")
        if self.cut is Cut.TOTAL:
            return self._failed(FailureKind.TOTAL_TIMEOUT, f"no response within {limits.total_s:g} s")
        if not self.curl.getinfo(pycurl.REQUEST_SIZE):
            return self._failed(FailureKind.CONNECT_TIMEOUT, f"no connection within {limits.first_byte_s:g} s")
        return self._failed(FailureKind.FIRST_BYTE_TIMEOUT, f"no response within {limits.first_byte_s:g} s")

    def _broken(self, code: int, text: str) -> FetchFailed:
        kind = FAILURES.get(code, FailureKind.OTHER)
        if kind is FailureKind.CONNECT and not self.tried:
            if self._excluded is not None:
                return self._failed(FailureKind.EXCLUDED, self._excluded)
            if self._denied is not None:
                return self._failed(FailureKind.EGRESS_DENIED, self._denied)
        if self._request.proxy is not None:
            refused = self.curl.getinfo(pycurl.HTTP_CONNECTCODE) not in (0, 200)
            kind = FailureKind.PROXY if refused or kind is FailureKind.CONNECT else kind
        if code == 0:
            # libcurl reports success even if a connection ends inside a head, or after a 101.
            closed = self._lines[-1:] == [b"\r\n"]
            kind = FailureKind.PROTOCOL if closed else FailureKind.RESET
            text = "only interim responses came" if closed else "the connection ended in the response head"
        if kind is FailureKind.HEADERS_TOO_LARGE:
            text = "a header line is longer than the 100 KiB that libcurl takes"
        return self._failed(kind, text or f"libcurl error {code}")

    def _failed(self, kind: FailureKind, detail: str) -> FetchFailed:
        curl = self.curl
        sent = kind is not FailureKind.PROXY and bool(curl.getinfo(pycurl.REQUEST_SIZE))
        ip = curl.getinfo(pycurl.PRIMARY_IP) or None
        stale = kind is FailureKind.RESET and not self._lines and self.reused
        return FetchFailed(self._request.url, kind, " ".join(detail.split()), self._timings(), ip, sent, stale)

    @property
    def reused(self) -> bool:
        """True if the ended transfer began on a connection that an earlier request had opened."""
        return self.cut is Cut.RESENDING or not self.curl.getinfo(pycurl.NUM_CONNECTS)

    def _answer(self, head: ResponseHead, truncated: Truncation | None) -> Answer:
        body = b"".join(self._pieces)
        return Answer(
            self._request.url,
            head.status,
            head.headers,
            self._head.raw,
            head.raw,
            body,
            body,
            self.curl.getinfo(pycurl.PRIMARY_IP),
            self._timings(),
            truncated,
            http_version=head.version,
        )

    def _timings(self) -> Timings:
        """Return the seconds from the start of the transfer to the end of each phase. None: it did not occur."""
        info = self.curl.getinfo
        first_byte = info(pycurl.STARTTRANSFER_TIME) or None
        total = info(pycurl.TOTAL_TIME)
        if not info(pycurl.NUM_CONNECTS):
            return Timings(None, None, None, first_byte, total)
        return Timings(
            info(pycurl.NAMELOOKUP_TIME) or None,
            info(pycurl.CONNECT_TIME) or None,
            info(pycurl.APPCONNECT_TIME) or None,
            first_byte,
            total,
        )


def _close_on_exec(descriptor: int, purpose: int) -> int:
    """Prevent child processes from inheriting `descriptor`, libcurl's copy of a socket. Return SOCKOPT_OK."""
    os.set_inheritable(descriptor, False)
    return int(pycurl.SOCKOPT_OK)
