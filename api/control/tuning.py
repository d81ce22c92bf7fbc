"""This master's hot configuration and whether it is to drain, kept as they are published: nothing is started anew."""

from collections.abc import Callable
from dataclasses import replace

import structlog

from api.control.uploading import BUSY
from api.frontier.ownership import FrontierSettings
from api.frontier.room import AHEAD
from shared.domain.config import LogLevel, MasterTuning, changed_values, master_tuning
from shared.ports.coordinator import Snapshot, View
from shared.wire.keys import Keys
from shared.wire.wanted import NOTHING_SAID, wanted_after

log = structlog.get_logger("orb.control")

_RESYNC_S = 5.0


def started_as(frontier: FrontierSettings, log_level: LogLevel) -> MasterTuning:
    """The values that a master runs with while operators say nothing else."""
    return MasterTuning(
        grant_s=frontier.grant_s,
        log_level=log_level,
        dispatch_ahead=AHEAD,
        shards_at_once=frontier.shards_at_once,
        most_hosts=frontier.most_hosts,
        batch=frontier.batch,
        sweep_s=frontier.sweep_s,
        split_after=frontier.split_after,
        bury_after=frontier.bury_after,
        uploads_refused_at=BUSY,
    )


def limits_of(started: FrontierSettings, tuning: MasterTuning) -> FrontierSettings:
    """What owners keep to. For how long an earlier owner may have granted does not depend on what holds now: it may not
    have heard of it."""
    return replace(
        started,
        grant_s=tuning.grant_s,
        longest_grant_s=max(started.grant_s, started.longest_grant_s),
        shards_at_once=tuning.shards_at_once,
        most_hosts=tuning.most_hosts,
        batch=tuning.batch,
        sweep_s=tuning.sweep_s,
        split_after=tuning.split_after,
        bury_after=tuning.bury_after,
    )


class Tuning:
    """Follows `view` for the master `member`, which was started with the values of `started`.

    `apply` is given each further set of values; `drain` whether to drain, when that changes.
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
        return f"<Tuning {self._member} revision={self.revision} draining={self.draining}>"

    @property
    def revision(self) -> int:
        """The revision that this master runs."""
        return self.wanted.config.revision

    async def run(self) -> None:
        """Until cancelled."""
        snapshot = self._view.snapshot
        while True:
            self.follow(snapshot)
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def follow(self, snapshot: Snapshot) -> None:
        """Be as the snapshot says."""
        before = self.wanted
        self.wanted, complaints = wanted_after(before, snapshot, self._keys)
        if complaints != self._complaints:
            self._complaints = complaints
            for complaint in complaints:
                log.error("config.unreadable", master=self._member, reason=complaint, kept=self.revision)
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
            log.info("master.drains" if draining else "master.undrains", master=self._member)
