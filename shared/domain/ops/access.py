"""Access control: roles, and API keys as they are issued and as they are stored.

A key is `orb_<key id>_<secret>`. The secret has 256 bits from the system's generator. Only SHA-256 of the whole key is
stored.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_KEY: Final = re.compile(r"orb_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


class Role(StrEnum):
    """What an API key may do. Each role includes the rights of the roles before it.

    VIEWER: read. OPERATOR: change crawls, seeds, hosts, members and the configuration. ADMIN: issue and revoke keys,
    and read the audit log.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        """Return True if a key with this role may do everything that a key with the role `needed` may do."""
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


class IdentityKind(StrEnum):
    """How a client proves an identity.

    KEY: with a secret API key. If a client certificate is bound to the key, the client needs both. CERTIFICATE: with a
    client certificate alone; there is no secret.
    """

    KEY = "key"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An identity as stored: an API key, or a client certificate that needs no key.

    - `digest`: the SHA-256 of the whole key; the key itself is not stored. The digest of a certificate identity matches
      no key.
    - `expires_at_ms`: when the identity ends (Unix ms). None: never.
    - `networks`: the networks of clients that may use the identity, in canonical CIDR notation. Empty: all.
    - `certificate`: the name that the client's certificate must have. None: no certificate is needed.
    - `spec`: the JSON of the declaration as the request had it. None if no request declared the identity.
    - `version`: the number of the declaration.
    - `last_used_at_ms`: the newest use that is stored (Unix ms). Uses are stored once a minute, so the uses of the last
      minute may be missing. None: no use is stored.
    """

    key_id: str
    name: str
    role: Role
    digest: bytes
    created_at_ms: int
    created_by: str
    revoked_at_ms: int | None = None
    kind: IdentityKind = IdentityKind.KEY
    expires_at_ms: int | None = None
    networks: tuple[str, ...] = ()
    certificate: str | None = None
    spec: str | None = None
    version: int = 1
    last_used_at_ms: int | None = None

    @property
    def tag(self) -> str:
        """The tag (HTTP ETag) of this version of the record.

        It changes when the key is declared differently or revoked.
        """
        return f"{self.key_id}-{self.revoked_at_ms or 0}-{self.version}"

    @property
    def shown_tag(self) -> str:
        """The ETag of the record as the API shows it: `tag`, a dot, and the time of the last use.

        If-Match ignores that time.
        """
        return f"{self.tag}.{self.last_used_at_ms or 0}"

    def may_become(self, kind: IdentityKind) -> bool:
        """Return True if a new declaration may change this identity's kind to `kind`.

        A certificate cannot become a key, because its client was never given a secret.
        """
        return self.kind is kind or kind is not IdentityKind.KEY

    def __repr__(self) -> str:
        return f"<ApiKey {self.key_id} {self.name!r} {self.role}{' revoked' if self.revoked_at_ms else ''}>"


def new_key() -> tuple[str, str]:
    """Return a new API key's id and the key itself, which is shown once and not stored."""
    key_id = secrets.token_hex(8)
    return key_id, f"orb_{key_id}_{secrets.token_urlsafe(32)}"


def key_id_of(key: str) -> str | None:
    """Return the id contained in an API key, or None if the key has the wrong form."""
    match = _KEY.fullmatch(key)
    return None if match is None else match[1]


def digest_of(key: str) -> bytes:
    """Return the SHA-256 of an API key, which is stored instead of the key."""
    # A slow hash would cost time at every request. It is not needed, because 256 random bits cannot be guessed.
    return hashlib.sha256(key.encode()).digest()


def opens(key: str, kept: ApiKey) -> bool:
    """Return True if `key` is the API key of the stored identity `kept`, and `kept` is not revoked.

    Expiry and networks are not checked. A certificate identity has no key. The comparison takes constant time.
    """
    if kept.kind is not IdentityKind.KEY:
        return False
    return hmac.compare_digest(digest_of(key), kept.digest) and kept.revoked_at_ms is None
