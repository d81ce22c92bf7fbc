"""Purge holds on the reports: while a hold is active, owners purge no reports that they apply.

A backup of a running cluster takes a hold, then a snapshot of the tables. Then it copies the reports behind the
positions in the snapshot. An owner notes how far it has applied, then looks for holds, then purges up to the noted
position. So everything that an owner purges without seeing the hold was applied before the hold was taken, and is in
the snapshot.

No two clocks are compared. The holder increases the hold's number with each beat. An observer counts the time since it
saw the number change, by its own clock. The holder counts the time since it began to write its last beat.
"""

from collections.abc import Mapping
from typing import Final

HOLD_S: Final = 60.0
"""Seconds after its last beat for which a hold counts. A holder that died delays purging for no longer than this."""

BEAT_S: Final = 5.0
"""Seconds between a holder's beats."""

HOLDER_MARGIN_S: Final = 10.0
"""The holder itself treats its hold as lost this many seconds earlier."""


class ObservedHolds:
    """The holds as one owner has seen them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<ObservedHolds {sorted(self._seen)}>"

    def standing(self, beats: Mapping[str, int], now: float) -> bool:
        """Return True if a hold still counts at `now` (seconds). `beats` has the number of each existing hold."""
        self._seen = {
            holder: seen if (seen := self._seen.get(holder)) is not None and seen[0] == beat else (beat, now)
            for holder, beat in beats.items()
        }
        return any(now - since < HOLD_S for _, since in self._seen.values())


def held_until(beat_began: float) -> float:
    """Return until when a holder may rely on its hold, if it began to write its last answered beat at `beat_began`."""
    return beat_began + HOLD_S - HOLDER_MARGIN_S
