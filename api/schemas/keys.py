"""API keys."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, Strict, StringConstraints

from api.schemas.model import ONE_LINE, Model, Wanted, moment_of, when
from shared.domain.access import ApiKey, Role


class KeyInput(Wanted):
    """A key to create."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=ONE_LINE)] = Field(
        description="Who or what will use it.", examples=["terraform"]
    )
    role: Annotated[Role, Strict(False)] = Field(
        description="`viewer` reads, `operator` changes crawls, `admin` gives and takes keys."
    )


class IssuedKey(Model):
    """A new key, the only time it is shown."""

    id: str
    name: str
    role: Role
    key: str = Field(description="Send it as `Authorization: Bearer <key>`.")
    created_at: datetime


class KeyView(Model):
    """What is known of a key."""

    id: str
    name: str
    role: Role
    created_at: datetime
    created_by: str
    revoked_at: datetime | None


def key_body(key: ApiKey) -> KeyView:
    """The key as it is shown."""
    return KeyView(
        id=key.key_id,
        name=key.name,
        role=key.role,
        created_at=moment_of(key.created_at_ms),
        created_by=key.created_by,
        revoked_at=when(key.revoked_at_ms),
    )
