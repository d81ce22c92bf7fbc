"""The port to what is kept for a while only."""

from dataclasses import dataclass
from typing import Protocol

from shared.domain.retention import Kept, Retention


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one pass came to: `rows` are gone; `place` is where the next one goes on, empty at the end of the walk."""

    rows: int
    place: str


class Retained(Protocol):
    """See the module. Errors as for the store."""

    async def forget(self, what: Kept, rules: Retention, now_ms: int, place: str) -> Forgotten:
        """Remove some of what is older than the rules say, in one bounded transaction; a walk begins at the place "".

        Looking costs the same at any size: a pass reads a bounded number of rows, whether they may go or not.
        """
        ...
