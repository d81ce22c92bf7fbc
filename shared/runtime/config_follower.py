"""Applies the published hot configuration and drain requests to this member, without a restart."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import structlog

from shared.domain.ops.config import HotConfig, MasterTuning, MemberRole, WorkerTuning, changed_values
from shared.ports.coordinator import Snapshot, View
from shared.wire.desired_state import NOTHING_SAID, desired_state_after
from shared.wire.keys import Keys

log = structlog.get_logger(__name__)

T = TypeVar("T", MasterTuning, WorkerTuning)

_RESYNC_S: Final = 5.0


class ConfigFollower(Generic[T]):
    """Applies hot configuration and drain requests to one member, as published in `view` (watched coordinator keys).

    The values of the type T are the member's settings that may change while it runs.

    - `started`: the values with which the member was started.
    - `tuned`: returns the values to use, from a hot configuration and `started`.
    - `apply`: called with the values to use each time the hot configuration changes.
    - `drain`: called with True when a drain begins, and with False when it ends.
    """

    def __init__(
        self,
        view: View,
        keys: Keys,
        role: MemberRole,
        member: str,
        started: T,
        tuned: Callable[[HotConfig, T], T],
        *,
        apply: Callable[[T], None],
        drain: Callable[[bool], None],
    ) -> None:
        self._view = view
        self._keys = keys
        self._role = role
        self._member = member
        self._started: T = started
        self._tuned: Callable[[HotConfig, T], T] = tuned
        self._apply: Callable[[T], None] = apply
        self._drain = drain
        self._complaints: list[str] = []
        self.wanted = NOTHING_SAID
        self.current: T = started
        self.draining = False

    def __repr__(self) -> str:
        return f"<ConfigFollower {self._member} revision={self.revision} draining={self.draining}>"

    @property
    def revision(self) -> int:
        """The revision of the hot configuration that this member uses, 0 before it has read one."""
        return self.wanted.config.revision

    async def run(self) -> None:
        """Apply the present state of the view and each published change, until cancelled."""
        snapshot = self._view.snapshot
        while True:
            self.follow(snapshot)
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def follow(self, snapshot: Snapshot) -> None:
        """Apply the hot configuration and the drain requests in the snapshot, if they differ from the present ones.

        If a record is missing or unreadable, the present values stay. Log an unreadable record.
        """
        before = self.wanted
        self.wanted, complaints = desired_state_after(before, snapshot, self._keys)
        if complaints != self._complaints:
            self._complaints = complaints
            for complaint in complaints:
                log.error("config.rejected", member=self._member, reason=complaint, kept_revision=self.revision)
        if self.wanted.config != before.config:
            before_values, self.current = self.current, self._tuned(self.wanted.config.config, self._started)
            self._apply(self.current)
            changes = changed_values(before_values, self.current)
            log.info("config.applied", member=self._member, revision=self.revision, changes=changes)
        draining = self._member in self.wanted.drains.of(self._role)
        if draining != self.draining:
            self.draining = draining
            self._drain(draining)
            log.info("drain.started" if draining else "drain.cancelled", member=self._member)
