"""The audit log: which actor changed what, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One change. `actor` is the key's name and id, `request` the request's id. `before` and `after` are as stored
    then.
    """

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
    """Which changes to list, all conditions together. Times are Unix ms, `until_ms` is exclusive.

    `actor`: the name of a key, or its id. `action`: the exact action, or a prefix if it ends in a dot.
    """

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
