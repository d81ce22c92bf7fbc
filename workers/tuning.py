"""This worker's hot configuration and whether it is to drain, kept as they are published: nothing is started anew."""

from collections.abc import Callable

import structlog

from shared.domain.config import WorkerTuning, changed_values, worker_tuning
from shared.domain.watermarks import Watermarks
from shared.ports.coordinator import Snapshot, View
from shared.wire.keys import Keys
from shared.wire.wanted import NOTHING_SAID, wanted_after

log = structlog.get_logger(__name__)

_RESYNC_S = 5.0


class Tuning:
    """Follows `view`, one of `keys.configuration`, for the worker `member` of `pool`, which was started with the values
    of `started` and can hold `most_visits`.

    `apply` is given the values of each further revision, and its number; `drain` whether to drain, when that changes.
    """

    def __init__(
        self,
        view: View,
        keys: Keys,
        *,
        member: str,
        pool: str,
        started: WorkerTuning,
        most_visits: int,
        apply: Callable[[WorkerTuning, int], None],
        drain: Callable[[bool], None],
    ) -> None:
        self._view = view
        self._keys = keys
        self._member = member
        self._pool = pool
        self._started = started
        self._most_visits = most_visits
        self._apply = apply
        self._drain = drain
        self._wanted = NOTHING_SAID
        self._complaints: list[str] = []
        self._current = started
        self._draining = False

    def __repr__(self) -> str:
        return f"<Tuning {self._member} revision={self._wanted.config.revision} draining={self._draining}>"

    def marks(self) -> Watermarks:
        """The watermarks that hold now."""
        return self._current.storage

    async def run(self) -> None:
        """Until cancelled."""
        snapshot = self._view.snapshot
        while True:
            self.follow(snapshot)
            snapshot = await self._view.changed(snapshot, _RESYNC_S)

    def follow(self, snapshot: Snapshot) -> None:
        """Be as the snapshot says."""
        before = self._wanted
        self._wanted, complaints = wanted_after(before, snapshot, self._keys)
        if complaints != self._complaints:
            self._complaints = complaints
            for complaint in complaints:
                log.error("config.unreadable", reason=complaint, kept=before.config.revision)
        stored = self._wanted.config
        if stored != before.config:
            tuning = worker_tuning(stored.config, self._pool, self._started, most_visits=self._most_visits)
            changes = changed_values(self._current, tuning)
            self._current = tuning
            self._apply(tuning, stored.revision)
            log.info("config.applied", revision=stored.revision, changes=changes)
        draining = self._member in self._wanted.drains.workers
        if draining != self._draining:
            self._draining = draining
            self._drain(draining)
            log.info("worker.rests" if draining else "worker.resumes")
