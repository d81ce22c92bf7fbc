"""Who may do what: roles, and API keys as they are issued and as they are kept.

A key is `orb_<key id>_<secret>`; the secret has 256 bits from the system's generator. Only SHA-256 of the whole is
kept: against a guess at 256 random bits a slow hash adds nothing, and it would put a price on every request.
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
    """Each may do what the ones before it may: read; change crawls, seeds and hosts; give and take keys."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        """Whether who has this role may do what `needed` may."""
        return _ORDER.index(self) >= _ORDER.index(needed)


_ORDER: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept. `digest` is SHA-256 of the key."""

    key_id: str
    name: str
    role: Role
    digest: bytes
    created_at_ms: int
    created_by: str
    revoked_at_ms: int | None = None

    @property
    def tag(self) -> str:
        """Names this version of the key's record."""
        return f"{self.key_id}-{self.revoked_at_ms or 0}"

    def __repr__(self) -> str:
        return f"<ApiKey {self.key_id} {self.name!r} {self.role}{' revoked' if self.revoked_at_ms else ''}>"


def new_key() -> tuple[str, str]:
    """A key's id and the key itself, which is shown once and kept nowhere."""
    key_id = secrets.token_hex(8)
    return key_id, f"orb_{key_id}_{secrets.token_urlsafe(32)}"


def key_id_of(key: str) -> str | None:
    """The id in a key, None where it has not the form of one."""
    match = _KEY.fullmatch(key)
    return None if match is None else match[1]


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def opens(key: str, kept: ApiKey) -> bool:
    """Whether `key` is the kept one and was not revoked; takes the same time wherever they differ."""
    return hmac.compare_digest(digest_of(key), kept.digest) and kept.revoked_at_ms is None
