"""Authenticate each request below /v1 by its identity: an API key, or a client certificate declared like a key.

The table of rights (`api.security.rights`) says which role each route needs.
"""

import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, assert_never

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.errors import ApiProblem, ProblemKind, answer, problem_of
from api.http.headers import header_of
from api.security.key_uses import KeyUses
from api.security.limits import WrongKeys
from api.security.vouching import CLIENT, Vouching
from shared.domain.errors import Transient
from shared.domain.ops.access import ApiKey, Role, digest_of, key_id_of, new_key, opens
from shared.domain.ops.identities import IdentityRefusal, Peer, PeerCertificate, refusal
from shared.ports.catalog import Catalog
from shared.ports.clock import Clock

log = structlog.get_logger("orb.api")

_CACHED_S: Final = 1.0
_CACHED: Final = 1024
_SEND: Final = "send the header `Authorization: Bearer <API key>`"
_NO_PROOF: Final = (
    "no key has the client certificate as its `certificate` with `kind: certificate`, and the request has no API key"
)
_PROOF: Final = "an admin can declare one by PUT /v1/api-keys/{name}"
_KEYS: Final = (
    "a key is shown once, when it is made: the first at the cluster's first start, others by `orb ctl keys create` or "
    "POST /v1/api-keys; `orb key create` replaces a lost admin key, on the cluster's database itself"
)
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="orbweaver"'}

GUARDED: Final = "/v1"
"""The path at and below which a request needs an identity."""


