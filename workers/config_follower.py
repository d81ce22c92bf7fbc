"""Applies changes of the hot configuration, and drains of this worker, without a restart."""

from collections.abc import Callable

import structlog

from shared.domain.ops.config import WorkerTuning, changed_values, worker_tuning
from shared.domain.ops.watermarks import Watermarks
from shared.ports.coordinator import Snapshot, View
from shared.wire.desired_state import NOTHING_SAID, desired_state_after
from shared.wire.keys import Keys

log = structlog.get_logger(__name__)

_RESYNC_S = 5.0


class WorkerConfigFollower:
    """Follows the hot configuration and the drains of the worker `member` of `pool`, in `view` of etcd's keys.

    The worker was started with the values of `started`. `apply(values, revision)` is called for each new revision.
    `drain(draining)` is called when a drain begins or ends.
    """

    def __init__(
        self,
        view: View,
        keys: Keys,
        *,
        member: str,
        pool: str,
        started: WorkerTuning,
        apply: Callable[[WorkerTuning, int], None],
        drain: Callable[[bool], None],
    ) -> None:
        self._view = view
        self._keys = keys
        self._member = member
        self._pool = pool
        self._started = started
        self._apply = apply
        self._drain = drain
        self._desired = NOTHING_SAID
        self._complaints: list[str] = []
        self._current = started
        self._draining = False

    def __repr__(self) -> str:
        return f"<Tuning {self._member} revision={self._desired.config.revision} draining={self._draining}>"

    def marks(self) -> Watermarks:
        """Return the watermarks now in force: how full a resource may be before the worker takes no new work."""
        return self._current.storage

    async def run(self) -> None:
        """Apply every change of configuration and drains, until cancelled."""
        snapshot = self._view.snapshot
        while True:
            self.follow(snapshot)
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def follow(self, snapshot: Snapshot) -> None:
        """Apply the configuration and drains in a snapshot of `view`. Log each part that is invalid and keep its
        earlier value.
        """
        before = self._desired
        self._desired, complaints = desired_state_after(before, snapshot, self._keys)
        if complaints != self._complaints:
            self._complaints = complaints
            for complaint in complaints:
                log.error("config.rejected", reason=complaint, kept_revision=before.config.revision)
        stored = self._desired.config
        if stored != before.config:
            tuning = worker_tuning(stored.config, self._pool, self._started)
            changes = changed_values(self._current, tuning)
            self._current = tuning
            self._apply(tuning, stored.revision)
            log.info("config.applied", revision=stored.revision, changes=changes)
        draining = self._member in self._desired.drains.workers
        if draining != self._draining:
            self._draining = draining
            self._drain(draining)
            log.info("drain.started" if draining else "drain.cancelled")
