"""Whether a master stands for election: one that drains leaves it to others, for as long as there are any who do it."""

from collections.abc import Mapping
from typing import Final

from api.control.membership import leader_in, members_in
from shared.ports.clock import Clock
from shared.ports.coordinator import Snapshot, View
from shared.wire.keys import Keys, MemberRecord

LEFT_FOR_S: Final = 5.0
"""How long a draining master watches that nobody leads before it stands all the same."""

Process = tuple[str, int]
"""A master's id, and when it started: started anew it is another one."""


def better_placed(me: str, masters: Mapping[str, MemberRecord]) -> frozenset[Process]:
    """The masters that should lead rather than `me`: where it drains, those that live and do not; else none."""
    mine = masters.get(me)
    if mine is None or not mine.draining:
        return frozenset()
    return frozenset((other.id, other.started_at_ms) for other in masters.values() if not other.draining)


class Standing:
    """Watches, for one master, whether it is to stand.

    Masters that were left the leadership and did not take it are passed over from then on, so that it is not given away
    again and again while nobody else leads.
    """

    def __init__(self, me: str, view: View, keys: Keys, clock: Clock, *, left_for_s: float = LEFT_FOR_S) -> None:
        self._me = me
        self._view = view
        self._keys = keys
        self._clock = clock
        self._left_for_s = left_for_s
        self._passed_over: frozenset[Process] = frozenset()

    def _better(self, snapshot: Snapshot) -> frozenset[Process]:
        better = better_placed(self._me, members_in(snapshot, self._keys).masters)
        if not better:
            self._passed_over = frozenset()
        return better - self._passed_over

    async def until_better(self) -> None:
        """Wait until another one should lead."""
        snapshot = self._view.snapshot
        while not self._better(snapshot):
            snapshot = await self._view.changed(snapshot, None)

    async def until_due(self) -> None:
        """Wait while another one should lead; not for ever where none does."""
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
