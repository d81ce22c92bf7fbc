"""The port through which rows are deleted after their retention time."""

from dataclasses import dataclass
from typing import Protocol

from shared.domain.ops.retention import RetainedKind, Retention


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of one `Retained.forget`: the number of `rows` deleted, and the `place` to pass to the next call.

    `place` is empty when the end of the table was reached.
    """

    rows: int
    place: str


class Retained(Protocol):
    """Deletes rows after their retention time, in many small transactions. Its errors are those of the store."""

    async def forget(self, what: RetainedKind, rules: Retention, now_ms: int, place: str) -> SweepResult:
        """Delete some rows of the kind `what` that are older than `rules` allow, in one bounded transaction.

        Pass an empty `place` to begin, and then the `place` of the previous result. A call reads a bounded number of
        rows, expired or not. So its cost does not depend on the size of the table.
        """
