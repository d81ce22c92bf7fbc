"""Decide whether a master campaigns. A draining master leaves the leadership to others while one of them leads."""

from collections.abc import Mapping
from typing import Final

from api.members.membership import leader_in, members_in
from shared.ports.clock import Clock
from shared.ports.coordinator import Snapshot, View
from shared.wire.keys import Keys, MemberRecord

LEFT_FOR_S: Final = 5.0
"""Seconds without a leader after which a draining master campaigns itself."""

Process = tuple[str, int]
"""A master's id and start time (Unix ms): a restarted master is another process."""


def better_candidates(me: str, masters: Mapping[str, MemberRecord]) -> frozenset[Process]:
    """Return the masters that should lead instead of `me`, each as its id and start time.

    If `me` drains, these are the registered masters that do not drain; otherwise there are none.
    """
    mine = masters.get(me)
    if mine is None or not mine.draining:
        return frozenset()
    return frozenset((other.id, other.started_at_ms) for other in masters.values() if not other.draining)


class Candidacy:
    """Decides for one master whether it should campaign.

    A draining master waits while there are better candidates: masters that do not drain. If there is no leader for
    `left_for_s` seconds, it campaigns all the same.
    """

    def __init__(self, me: str, view: View, keys: Keys, clock: Clock, *, left_for_s: float = LEFT_FOR_S) -> None:
        self._me = me
        self._view = view
        self._keys = keys
        self._clock = clock
        self._left_for_s = left_for_s
        self._passed_over: frozenset[Process] = frozenset()

    def _better(self, snapshot: Snapshot) -> frozenset[Process]:
        better = better_candidates(self._me, members_in(snapshot, self._keys).masters)
        if not better:
            self._passed_over = frozenset()
        return better - self._passed_over

    async def until_better(self) -> None:
        """Wait until another master should lead instead of this one."""
        snapshot = self._view.snapshot
        while not self._better(snapshot):
            snapshot = await self._view.changed(snapshot, None)

    async def until_due(self) -> None:
        """Wait while another master should lead instead of this one.

        Return also after `left_for_s` seconds without a leader: then this master may campaign itself.
        """
        snapshot = self._view.snapshot
        since: float | None = None
        while better := self._better(snapshot):
            now = self._clock.elapsed()
            left_s: float | None = None
            if leader_in(snapshot, self._keys) is not None:
                since = None
            else:
                since = now if since is None else since
                left_s = self._left_for_s - (now - since)
                if left_s <= 0:
                    self._passed_over |= better
                    return
            snapshot = await self._view.changed(snapshot, left_s)
