"""The audit log: who did what to what, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One act. `actor` is the key's name and id, `request` the request's id; before and after are as they were kept."""

    id: int
    at_ms: int
    actor: str
    request: str
    action: str
    target: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which acts to list, all conditions together; times are Unix ms, `until_ms` exclusive.

    `actor`: the name of a key, or its id. `action`: exactly so, or all that begin so where it ends in a dot.
    """

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
