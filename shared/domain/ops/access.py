"""Access control: roles, and API keys as they are issued and as they are stored.

A key is `orb_<key id>_<secret>`. The secret has 256 bits from the system's generator. Only SHA-256 of the whole key is
stored. A slow hash would add nothing against a guess at 256 random bits, and would cost time at every request.
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
    """What an API key may do. Each role may also do what the ones before it may.

    VIEWER: read. OPERATOR: change crawls, seeds, hosts, members and the configuration. ADMIN: issue and revoke keys,
    and read the audit log.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        """Return True if a key with this role may do everything that one with the role `needed` may."""
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as stored: `digest` is the SHA-256 of the whole key, which itself is not stored."""

    key_id: str
    name: str
    role: Role
    digest: bytes
    created_at_ms: int
    created_by: str
    revoked_at_ms: int | None = None

    @property
    def tag(self) -> str:
        """The tag (HTTP ETag) of this version of the key's record. Revoking the key changes it."""
        return f"{self.key_id}-{self.revoked_at_ms or 0}"

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
    return hashlib.sha256(key.encode()).digest()


def opens(key: str, kept: ApiKey) -> bool:
    """Return True if `key` is the API key stored as `kept`, and was not revoked. The comparison takes constant time."""
    return hmac.compare_digest(digest_of(key), kept.digest) and kept.revoked_at_ms is None
