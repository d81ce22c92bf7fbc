"""Calls to an etcd cluster: deadlines, failover between members, login, and detection of an etcd that came back older.

It uses generated stubs on grpc.aio, with one channel for each etcd member. Every call goes to the current member until
a call to it fails. A channel must be used only by the event loop and process that created it, never by a forked child.
"""

import asyncio
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import etcd3.etcdrpc as rpc
import grpc
import structlog

from shared.adapters.etcd.errors import failure_of, stale_login
from shared.adapters.etcd.settings import EtcdSettings
from shared.domain.errors import Transient, Unusable
from shared.tls import TlsSettings

log = structlog.get_logger(__name__)

Metadata = tuple[tuple[str, str], ...]

_OPTIONS: Final = (
    # A member that vanished silently is noticed after 13 s. etcd accepts at most one ping in 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The default waits up to two minutes after a long outage.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this limits the duration of an attempt to connect. The two others bound the waits.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class EtcdMember:
    """The gRPC channel and stubs of one etcd member."""

    def __init__(self, endpoint: str, tls: TlsSettings | None) -> None:
        self.endpoint = endpoint
        self.target, secure, self.private = _parsed(endpoint)
        if tls is not None and not secure:
            raise Unusable(f"TLS is configured, but the endpoint {endpoint} does not begin with https://")
        if secure:
            self.channel = grpc.aio.secure_channel(self.target, _credentials(tls or TlsSettings()), options=_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        self._stubs = {
            "KV": rpc.KVStub(self.channel),
            "Lease": rpc.LeaseStub(self.channel),
            "Watch": rpc.WatchStub(self.channel),
            "Auth": rpc.AuthStub(self.channel),
        }

    def method(self, name: str) -> Any:
        """Return gRPC's callable for the method `name`, which has the form `Service.Method`, such as `KV.Range`."""
        service, _, method = name.partition(".")
        return getattr(self._stubs[service], method)


class EtcdConnection:
    """Sends calls to an etcd cluster. They go to one current member, and to the next member after a failure.

    Errors of a call:

    - Transient: no member answers in time.
    - Unusable: etcd refuses this client.
    - Permanent, EtcdLeaseExpired, Compacted: etcd refuses the call itself.

    `revision` is the newest revision of etcd that was seen. `history` counts how often etcd came back older.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        if not settings.endpoints:
            raise Unusable("no etcd endpoint is configured")
        self.settings = settings
        self._members = [EtcdMember(endpoint, settings.tls) for endpoint in settings.endpoints]
        if settings.password is not None:
            exposed = [member.endpoint for member in self._members if not member.private]
            if exposed:
                raise Unusable(f"an etcd password is sent over TLS only, and {exposed[0]} does not begin with https://")
        self._current = 0
        self._token: str | None = None
        self._login = asyncio.Lock()
        self._closed = False
        self._moved = asyncio.Event()
        self.revision = 0
        self.history = 0

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(self, name: str, request: Any, *, repeat: bool, within_s: float | None = None) -> Any:
        """Send a call and return etcd's answer. `name` has the form `Service.Method`, such as `KV.Range`.

        `repeat`: True to retry with the next member after a failure, for up to `within_s` seconds (None:
        `settings.answer_s`). False: raise Transient at the first failure. The call may have been applied then.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (self.settings.answer_s if within_s is None else within_s)
        pause = _FIRST_PAUSE_S
        while True:
            member, floor = self.member(), (self.history, self.revision)
            try:
                answer = await self._ask(member, name, request, until - loop.time())
            except Transient as failure:
                self.failed(member, str(failure))
                if not repeat or loop.time() + pause >= until:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if name.startswith("KV."):
                self._note(floor, answer.header.revision)
            return answer

    async def _ask(self, member: EtcdMember, name: str, request: Any, within_s: float) -> Any:
        """Send a call to `member` and return its answer. Raise the error that `failure_of` returns.

        If the member refuses the login token, log in again and send the call a second time.
        """
        patience = max(min(self.settings.attempt_s, within_s), 0.01)
        for again in (True, False):
            login = await self.login(member, patience)
            try:
                return await member.method(name)(request, timeout=patience, metadata=login)
            except grpc.aio.AioRpcError as error:
                if not (again and stale_login(error) and self.settings.user is not None):
                    raise failure_of(error, name) from error
                self.forget_login(login)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed and task is not None and not task.cancelling():
                    raise Transient(f"etcd {name}: the connection was closed") from None
                raise
        raise AssertionError("unreachable")

    async def watch(self) -> tuple[EtcdMember, Any]:
        """Open a watch stream at the current member. Return the member and the stream.

        The member ends the stream if it loses contact with the leader of the etcd cluster.
        """
        member = self.member()
        login = await self.login(member)
        return member, member.method("Watch.Watch")(metadata=(("hasleader", "true"), *login))

    def member(self) -> EtcdMember:
        """Return the current etcd member, to which calls are sent. Raise Unusable after `close`."""
        if self._closed:
            raise Unusable("the connection to etcd is closed")
        return self._members[self._current]

    def failed(self, member: EtcdMember, reason: str) -> None:
        """Make the next etcd member the current one, if `member` is still current. `reason` is logged.

        Do nothing if there is only one member.
        """
        if len(self._members) > 1 and self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
            log.info(
                "etcd_endpoint.changed", from_endpoint=member.endpoint, endpoint=self.member().endpoint, reason=reason
            )

    async def moved(self) -> None:
        """Wait until another etcd member becomes the current one."""
        await self._moved.wait()

    async def close(self) -> None:
        """Close every channel. Calls in progress fail."""
        self._closed = True
        for member in self._members:
            await member.channel.close()

    # --- history ------------------------------------------------------------------------------------------------------

    def _note(self, floor: tuple[int, int], revision: int) -> None:
        """Update `self.revision` after an answer of etcd. Increase `self.history` if etcd was wiped or restored.

        - `revision`: the revision of etcd in the answer.
        - `floor`: the pair (`self.history`, `self.revision`), as it was when the request was sent.

        Three cases:

        - `self.history` is no longer that of `floor`: the answer may be of an older etcd. Change nothing.
        - `revision` is lower than that of `floor`: etcd was wiped or restored. Increase `self.history`.
        - Otherwise: raise `self.revision` to `revision`, unless `self.revision` is higher already.
        """
        # Reads and writes go through a quorum, so the revision of an answer is never lower than an earlier one.
        history, known = floor
        if history != self.history:
            return
        if revision < known:
            self.rewound(known, revision)
        else:
            self.revision = max(self.revision, revision)

    def seen(self, revision: int) -> None:
        """Record a revision that a watch received. If a later answer has a lower one, `history` increases."""
        self.revision = max(self.revision, revision)

    def rewound(self, known: int, revision: int) -> None:
        """Increase `history` and log an error. Call it if etcd's `revision` is lower than the `known` one.

        etcd was then wiped or restored.
        """
        self.history += 1
        self.revision = revision
        log.error("etcd.replaced", known_revision=known, found_revision=revision, history=self.history)

    # --- login --------------------------------------------------------------------------------------------------------

    async def login(self, member: EtcdMember, within_s: float | None = None) -> Metadata:
        """Return the gRPC metadata that authenticates this client at `member`.

        The metadata is empty if no user or password is set, or if etcd has authentication disabled. Concurrent calls
        share one login. Raise Transient if the login takes more than `within_s` seconds (None: `settings.attempt_s`),
        and Unusable if etcd refuses it.
        """
        settings = self.settings
        if settings.user is None or settings.password is None:
            return ()
        patience = settings.attempt_s if within_s is None else within_s
        try:
            async with asyncio.timeout(patience), self._login:
                if self._token is None:
                    self._token = await self._logged_in(member, settings.user, settings.password)
        except TimeoutError as error:
            raise Transient(f"etcd login of {settings.user}: no answer within {patience:g} s") from error
        return self._proof()

    async def _logged_in(self, member: EtcdMember, user: str, password: str) -> str:
        """Log in at `member` and return the token. Return an empty string if etcd has authentication disabled."""
        request = rpc.AuthenticateRequest(name=user, password=password)
        try:
            answer = await member.method("Auth.Authenticate")(request, timeout=self.settings.attempt_s)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" not in (error.details() or ""):
                raise failure_of(error, f"login of {user}") from error
            return ""
        return str(answer.token)

    def forget_login(self, used: Metadata | None = None) -> None:
        """Discard the login token, so that the next call logs in again.

        `used`: discard it only if it is the token in this metadata. None: discard any.
        """
        if used is None or used == self._proof():
            self._token = None

    def _proof(self) -> Metadata:
        return (("token", self._token),) if self._token else ()

    def __repr__(self) -> str:
        at = self._members[self._current].endpoint
        return f"<Connection to {at} revision={self.revision} history={self.history}>"


def _parsed(endpoint: str) -> tuple[str, bool, bool]:
    """Return gRPC's target for `endpoint`, whether it uses TLS, and whether its traffic is safe from eavesdropping.

    The last is True for TLS, a Unix socket and the loopback address. Raise Unusable if the endpoint is malformed.
    """
    if endpoint.startswith("unix:"):
        return endpoint, False, True
    url = urlsplit(endpoint)
    if url.scheme not in {"http", "https"} or not url.hostname or not url.port or url.path not in {"", "/"}:
        raise Unusable(f"{endpoint!r} is no etcd endpoint: http(s)://host:port or unix:/path")
    secure = url.scheme == "https"
    return url.netloc, secure, secure or url.hostname in _LOOPBACK


def _credentials(tls: TlsSettings) -> grpc.ChannelCredentials:
    def pem(path: Path | None) -> bytes | None:
        try:
            return None if path is None else path.read_bytes()
        except OSError as error:
            raise Unusable(f"cannot read {path}: {error}") from error

    if (tls.cert is None) != (tls.key is None):
        raise Unusable("a client certificate needs both its file and its key's")
    return grpc.ssl_channel_credentials(pem(tls.ca), pem(tls.key), pem(tls.cert))
