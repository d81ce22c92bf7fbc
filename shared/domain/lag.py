"""Lag: what waits, how much of it and for how long."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.domain.frontier import Position
from shared.domain.ids import Partition


@dataclass(frozen=True, slots=True)
class Waiting:
    """So many wait, the oldest for `oldest_s` (None when none waits).

    `more`: there may be others, since only a bounded part was looked at.
    """

    count: int
    oldest_s: float | None
    more: bool = False


@dataclass(frozen=True, slots=True)
class FrontierLag:
    """What waits in the frontier, in one snapshot.

    `due`: URLs that only politeness, budgets and the room of workers hold back; their oldest is the queue that was not
    served for the longest time. `pending`: shards that no worker has begun, `in_flight`: those that one has, both since
    they were leased. `positions`: how far reports were applied then.
    """

    due: Waiting
    pending: Waiting
    in_flight: Waiting
    positions: Mapping[Partition, Position]
