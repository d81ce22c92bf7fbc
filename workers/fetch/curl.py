"""The fetcher: HTTP by libcurl, driven by the event loop."""

import asyncio
import os
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, Protocol

import ada_url
import certifi
from msgspec import structs

from shared.domain.web.addresses import parse_address
from shared.domain.web.fetch import Answer, FailureKind, FetchFailed, FetchRequest, Timings
from workers.fetch.decoding import decoded
from workers.fetch.denials import Denials
from workers.fetch.egress import EgressRules
from workers.fetch.exchange import CurlExchange, HandleOptions
from workers.fetch.head import Target, locate, request_head
from workers.fetch.idle_connections import IdleConnections
from workers.fetch.names import Names, NotResolved, is_name
from workers.fetch.transfers import Transfers
from workers.fetch.turns import Turns


class Timed(Protocol):
    """An object with a time limit, which `Deadlines` checks."""

    def check(self, now: float) -> float:
        """End the object's work if its time limit has passed.

        Return when to check next (event loop's time; `inf`: never).
        """


class Deadlines:
    """Checks the time limits of many objects (Timed) with one timer, which fires at the earliest limit.

    When the timer fires, it calls `check` of each object. This call ends the work of an object whose limit has passed.
    The timer is then set to the earliest limit of the other objects. An object that ends in time is removed by
    `discard`, so that it is not checked.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: set[Timed] = set()
        self._armed_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, member: Timed, due: float) -> None:
        self._members.add(member)
        if due < self._armed_at:
            self._arm(due)

    def discard(self, member: Timed) -> None:
        self._members.discard(member)

    def close(self) -> None:
        self._members.clear()
        self._arm(inf)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._sweep) if due < inf else None

    def _sweep(self) -> None:
        now = self._clock()
        self._timer = None
        self._arm(min((member.check(now) for member in tuple(self._members)), default=inf))


_PROXY: Final = re.compile(r"(https?|socks4a?|socks5h?)://[^/?#\s]+/?", re.IGNORECASE)
_BAD_PROXY: Final = "the proxy is not an http, https, socks4(a) or socks5(h) URL"
_NAMES_BY_PROXY: Final = {"socks4": "socks4a", "socks5": "socks5h"}
_LOOPBACK: Final = parse_address("127.0.0.1")
_PORTS: Final = {"http": 80, "https": 443}
_SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class CurlFetcher:
    """`shared.ports.fetcher.Fetcher` on libcurl. Construct it in the event loop that uses it.

    - Each call of `fetch` sends at most one request. If the server closes a kept connection as the request is sent, the
      result is a FetchFailed with `stale` set. The caller may repeat the request after the host's delay.
    - Calls that end at the same moment return in separate turns of the event loop (`Turns`).
    - Requests with methods that are not idempotent use a fresh connection. So does a request for which the server has
      probably closed the kept connection.
    - At most `max_connections` connections are open, idle ones included. At most `max_connections` fetches run
      concurrently. Further calls wait. Their time limits do not include this wait.
    - No cookies, no .netrc, no proxy from the environment. The only schemes are http and https.

    Limits of a request (FetchLimits):

    - `connect_s` applies twice: to the look-up of the host's name, and then to connecting. If it is 10, each of the two
      steps may take 10 seconds.
    - `first_byte_s` and `total_s` begin after the look-up, so they include the time to connect.
    - `header_bytes` has an effect only up to 300 KiB, the limit of libcurl. A header line may have at most 100 KiB.

    A request with a proxy:

    - The proxy looks up the name of the URL's host, even a socks4 or socks5 proxy. The fetcher looks up only the name
      of the proxy.
    - The egress rules apply to the proxy's address. They apply to the URL's host only if it is an IP address or
      `localhost`. So the proxy itself must restrict the addresses to which it connects.
    - The answer's `ip` is that of the proxy. The answer's `request_head` looks as if no proxy was used.

    `resolve` maps "host:port" to an IP address, which is subject to the egress rules. It may change at any time.
    `ca_bundle`: the file of certificate authorities, by default that of `default_ca_bundle`. Raise FileNotFoundError if
    this file does not exist.
    """

    def __init__(
        self,
        rules: EgressRules,
        *,
        max_connections: int = 512,
        resolve: Mapping[str, str] | None = None,
        verify: bool = True,
        ca_bundle: str | None = None,
        source_address: str | None = None,
        names: Names | None = None,
    ) -> None:
        bundle = ca_bundle or default_ca_bundle()
        if not Path(bundle).is_file():
            raise FileNotFoundError(f"CA bundle {bundle} does not exist")
        self._options = HandleOptions(rules, verify, bundle, source_address)
        self._resolve = {} if resolve is None else resolve
        self._names = Names() if names is None else names
        self._max_connections = max_connections
        self._places = asyncio.Semaphore(max_connections)
        self._transfers = Transfers(max_connections)
        self._turns = Turns()
        self._deadlines = Deadlines(asyncio.get_running_loop().time)
        self._idle: list[CurlExchange] = []
        self._kept = IdleConnections()
        self._denials = Denials()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._transfers)} of {self._max_connections} fetching"
        return f"<CurlFetcher {state}, {len(self._idle)} idle handles>"

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed:
        """Send one request and return its answer or failure (Fetcher.fetch).

        Raise ValueError for an invalid method or header, and RuntimeError after `close`.
        """
        target = locate(request.url)
        if target is None:
            return _refused(request, FailureKind.OTHER, "not an absolute http or https URL in ASCII")
        head = request_head(request.method, target, request.headers, _body_bytes(request))
        plain = request.method == "GET" and not request.body and request.proxy is None
        proxy = None
        if request.proxy is not None:
            proxy = _proxy_url(request.proxy)
            if proxy is None:
                return _refused(request, FailureKind.PROXY, _BAD_PROXY)
            if denial := _denied_behind_proxy(target, self._options.rules):
                self._denials.log(target.host_port, request.url, denial)
                return _refused(request, FailureKind.EGRESS_DENIED, denial)
        try:
            addresses = await self._addresses(target, request.limits.connect_s, request.proxy)
        except NotResolved as error:
            return _refused(request, FailureKind.DNS, f"Could not resolve host: {target.host}: {error}")
        async with self._places:
            if self._closed:
                raise RuntimeError("fetch on a closed CurlFetcher")
            exchange = self._idle.pop() if plain and self._idle else CurlExchange(self._options)
            begun = asyncio.get_running_loop().time()
            if not request.fresh and self._kept.wants_fresh(target.server, begun):
                request = structs.replace(request, fresh=True)
            try:
                exchange.begin(request, target, head, addresses)
                if not plain:
                    exchange.specialise(proxy)
                result = await self._perform(exchange)
                if isinstance(result, FetchFailed) and result.kind is FailureKind.EGRESS_DENIED:
                    self._denials.log(target.host_port, request.url, result.detail)
                stale = isinstance(result, FetchFailed) and result.stale
                ended = asyncio.get_running_loop().time()
                self._kept.used(target.server, begun, ended, reused=exchange.reused, stale=stale)
            finally:
                exchange.reset()
                if plain and not self._closed:
                    self._idle.append(exchange)
                else:
                    exchange.curl.close()
        # Other fetches may use the connection while this body is decoded.
        return await decoded(result, request.limits.decoded_bytes) if isinstance(result, Answer) else result

    async def look_up(self, url: str, *, limit_s: float, proxy: str | None) -> None:
        """Look up the addresses of the URL's host in advance, so that `fetch` can use them (Fetcher.look_up)."""
        target = locate(url)
        if target is not None:
            with suppress(NotResolved):  # `fetch` returns the failure
                await self._addresses(target, limit_s, proxy)

    async def _addresses(self, target: Target, limit_s: float, proxy: str | None) -> tuple[str, ...]:
        """Return the addresses to connect to for `target`. Return an empty tuple to leave the choice to libcurl.

        - If an address is configured for the host and port (`_resolve`), return only this address.
        - If a proxy is used, or the host is an IP address or means loopback, return an empty tuple.
        - Otherwise look up the host's name. Raise NotResolved if that fails or takes longer than `limit_s` seconds.
        """
        given = self._resolve.get(target.host_port)
        if given is not None:
            return (given.strip("[]"),)
        if proxy is not None or not is_name(target.host):
            return ()
        return await self._names.addresses(target.host, limit_s)

    async def _perform(self, exchange: CurlExchange) -> Answer | FetchFailed:
        """Run the transfer of an exchange after its `begin`, and return the result with the body as received.

        Afterwards libcurl has released the handle.
        """
        future = self._transfers.start(exchange.curl)
        self._deadlines.add(exchange, exchange.awaiting(future))
        try:
            result = await future
        finally:
            self._deadlines.discard(exchange)
            self._transfers.stop(exchange.curl)
        await self._turns.take()
        return exchange.outcome(result)

    async def close(self) -> None:
        """Close every connection and cancel the transfers under way. Idempotent.

        A call of `fetch` may still wait for a look-up or for a free connection. If its wait succeeds, the call
        raises RuntimeError and sends nothing.
        """
        self._closed = True
        self._deadlines.close()
        self._transfers.close()
        while self._idle:
            self._idle.pop().curl.close()


