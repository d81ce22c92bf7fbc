"""What a master sees of the members while it shows a crawl, as a test says."""

from collections.abc import Mapping
from typing import cast

from api.members.control_plane import ControlPlane, Members
from api.members.member_stats import MemberStats
from shared.adapters.local.clock import SystemClock
from shared.domain.ids import Term
from shared.ports.clock import Clock
from shared.wire.keys import MemberRecord
from tests.support.single_master import SingleMaster


class Workers(SingleMaster):
    """A control plane that sees these workers, whatever they are changed to."""

    def __init__(self, workers: Mapping[str, MemberRecord] | None = None) -> None:
        super().__init__(MemberRecord("m1", "1", 1), Term(1), 1)
        self.workers = dict(workers or {})

    def members(self) -> Members:
        return Members({}, self.workers)


class FixedSurroundings:
    """`api.schemas.crawls.Surroundings`."""

    def __init__(self, roster: MemberStats | None = None, workers: Mapping[str, MemberRecord] | None = None) -> None:
        self.roster = roster or MemberStats()
        self.seen = Workers(workers)
        self.plane: ControlPlane = self.seen
        self.clock: Clock = cast(Clock, SystemClock())
