"""What a master's other parts may know of the cluster, and the one thing they may tell it.

Everything here is what this master saw last, answered at once and without I/O; `leader_address` may name a leader that
has just died, so whoever forwards to it limits its time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shared.domain.ids import Partition, Term
from shared.wire.keys import MemberRecord


@dataclass(frozen=True, slots=True)
class Members:
    """Who lives, by id."""

    masters: Mapping[str, MemberRecord]
    workers: Mapping[str, MemberRecord]


class ControlPlane(Protocol):
    """This master's place in the cluster."""

    def is_leader(self) -> bool:
        """Whether this master leads and may act now: false as soon as its lease nears its end."""
        ...

    def leader_address(self) -> str | None:
        """Where the leader's HTTP API is, as `host:port` or a URL, just as it registered it; None without a leader."""
        ...

    def term(self) -> Term | None:
        """The leadership's term (epoch, revision at which it was won), None while this master does not lead."""
        ...

    def members(self) -> Members:
        """The masters and workers that live."""
        ...

    def assignments(self) -> Mapping[Partition, str]:
        """The owner of each partition that has one."""
        ...

    def wake(self) -> None:
        """SQL has changed: let the leader, if it is this master, look at once instead of at its next tick. Never
        blocks, and may be called from the event loop's thread only."""
        ...


class Alone:
    """`ControlPlane` of the one process of a crawl without a cluster: it leads, and it owns everything."""

    def __init__(self, member: MemberRecord, term: Term, partitions: int) -> None:
        self._member = member
        self._term = term
        self._partitions = partitions

    def is_leader(self) -> bool:
        return True

    def leader_address(self) -> str | None:
        return self._member.address or None

    def term(self) -> Term | None:
        return self._term

    def members(self) -> Members:
        return Members({self._member.id: self._member}, {})

    def assignments(self) -> Mapping[Partition, str]:
        return {Partition(p): self._member.id for p in range(self._partitions)}

    def wake(self) -> None:
        """Nobody waits: the one crawl of the process looks by itself."""
