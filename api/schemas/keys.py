"""The request and response bodies of API keys."""

from datetime import datetime
from typing import Annotated

from pydantic import Strict, StringConstraints

from api.schemas.model import ONE_LINE, Model, RequestModel, field
from shared.domain.ops.access import ApiKey, Role


class KeyInput(RequestModel):
    """An API key to create."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=ONE_LINE)] = field(
        "A name for the user of the key. It appears in the audit log.", "terraform"
    )
    role: Annotated[Role, Strict(False)] = field(
        "`viewer` reads, `operator` also changes crawls, seeds and hosts, `admin` also manages API keys."
    )


class IssuedKey(Model):
    """A new API key. It is shown only once."""

    id: str = field("The key's id.", "5f3c0a2b9d1e4f67")
    name: str = field("The name of the key's user.", "terraform")
    role: Role = field("What the key may do.")
    key: str = field(
        "The key itself. Send it as `Authorization: Bearer <key>`. It is shown only once.",
        "orb_5f3c0a2b9d1e4f67_kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
    )
    created_at: datetime = field("When the key was created.", "2030-01-01T08:00:00Z")


class KeyView(Model):
    """An API key, without the key itself."""

    id: str = field("The key's id.", "5f3c0a2b9d1e4f67")
    name: str = field("The name of the key's user.", "terraform")
    role: Role = field("What the key may do.")
    created_at: datetime = field("When the key was created.", "2030-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first admin (76f4e1d9b2a0c3f5)")
    revoked_at: datetime | None = field("When the key was revoked. Null if it is valid.", "2030-01-01T08:12:30Z")


def key_body(key: ApiKey) -> KeyView:
    """Return an API key, without the key itself, as the API shows it."""
    return KeyView.of(key, id=key.key_id)
