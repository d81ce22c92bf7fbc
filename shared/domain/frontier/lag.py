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
    """How much work waits in the frontier at each stage, and up to where the reports are applied, in one snapshot.

    - `due`: URLs that are due, and wait only for politeness, the budget or a free worker. Only crawls that are seeding
      or running have such URLs. `due.oldest_s` is measured by queue (the URLs of one crawl on one host), not by URL.
      Each queue with due URLs has waited since a shard of the queue was last sent out or came back. `due.oldest_s` is
      the longest of these waits.
    - `pending`: shards that no worker has begun. `pending.oldest_s` is the time since the oldest of them was leased.
    - `in_flight`: shards that a worker has begun. `in_flight.oldest_s` is the time since the oldest of them was leased.
    - `positions`: for each partition, the position in its reports up to which its owner has applied them. Reports after
      this position wait, too, but are not counted here.
    """

    due: Waiting
    pending: Waiting
    in_flight: Waiting
    positions: Mapping[Partition, Position]
