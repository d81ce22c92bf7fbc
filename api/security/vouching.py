"""Sign the client's address and certificate in a request that a master forwards to the leader.

The leader is connected to the other master and not to the client, so it cannot see the client's address itself.

The signature is an HMAC. Its secret is in the cluster's database, where only masters can read it. The signature covers
the client, the method, the path, the digest of the API key and the time. It is valid for `VALID_MS`.
"""

import base64
import hashlib
import hmac
from typing import Final

import msgspec
from starlette.types import Scope

from api.http.headers import header_of
from shared.domain.ops.identities import Peer, PeerCertificate
from shared.ports.catalog import Catalog
from shared.ports.clock import Clock

CLIENT: Final = b"x-orb-client"
VALID_MS: Final = 300_000
"""Maximum difference, in ms, between the time of a signature and the time at which another master reads it."""
_SECRET: Final = "forwarding"


class _Client(msgspec.Struct, frozen=True):
    at_ms: int
    address: str | None
    names: list[str] | None


class Vouching:
    """Signs the address and certificate of a client, and verifies what another master of the cluster signed."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._secret: bytes | None = None

    def __repr__(self) -> str:
        return f"<Vouching {'with' if self._secret else 'without'} the secret>"

    async def sign(self, scope: Scope, peer: Peer) -> bytes:
        """Return a signed description of the client `peer`, as the value of the header x-orb-client.

        The signature also covers the method, path and `Authorization` header of the request (`scope`).
        Raise Transient if the database does not answer.
        """
        names = None if peer.certificate is None else sorted(peer.certificate.names)
        said = msgspec.json.encode(_Client(self._clock.unix_ms(), peer.address, names))
        shown = base64.urlsafe_b64encode(said)
        return b"%b.%b" % ((await self._mac(scope, shown)).encode(), shown)

    async def read(self, scope: Scope) -> Peer | None:
        """Return the client in the header x-orb-client, if a master signed it for this request. Otherwise return None.

        Return None as well if the signature's time differs by more than `VALID_MS` from now. Raise Transient if the
        database does not answer.
        """
        given, _, said = header_of(scope, CLIENT).partition(b".")
        if not said or not hmac.compare_digest(given, (await self._mac(scope, said)).encode()):
            return None
        client = msgspec.json.decode(base64.urlsafe_b64decode(said), type=_Client)
        if abs(self._clock.unix_ms() - client.at_ms) > VALID_MS:
            return None
        return Peer(client.address, None if client.names is None else PeerCertificate(frozenset(client.names)))

    async def _mac(self, scope: Scope, said: bytes) -> str:
        if self._secret is None:
            self._secret = await self._catalog.secret(_SECRET)
        digest = hashlib.sha256(header_of(scope, b"authorization")).hexdigest()
        signed = b"\n".join((scope["method"].encode(), scope["path"].encode(), digest.encode(), said))
        return hmac.digest(self._secret, signed, "sha256").hex()
