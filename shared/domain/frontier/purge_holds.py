"""Purge holds on the reports: while a hold is active, owners do not delete (purge) the reports that they have applied.

A backup of a running cluster takes these steps:

1. Take a hold.
2. Take a snapshot of the tables.
3. Copy the reports after the positions in the snapshot.

An owner takes these steps in this order. So it never purges a report that a backup must still copy:

1. Read its position in the reports.
2. Look for holds.
3. If there is no active hold, purge the reports up to that position.

A hold is active while its beat number grows. The holder increases the number every few seconds. Holder and owner each
measure the time since the last beat with their own clock; the two clocks are never compared.
"""

from collections.abc import Mapping
from typing import Final

HOLD_S: Final = 60.0
"""A hold is active for this many seconds after its last beat.

So a holder that has died delays the purge for at most this long."""

BEAT_S: Final = 5.0
"""Seconds between two beats. With each beat a holder shows that it is alive."""

HOLDER_MARGIN_S: Final = 10.0
"""A safety margin: a holder stops relying on its hold this many seconds before owners may ignore the hold.

Owners ignore a hold HOLD_S = 60 seconds after its last beat. So a holder treats its hold as lost 50 seconds after it
began to write its last acknowledged beat."""


class ObservedHolds:
    """The purge holds that one owner has seen.

    For each hold it stores the last beat number, and the time at which the owner first saw this number.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<ObservedHolds {sorted(self._seen)}>"

    def standing(self, beats: Mapping[str, int], now: float) -> bool:
        """Return True if a purge hold is active: its beat number changed within the last `HOLD_S` seconds.

        `beats`: the present beat number of each hold, by holder. `now`: the owner's clock in seconds.
        """
        self._seen = {
            holder: seen if (seen := self._seen.get(holder)) is not None and seen[0] == beat else (beat, now)
            for holder, beat in beats.items()
        }
        return any(now - since < HOLD_S for _, since in self._seen.values())


def held_until(beat_began: float) -> float:
    """Return the time until which a holder may rely on its purge hold.

    The holder writes beats to keep the hold active. `beat_began`: when it began to write the last beat that was
    acknowledged. Both times are in seconds of the holder's clock.
    """
    return beat_began + HOLD_S - HOLDER_MARGIN_S
