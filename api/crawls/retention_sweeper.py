"""Delete rows past their retention in the background, in bounded steps.

A pass does one bounded transaction for each kind of row and remembers its position. The next pass continues there. Once
a kind is done, its next round begins after an hour.
"""

from collections.abc import Callable
from typing import Final

import structlog

from shared.domain.errors import Permanent, ResourceFull
from shared.domain.ops.retention import RetainedKind, Retention
from shared.ports.clock import Clock
from shared.ports.retained import Retained

log = structlog.get_logger("orb.control")

REST_S: Final = 3600.0


class RetentionSweeper:
    """Deletes rows past their retention, on the leader. `rules` returns the retention times that are configured now."""

    def __init__(self, retained: Retained, rules: Callable[[], Retention], clock: Clock) -> None:
        self._retained = retained
        self._rules = rules
        self._clock = clock
        self._places: dict[RetainedKind, str] = {}
        self._paused_until: dict[RetainedKind, float] = {}

    def __repr__(self) -> str:
        return f"<RetentionSweeper walks={sorted(self._places)}>"

    async def once(self) -> None:
        """Delete a bounded number of old rows of each kind. If it raises Transient, the next call continues.

        If rows cannot be deleted because the database is full, raise ResourceFull at the end of the pass.
        """
        full = None
        for what in RetainedKind:
            if self._clock.elapsed() < self._paused_until.get(what, float("-inf")):
                continue
            place = self._places.get(what, "")
            try:
                forgotten = await self._retained.forget(what, self._rules(), self._clock.unix_ms(), place)
            except Permanent as error:  # This kind is refused; the others go on.
                log.error("retention.refused", kind=what, error=str(error))
                self._places.pop(what, None)
                self._paused_until[what] = self._clock.elapsed() + REST_S
                continue
            except ResourceFull as error:
                full = error
                continue
            if forgotten.rows:
                log.info("retention.applied", kind=what, rows=forgotten.rows)
            if forgotten.place:
                self._places[what] = forgotten.place
            else:
                self._places.pop(what, None)
                self._paused_until[what] = self._clock.elapsed() + REST_S
        if full is not None:
            raise full
