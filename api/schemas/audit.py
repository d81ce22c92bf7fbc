"""The response bodies of the audit log."""

import json
from datetime import datetime
from typing import Any

from api.schemas.model import Model, field
from shared.domain.ops.audit import AuditLine


class AuditEntry(Model):
    """One entry of the audit log: a change that was made over the API, with the values before and after it."""

    id: int = field("The number of the entry. Later entries have greater numbers.", 99)
    at: datetime = field("When the change was made.", "2030-01-01T08:12:30Z")
    actor: str = field("The name and id of the API key that made the request.", "terraform (5f3c0a2b9d1e4f67)")
    request: str = field("The id of the request, as in its answer and in the logs.", "0d3c5f1f4f1b4d6c8a52")
    action: str = field("What was done, as `<resource>.<verb>`.", "crawl.pause")
    target: str = field("What it was done to: the name of a crawl, or the id of a key, member or host.", "docs")
    before: Any = field("The values before the change. Null if there were none.", {"state": "running"})
    after: Any = field("The values after the change. Null if there are none.", {"state": "paused"})


def audit_body(line: AuditLine) -> AuditEntry:
    """Return one entry of the audit log as the API shows it."""
    return AuditEntry.of(line, before=_kept(line.before), after=_kept(line.after))


def _kept(text: str | None) -> Any:
    """Decode a stored value of the audit log. Return text that is not JSON unchanged, and None for None."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
