"""The audit log, as it is shown."""

import json
from datetime import datetime
from typing import Any

from pydantic import Field

from api.schemas.model import Model, moment_of
from shared.domain.audit import AuditLine


class AuditEntry(Model):
    """One act."""

    id: int
    at: datetime
    actor: str = Field(description="The key's name and id.", examples=["terraform (5f3c0a2b9d1e4f67)"])
    request: str = Field(description="The request's id, as in its answer and the logs.")
    action: str = Field(examples=["crawl.pause"])
    target: str = Field(examples=["docs"])
    before: Any = Field(description="What was there, where something was changed or taken away.")
    after: Any = Field(description="What was made of it.")


def audit_body(line: AuditLine) -> AuditEntry:
    """The act as it is shown."""
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
    """What was kept as JSON, as such; anything else as the text it is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
