"""Lag: how much work waits in the frontier, and for how long."""

from collections.abc import Mapping

from msgspec import Struct

from shared.domain.frontier.states import Position
from shared.domain.ids import Partition


class Waiting(Struct, frozen=True):
    """How many URLs, shards or messages wait, and the age of the oldest in seconds (None if none waits).

    `more`: the count is a lower bound, because the read was limited.
    """

    count: int
    oldest_s: float | None
    more: bool = False


class FrontierLag(Struct, frozen=True):
    """How much work waits in the frontier at each stage, in one snapshot.

    - `due`: URLs that are due, and wait only for politeness, the budget or a free worker. The age counts from the time
      at which their queue was last served.
    - `pending`: shards that no worker has begun. The age counts from the lease.
    - `in_flight`: shards that a worker has begun. The age counts from the lease.
    - `positions`: the position up to which each partition had applied its reports.
    """

    due: Waiting
    pending: Waiting
    in_flight: Waiting
    positions: Mapping[Partition, Position]
