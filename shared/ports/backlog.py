"""The port to the reports in the broker that have not been applied."""

from collections.abc import Mapping
from typing import Protocol

from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import Partition


class Backlog(Protocol):
    """Reports of all partitions."""

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        """Return the number of reports after the positions, and the age of the oldest by the broker's own clock.

        Zero is exact. For a partition with unapplied reports, applied reports not yet purged count too. Raise Transient
        if the broker is away.
        """
        ...
