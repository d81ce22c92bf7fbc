"""The audit log: who changed what, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One change in the audit log: at `at_ms` (Unix ms), `actor` did `action` to the object `target`.

    `actor` is the name and id of a key, `request` the id of the request. `before` and `after` are the object as stored
    before and after the change. None: the object did not exist then.
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
    """Which lines of the audit log to list: those that meet all conditions. A condition that is None admits every line.

    `actor`: the name of a key, or its id. `action`: the exact action, or a prefix if it ends in a dot. Times are Unix
    ms, `until_ms` is exclusive.
    """

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
