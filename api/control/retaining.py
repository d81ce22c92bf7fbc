"""What is kept for a while only is forgotten in the background, some of it at a time.

A pass does one bounded transaction of each kind and remembers where it was; when there was more it goes on at the next
look, and when everything was walked over it rests for an hour.
"""

from collections.abc import Callable
from typing import Final

import structlog

from shared.domain.errors import NoRoom, Permanent
from shared.domain.retention import Kept, Retention
from shared.ports.clock import Clock
from shared.ports.retained import Retained

log = structlog.get_logger("orb.control")

REST_S: Final = 3600.0


class Retaining:
    """The leader's. `rules` are those that hold now."""

    def __init__(self, retained: Retained, rules: Callable[[], Retention], clock: Clock) -> None:
        self._retained = retained
        self._rules = rules
        self._clock = clock
        self._places: dict[Kept, str] = {}
        self._rests_until: dict[Kept, float] = {}

    def __repr__(self) -> str:
        return f"<Retaining walks={sorted(self._places)}>"

    async def once(self) -> None:
        """One pass. Transient: the next one goes on; NoRoom when all is done for which there was room."""
        full = None
        for what in Kept:
            if self._clock.elapsed() < self._rests_until.get(what, float("-inf")):
                continue
            place = self._places.get(what, "")
            try:
                forgotten = await self._retained.forget(what, self._rules(), self._clock.unix_ms(), place)
            except Permanent as error:  # of one kind; the others go on
                log.error("retention.failed", what=what, error=str(error))
                self._places.pop(what, None)
                self._rests_until[what] = self._clock.elapsed() + REST_S
                continue
            except NoRoom as error:
                full = error
                continue
            if forgotten.rows:
                log.info("retention.forgot", what=what, rows=forgotten.rows)
            if forgotten.place:
                self._places[what] = forgotten.place
            else:
                self._places.pop(what, None)
                self._rests_until[what] = self._clock.elapsed() + REST_S
        if full is not None:
            raise full