def _refused(request: FetchRequest, kind: FailureKind, detail: str) -> FetchFailed:
    return FetchFailed(request.url, kind, detail, Timings(), sent=False)


def _body_bytes(request: FetchRequest) -> int | None:
    return len(request.body) if request.body or request.method in ("POST", "PUT", "PATCH") else None


def _proxy_url(proxy: str) -> str | None:
    """Return the proxy's URL for libcurl, with a scheme that makes the proxy resolve names.

    Return None if it is invalid.
    """
    match = _PROXY.fullmatch(proxy)
    if match is None:
        return None
    scheme = match[1].lower()
    return _NAMES_BY_PROXY.get(scheme, scheme) + proxy[len(scheme) :]


def _denied_behind_proxy(target: Target, rules: EgressRules) -> str | None:
    """Return why the egress rules forbid a request for `target` to a proxy. Return None if they do not.

    Only the host's name, or its IP address in the URL, is checked. The name is not resolved.
    """
    try:
        url = ada_url.URL(structs.replace(target, path="/").url)
    except ValueError:
        return None
    host = url.hostname
    port = int(url.port) if url.port else _PORTS[target.scheme]
    address = _LOOPBACK if host == "localhost" or host.endswith(".localhost") else parse_address(host)
    return rules.explain_name(host, port) if address is None else rules.explain(address, port)


def default_ca_bundle() -> str:
    """Return the path of the file of certificate authorities by which the certificates of hosts are verified.

    It is the file in SSL_CERT_FILE, the system's file, or certifi's: the first that exists. libcurl's built-in path is
    not used, because that file may not exist on this system.
    """
    named = os.environ.get("SSL_CERT_FILE")
    python = ssl.get_default_verify_paths().cafile
    bundles = (path for path in (named, *_SYSTEM_BUNDLES, python) if path is not None and Path(path).is_file())
    return next(bundles, certifi.where())
