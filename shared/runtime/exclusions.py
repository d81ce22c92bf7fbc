"""Follows the exclusions that the leader publishes, so that a member applies each change immediately."""

from collections.abc import Callable

import structlog

from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.ports.coordinator import Entry, Snapshot, View
from shared.wire.desired_state import exclusions_of
from shared.wire.keys import EXCLUSIONS, Keys
from shared.wire.messages import Malformed

log = structlog.get_logger(__name__)

_RESYNC_S = 5.0


class ExclusionsFollower:
    """Stores in `current` the exclusions that the leader last published. `view`: watched keys of the coordinator.

    `changed` is called with the new exclusions after each change. If the published record is missing or unreadable, the
    earlier exclusions stay in force. A target that this version cannot read is logged, and all others are applied.
    """

    def __init__(self, view: View, keys: Keys, *, changed: Callable[[Exclusions], None] = lambda current: None) -> None:
        self.current = NO_EXCLUSIONS
        self._view = view
        self._key = keys.setting(EXCLUSIONS)
        self._changed = changed
        self._entry: Entry | None = None

    def __repr__(self) -> str:
        return f"<ExclusionsFollower {self.current!r}>"

    async def run(self) -> None:
        """Apply the present exclusions of the view and each published change, until cancelled."""
        snapshot = self._view.snapshot
        while True:
            self.follow(snapshot)
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def follow(self, snapshot: Snapshot) -> None:
        """Apply the exclusions in a snapshot of the view, if their published record has changed.

        If the record cannot be read, log that and keep the earlier exclusions.
        """
        entry = snapshot.entries.get(self._key)
        if entry is None or entry == self._entry:
            return
        self._entry = entry
        try:
            self.current = exclusions_of(entry)
        except Malformed as error:
            log.error("exclusions.rejected", reason=str(error), kept_revision=self.current.revision)
            return
        if unread := self.current.unread:
            target, refused = next(iter(unread.items()))
            log.error("exclusions.skipped", count=len(unread), target=target, reason=str(refused))
        log.info("exclusions.applied", revision=self.current.revision)
        self._changed(self.current)
