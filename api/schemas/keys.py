"""The request and response bodies of API keys."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, Strict, StringConstraints

from api.schemas.model import ONE_LINE, Model, RequestModel, moment_of, when
from shared.domain.ops.access import ApiKey, Role


class KeyInput(RequestModel):
    """An API key to create."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=ONE_LINE)] = Field(
        description="A name for the user of the key. It appears in the audit log.", examples=["terraform"]
    )
    role: Annotated[Role, Strict(False)] = Field(
        description="`viewer` reads, `operator` also changes crawls, seeds and hosts, `admin` also manages API keys."
    )


class IssuedKey(Model):
    """A new API key. It is shown only once."""

    id: str = Field(description="The key's id.", examples=["5f3c0a2b9d1e4f67"])
    name: str = Field(description="The name of the key's user.", examples=["terraform"])
    role: Role = Field(description="What the key may do.")
    key: str = Field(
        description="The key itself. Send it as `Authorization: Bearer <key>`. It is shown only once.",
        examples=["orb_5f3c0a2b9d1e4f67_kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"],
    )
    created_at: datetime = Field(description="When the key was created.", examples=["2030-01-01T08:00:00Z"])


class KeyView(Model):
    """An API key, without the key itself."""

    id: str = Field(description="The key's id.", examples=["5f3c0a2b9d1e4f67"])
    name: str = Field(description="The name of the key's user.", examples=["terraform"])
    role: Role = Field(description="What the key may do.")
    created_at: datetime = Field(description="When the key was created.", examples=["2030-01-01T08:00:00Z"])
    created_by: str = Field(
        description="The name and id of the API key that created it.", examples=["first admin (76f4e1d9b2a0c3f5)"]
    )
    revoked_at: datetime | None = Field(
        description="When the key was revoked. Null if it is valid.", examples=["2030-01-01T08:12:30Z"]
    )


def key_body(key: ApiKey) -> KeyView:
    """Return an API key, without the key itself, as the API shows it."""
    return KeyView(
        id=key.key_id,
        name=key.name,
        role=key.role,
        created_at=moment_of(key.created_at_ms),
        created_by=key.created_by,
        revoked_at=when(key.revoked_at_ms),
    )
