"""The port by which rows that are kept for a limited time are removed."""

from dataclasses import dataclass
from typing import Protocol

from shared.domain.ops.retention import RetainedKind, Retention


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of one `Retained.forget`: the number of `rows` removed, and the `place` to pass to the next call.

    The `place` is empty when the whole table was read.
    """

    rows: int
    place: str


class Retained(Protocol):
    """Removes rows that are kept for a limited time, in many small steps. Errors as for the store."""

    async def forget(self, what: RetainedKind, rules: Retention, now_ms: int, place: str) -> SweepResult:
        """Remove some rows of the kind `what` that are older than `rules` allow, in one bounded transaction.

        Begin with the place "" and go on with the `place` of each result. A call reads a bounded number of rows,
        expired or not, so it costs the same at any table size.
        """
