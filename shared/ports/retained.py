"""The port to the rows that are kept for a limited time."""

from dataclasses import dataclass
from typing import Protocol

from shared.domain.ops.retention import RetainedKind, Retention


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a pass: `rows` removed, and the `place` where the next pass continues (empty: the walk is over)."""

    rows: int
    place: str


class Retained(Protocol):
    """See the module. Errors as for the store."""

    async def forget(self, what: RetainedKind, rules: Retention, now_ms: int, place: str) -> SweepResult:
        """Remove some rows older than the rules allow, in one bounded transaction. A walk begins at the place "".

        A pass reads a bounded number of rows, expired or not, so it costs the same at any table size.
        """
        ...
