"""A control plane of one master, which leads and owns every partition."""

from collections.abc import Mapping

from api.members.control_plane import Members
from shared.domain.ids import Partition, Term
from shared.wire.keys import MemberRecord


class SingleMaster:
    """`api.members.control_plane.ControlPlane` of a master that is alone."""

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
        """Do nothing: nothing waits."""