class Keyring:
    """Looks up API keys and client certificates in the database, and caches each valid identity for a second.

    After a key was revoked through one master, other masters may accept it for up to another second.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._good: OrderedDict[bytes, tuple[float, ApiKey]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Keyring cached={len(self._good)}>"

    async def holder(self, key: str) -> ApiKey | None:
        """Return the stored record of an API key, with its name and role.

        Return None if the key is unknown or revoked.
        """
        key_id = key_id_of(key)
        if key_id is None:
            return None
        digest = digest_of(key)
        known = self._cached(digest)
        if known is not None:
            return known
        kept = await self._catalog.key(key_id)
        if kept is None or not opens(key, kept):
            self._good.pop(digest, None)
            return None
        self._cache(digest, kept)
        return kept

    async def of_certificate(self, certificate: PeerCertificate) -> ApiKey | None:
        """Return the record of the identity that is declared for this client certificate; None if there is none.

        Such an identity needs no API key.
        """
        digest = _digest_of_certificate(certificate)
        known = self._cached(digest)
        if known is not None:
            return known
        kept = await self._catalog.key_of_certificate(certificate.names)
        if kept is None:
            self._good.pop(digest, None)
            return None
        self._cache(digest, kept)
        return kept

    def has_seen(self, key: str) -> bool:
        """Return True if the cache has this key, even if its entry is older than a second. It may be revoked by now."""
        return digest_of(key) in self._good

    def has_seen_certificate(self, certificate: PeerCertificate) -> bool:
        """Return True if the cache has this certificate, even if its entry is older than a second (see `has_seen`)."""
        return _digest_of_certificate(certificate) in self._good

    def _cached(self, digest: bytes) -> ApiKey | None:
        known = self._good.get(digest)
        return known[1] if known is not None and time.monotonic() - known[0] < _CACHED_S else None

    def _cache(self, digest: bytes, kept: ApiKey) -> None:
        self._good[digest] = (time.monotonic(), kept)
        self._good.move_to_end(digest)  # It may be in the cache already, and the first one is dropped.
        if len(self._good) > _CACHED:
            self._good.popitem(last=False)

    def forget(self, key_id: str) -> None:
        """Drop the key with this id from the cache, so that this master refuses it at once.

        Call it when a key is revoked.
        """
        self._good = OrderedDict((digest, known) for digest, known in self._good.items() if known[1].key_id != key_id)


def _digest_of_certificate(certificate: PeerCertificate) -> bytes:
    """Return a digest of the certificate's names, which differs from the digest of every API key.

    The digested bytes begin with 0xff, which does not occur in UTF-8.
    """
    return hashlib.sha256(b"\xff" + "\n".join(sorted(certificate.names)).encode()).digest()


class Authentication:
    """ASGI layer that refuses requests without a valid identity, at the path `GUARDED` and below.

    An identity may be restricted to some addresses or to a client certificate. So the layer also checks the peer: the
    address and the TLS certificate of the client. It stores two values in the request's state:

    - `key`: the identity's record.
    - `peer`: the peer. If another master forwarded the request, this is the original client. The forwarding master
      names the original client in a signed header.

    The limit of wrong keys does not apply to forwarded requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keyring,
        vouching: Vouching,
        uses: KeyUses,
        wrong_keys: WrongKeys,
        clock: Clock,
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._vouching = vouching
        self._uses = uses
        self._wrong_keys = wrong_keys
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] + "/").startswith(GUARDED + "/"):
            try:
                await self._authenticate(scope)
            except (ApiProblem, Transient) as error:
                await answer(problem_of(error), scope["path"], scope["state"]["request_id"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> None:
        """Store the identity and the peer of the request in its state.

        Raise ApiProblem if the identity is missing or refused. Raise Transient if the database does not answer.
        """
        state: dict[str, Any] = scope["state"]
        vouched = await self._vouched(scope)
        peer = state["peer"] = vouched or _peer_of(scope)
        kept = await self._identity(scope, peer, limited=vouched is None)
        now_ms = self._clock.unix_ms()
        why = refusal(kept, peer, now_ms)
        if why is not None:
            log.warning("identity.refused", key=kept.key_id, reason=str(why), address=peer.address)
            raise _refused(kept, why)
        self._uses.note(kept.key_id, now_ms)
        state["key"] = kept

    async def _vouched(self, scope: Scope) -> Peer | None:
        """Return the peer that another master signed for this request; None if there is none."""
        if any(name == CLIENT for name, _ in scope["headers"]):
            return await self._vouching.read(scope)
        return None

    async def _identity(self, scope: Scope, peer: Peer, *, limited: bool) -> ApiKey:
        """Return the stored identity of the request.

        Raise ApiProblem if there is none. If `limited`, raise it also after too many wrong keys from the peer's
        address. A key or certificate that this master has accepted lately is exempt from this limit.
        """
        # So a client with wrong keys does not lock out other clients at its address.
        given = header_of(scope, b"authorization")
        if not given and peer.certificate is not None:
            if limited and not self._keyring.has_seen_certificate(peer.certificate):
                self._limit(peer)
            proved = await self._keyring.of_certificate(peer.certificate)
            if proved is not None:
                return proved
            self._wrong_keys.count(peer.address, self._clock.elapsed())
        key = key_of(given)
        if not key:
            if peer.certificate is not None and not given:
                raise _unauthenticated(_NO_PROOF, f"{_PROOF}, or {_SEND}")
            raise _unauthenticated("the request has no API key", f"{_SEND}; {_KEYS}")
        if limited and not self._keyring.has_seen(key):
            self._limit(peer)
        holder = await self._keyring.holder(key)
        if holder is None:
            self._wrong_keys.count(peer.address, self._clock.elapsed())
            raise unknown_key()
        return holder

    def _limit(self, peer: Peer) -> None:
        """Raise ApiProblem if too many wrong keys came from the peer's address lately.

        This does not query the database.
        """
        wait_s = self._wrong_keys.wait_s(peer.address, self._clock.elapsed())
        if wait_s:
            self._wrong_keys.limited += 1
            raise too_many_wrong_keys(wait_s)


def _peer_of(scope: Scope) -> Peer:
    """Return the address and the verified client certificate of the connection on which this master got the request.

    If another master forwarded the request, this is that master and not the original client.
    """
    client = scope.get("client")
    return Peer(None if client is None else client[0], scope["state"].get("certificate"))


def standing(scope: Scope, catalog: Catalog, clock: Clock) -> Callable[[], Awaitable[bool]]:
    """Return an async function that returns True while the identity of this request is still accepted.

    A streaming response calls that function repeatedly, because a key may be revoked or expire meanwhile. If the
    database does not answer, the function returns True.
    """
    key: ApiKey = scope["state"]["key"]
    peer: Peer = scope["state"]["peer"]

    async def allowed() -> bool:
        try:
            kept = await catalog.key(key.key_id)
        except Transient:
            return True
        return kept is not None and kept.revoked_at_ms is None and refusal(kept, peer, clock.unix_ms()) is None

    return allowed


def too_many_wrong_keys(wait_s: int) -> ApiProblem:
    """Return the problem (429) for a request from an address that sent too many wrong keys.

    `wait_s`: the seconds until the address may try another key.
    """
    hint = (
        "keys and certificates that were right here a moment ago are still accepted; the setting wrong_keys sets the "
        "limit"
    )
    headers = {"Retry-After": str(wait_s)}
    return ApiProblem(
        ProblemKind.RATE_LIMITED, "too many wrong keys came from this address", hint=hint, headers=headers
    )


def unknown_key() -> ApiProblem:
    """Return the problem (401) for a request whose API key is unknown or was revoked."""
    return _unauthenticated("the API key is not known, or was revoked", _KEYS)


def _unauthenticated(detail: str, hint: str) -> ApiProblem:
    return ApiProblem(ProblemKind.UNAUTHENTICATED, detail, hint=hint, headers=_CHALLENGE)


def _refused(kept: ApiKey, why: IdentityRefusal) -> ApiProblem:
    match why:
        case IdentityRefusal.EXPIRED:
            return _unauthenticated(
                f"the {kept.kind} {kept.name!r} has ended", "an admin can give it another end, or issue one"
            )
        case IdentityRefusal.NETWORK:
            hint = (
                f"send it from one of the {kept.kind}'s networks; a proxy in front of the master counts by its own "
                "address"
            )
            detail = f"the {kept.kind} {kept.name!r} is not accepted from here"
            return ApiProblem(ProblemKind.FORBIDDEN, detail, hint=hint)
        case IdentityRefusal.CERTIFICATE:
            hint = "connect with the client certificate that is bound to the key"
            return ApiProblem(ProblemKind.FORBIDDEN, f"the key {kept.name!r} needs its certificate", hint=hint)
        case _:
            assert_never(why)


def key_of(authorization: bytes) -> str:
    """Return the API key in the value of an Authorization header; "" if it has none."""
    scheme, _, credentials = authorization.decode("latin-1").partition(" ")
    match scheme.lower():
        case "bearer":
            return credentials.strip()
        case "basic":
            return _password_of(credentials).strip()
        case _:
            return ""


def _password_of(credentials: str) -> str:
    """Return the password in the credentials of Basic authentication (RFC 7617); "" if they are malformed.

    Tools that accept only a URL, such as pywb, send an API key as this password: `http://key:orb_...@master:8081/`.
    """
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def first_key(now_ms: int) -> tuple[ApiKey, str]:
    """Make a new admin key for a cluster without keys.

    Return the record to store, and the key to show to the operator.
    """
    key_id, key = new_key()
    return ApiKey(key_id, "first-admin", Role.ADMIN, digest_of(key), now_ms, "first start"), key
