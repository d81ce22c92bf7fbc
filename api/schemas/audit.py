"""The response bodies of the audit log."""

import json
from datetime import datetime
from typing import Any

from pydantic import Field

from api.schemas.model import Model, moment_of
from shared.domain.ops.audit import AuditLine


class AuditEntry(Model):
    """A change that was made over the API."""

    id: int = Field(description="The number of the entry. Later entries have greater numbers.", examples=[99])
    at: datetime = Field(description="When the change was made.", examples=["2030-01-01T08:12:30Z"])
    actor: str = Field(
        description="The name and id of the API key that made the request.", examples=["terraform (5f3c0a2b9d1e4f67)"]
    )
    request: str = Field(
        description="The id of the request, as in its answer and in the logs.", examples=["0d3c5f1f4f1b4d6c8a52"]
    )
    action: str = Field(description="What was done, as `<resource>.<verb>`.", examples=["crawl.pause"])
    target: str = Field(
        description="What it was done to: the name of a crawl, or the id of a key, member or host.", examples=["docs"]
    )
    before: Any = Field(
        description="The values before the change. Null if there were none.", examples=[{"state": "running"}]
    )
    after: Any = Field(
        description="The values after the change. Null if there are none.", examples=[{"state": "paused"}]
    )


def audit_body(line: AuditLine) -> AuditEntry:
    """Return an entry of the audit log as the API shows it."""
    return AuditEntry(
        id=line.id,
        at=moment_of(line.at_ms),
        actor=line.actor,
        request=line.request,
        action=line.action,
        target=line.target,
        before=_kept(line.before),
        after=_kept(line.after),
    )


def _kept(text: str | None) -> Any:
    """Return stored JSON decoded, and any other text unchanged."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
