"""Lag: how much work waits in the frontier, and for how long."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.domain.frontier.states import Position
from shared.domain.ids import Partition


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many URLs, shards or messages wait, and the age of the oldest in seconds (None if there are none).

    `more`: there may be others, since only a bounded part was read.
    """

    count: int
    oldest_s: float | None
    more: bool = False


@dataclass(frozen=True, slots=True)
class FrontierLag:
    """How much work waits in the frontier at each stage, in one snapshot.

    `due`: URLs that only politeness, budgets and worker capacity delay. Its age is that of the queue that was not
    served for the longest time. `pending`: shards that no worker has begun. `in_flight`: shards that a worker has
    begun. Both ages count from the lease. `positions`: up to where reports were applied at the snapshot.
    """

    due: Waiting
    pending: Waiting
    in_flight: Waiting
    positions: Mapping[Partition, Position]
