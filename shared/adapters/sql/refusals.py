"""What a database refused for want of room: whether lately, and what the log is told of it."""

from collections.abc import Callable
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

FULL_S: Final = 5.0
"""So long after its last refusal a full disk is not tried with anything new."""
_SAY_S: Final = 60.0


class Refusals:
    """Of what one process asks of one database. `now`: monotonic seconds.

    A full disk takes what fits into pages that are there and refuses the rest, so that one thing that was written does
    not say that there is room. It is over when all that was refused has been taken since, each kind of it at least
    once, and nothing was refused for `FULL_S`; or nothing for a minute, since some of it may never be asked for again.
    The log hears of it when it begins, then at most once a minute, and when it is over, however many try.
    """

    def __init__(self) -> None:
        self._kinds: set[object] = set()
        self._began: float | None = None
        self._last = self._said = float("-inf")
        self._times = 0

    def __repr__(self) -> str:
        return f"<Refusals {self._times} of {len(self._kinds)} kinds>"

    def lately(self, now: float) -> bool:
        """Whether something was refused within the last `FULL_S`."""
        return now - self._last < FULL_S

    def refused(self, transaction: Callable[..., object], now: float, error: Exception) -> None:
        """There was no room for it."""
        if self._began is None:
            self._began = now
        self._kinds.add(_kind(transaction))
        self._last = now
        self._times += 1
        if now - self._said >= _SAY_S:
            self._said = now
            log.warning("database.full", for_s=round(now - self._began, 1), refused=self._times, error=str(error))

    def taken(self, transaction: Callable[..., object], now: float) -> None:
        """It was carried out."""
        if self._began is None:
            return
        self._kinds.discard(_kind(transaction))
        quiet_s = now - self._last
        if quiet_s < FULL_S or (self._kinds and quiet_s < _SAY_S):
            return
        self._kinds.clear()
        log.info("database.room", full_s=round(self._last - self._began, 1), refused=self._times)
        self._began, self._said, self._times = None, float("-inf"), 0


def _kind(transaction: Callable[..., Any]) -> object:
    """Transactions that are written at one place are of one kind."""
    return getattr(transaction, "__code__", transaction)
