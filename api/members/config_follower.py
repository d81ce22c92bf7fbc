"""Apply the published hot configuration and drain to this master without a restart."""

from collections.abc import Callable
from dataclasses import replace

import structlog

from api.crawls.seed_upload import BUSY
from api.frontier.capacity import AHEAD
from api.frontier.ownership import FrontierSettings
from shared.domain.ops.config import LogLevel, MasterTuning, changed_values, master_tuning
from shared.ports.coordinator import Snapshot, View
from shared.wire.desired_state import NOTHING_SAID, desired_state_after
from shared.wire.keys import Keys

log = structlog.get_logger("orb.control")

_RESYNC_S = 5.0


def started_as(frontier: FrontierSettings, log_level: LogLevel) -> MasterTuning:
    """Return the values that a master was started with. It runs with them unless the hot configuration has others."""
    return MasterTuning(
        grant_s=frontier.grant_s,
        log_level=log_level,
        dispatch_ahead_ratio=AHEAD,
        dispatch_batch_size=frontier.dispatch_batch_size,
        max_hosts=frontier.max_hosts,
        report_batch_size=frontier.batch,
        sweep_interval_s=frontier.sweep_interval_s,
        split_after_expiries=frontier.split_after_expiries,
        dead_letter_after_expiries=frontier.dead_letter_after_expiries,
        seed_upload_refusal_ratio=BUSY,
    )


def limits_of(started: FrontierSettings, tuning: MasterTuning) -> FrontierSettings:
    """Return the owners' settings: those of `started`, changed by the hot configuration in `tuning`.

    `longest_grant_s` does not shrink with the current `grant_s`: an earlier owner may have granted before it changed.
    """
    return replace(
        started,
        grant_s=tuning.grant_s,
        longest_grant_s=max(started.grant_s, started.longest_grant_s),
        dispatch_batch_size=tuning.dispatch_batch_size,
        max_hosts=tuning.max_hosts,
        batch=tuning.report_batch_size,
        sweep_interval_s=tuning.sweep_interval_s,
        split_after_expiries=tuning.split_after_expiries,
        dead_letter_after_expiries=tuning.dead_letter_after_expiries,
    )


class MasterConfigFollower:
    """Applies the published hot configuration and drain to the master `member`. `started` are its values at the start.

    `apply` is called with each new set of values, and `drain` with True or False when the desired drain changes.
    """

    def __init__(
        self,
        view: View,
        keys: Keys,
        member: str,
        started: MasterTuning,
        *,
        apply: Callable[[MasterTuning], None],
        drain: Callable[[bool], None],
    ) -> None:
        self._view = view
        self._keys = keys
        self._member = member
        self._started = started
        self._apply = apply
        self._drain = drain
        self.wanted = NOTHING_SAID
        self._complaints: list[str] = []
        self.current = started
        self.draining = False

    def __repr__(self) -> str:
        return f"<MasterConfigFollower {self._member} revision={self.revision} draining={self.draining}>"

    @property
    def revision(self) -> int:
        """The revision of the hot configuration that this master runs."""
        return self.wanted.config.revision

    async def run(self) -> None:
        """Apply each published change until cancelled."""
        snapshot = self._view.snapshot
        while True:
            self.follow(snapshot)
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def follow(self, snapshot: Snapshot) -> None:
        """Apply the hot configuration and drain in the snapshot.

        A part that is missing or unreadable stays as it was.
        """
        before = self.wanted
        self.wanted, complaints = desired_state_after(before, snapshot, self._keys)
        if complaints != self._complaints:
            self._complaints = complaints
            for complaint in complaints:
                log.error("config.rejected", master=self._member, reason=complaint, kept_revision=self.revision)
        if self.wanted.config != before.config:
            tuning = master_tuning(self.wanted.config.config, self._started)
            changes = changed_values(self.current, tuning)
            self.current = tuning
            self._apply(tuning)
            log.info("config.applied", master=self._member, revision=self.revision, changes=changes)
        draining = self._member in self.wanted.drains.masters
        if draining != self.draining:
            self.draining = draining
            self._drain(draining)
            log.info("drain.started" if draining else "drain.cancelled", master=self._member)
