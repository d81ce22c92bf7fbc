"""The protocol through which a master's other parts read the state of the cluster and wake the leader.

It returns the last known state at once, without I/O. `leader_address` may name a leader that has just died, so a
request forwarded to it needs a timeout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shared.domain.ids import Partition, Term
from shared.wire.keys import MemberRecord


@dataclass(frozen=True, slots=True)
class Members:
    """The registered members: the records of masters and workers, by member id."""

    masters: Mapping[str, MemberRecord]
    workers: Mapping[str, MemberRecord]


class ControlPlane(Protocol):
    """The interface through which a master's other parts read the state of its cluster and wake the leader."""

    def is_leader(self) -> bool:
        """Return True if this master leads. It returns False already some seconds before another could be elected."""

    def leader_address(self) -> str | None:
        """Return the address of the leader's HTTP API as registered: `host:port` or a URL. None without a leader."""

    def term(self) -> Term | None:
        """Return the term under which this master leads, None if it does not lead."""

    def members(self) -> Members:
        """Return the registered masters and workers."""

    def assignments(self) -> Mapping[Partition, str]:
        """Return a mapping from partition to the id of its owner. A partition without an owner is missing."""

    def wake(self) -> None:
        """Publish changes in SQL now instead of some seconds later, if this master leads.

        Call it after a change in SQL, from the event loop's thread only. It only starts the work, and never blocks.
        """
