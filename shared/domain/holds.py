"""Holds on the reports: while one stands, owners purge nothing that they apply.

Who copies the reports of a running cluster takes a hold, then a snapshot of the tables, then copies what lies behind
the positions in the snapshot. An owner notes how far it has applied, then looks for holds, then purges up to what it
noted. So whatever is purged without regard to a hold was applied before the hold was taken, and is in the snapshot.

No two clocks are compared. A hold beats: its number grows; whoever looks counts the time since it saw the number
change, by its own clock, and the holder counts the time since it began to write its last beat.
"""

from collections.abc import Mapping
from typing import Final

HOLD_S: Final = 60.0
"""So long after its last beat a hold still counts: a holder that died holds nobody up for longer."""

BEAT_S: Final = 5.0
"""How often a holder beats."""

HOLDER_MARGIN_S: Final = 10.0
"""So much earlier the holder itself takes its hold for lost."""


class SeenHolds:
    """The holds as one owner has seen them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<SeenHolds {sorted(self._seen)}>"

    def standing(self, beats: Mapping[str, int], now: float) -> bool:
        """Whether one of the holds that there are (`beats`: the number of each) still counts at `now`, seconds."""
        self._seen = {
            holder: seen if (seen := self._seen.get(holder)) is not None and seen[0] == beat else (beat, now)
            for holder, beat in beats.items()
        }
        return any(now - since < HOLD_S for _, since in self._seen.values())


def held_until(beat_began: float) -> float:
    """Until when a holder may rely on its hold whose last answered beat it began to write then."""
    return beat_began + HOLD_S - HOLDER_MARGIN_S
