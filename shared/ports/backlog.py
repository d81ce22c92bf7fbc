"""The port to what stands in the broker and has not been applied."""

from collections.abc import Mapping
from typing import Protocol

from shared.domain.frontier import Position
from shared.domain.ids import Partition
from shared.domain.lag import Waiting


class Backlog(Protocol):
    """Reports of all partitions."""

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        """Reports behind the positions, and the age of the oldest by the broker's own clock.

        Zero is exact. Of a partition that is behind, those are counted too that are applied and not purged yet.
        Transient when the broker is away.
        """
        ...
