"""Tracks and logs the writes that a database refused because its disk is full."""

from collections.abc import Callable
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

FULL_S: Final = 5.0
"""The disk counts as full for this many seconds after each refused write."""
_LOG_EVERY_S: Final = 60.0


class FullDiskRefusals:
    """Counts and logs the writes that a database refuses to this process because its disk is full.

    The log has a line for the first refused write, then at most one a minute. It has another line when the database
    accepts writes again.

    `now` in the methods: monotonic seconds.
    """

    def __init__(self) -> None:
        self._kinds: set[object] = set()
        self._began: float | None = None
        self._last = self._logged_at = float("-inf")
        self._times = 0

    def __repr__(self) -> str:
        return f"<FullDiskRefusals {self._times} of {len(self._kinds)} kinds>"

    def lately(self, now: float) -> bool:
        """Return True if the database refused a write within the `FULL_S` seconds before `now` (monotonic seconds)."""
        return now - self._last < FULL_S

    def refused(self, transaction: Callable[..., object], now: float, error: Exception) -> None:
        """Record that the database refused `transaction` because its disk is full. Log it at most once a minute."""
        if self._began is None:
            self._began = now
        self._kinds.add(_kind(transaction))
        self._last = now
        self._times += 1
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "database_writes.refused", duration_s=round(now - self._began, 1), refused=self._times, error=str(error)
            )

    def taken(self, transaction: Callable[..., object], now: float) -> None:
        """Record that `transaction` was committed. Log when the database accepts writes again after refusals."""
        if self._began is None:
            return
        # The database accepts writes again if none was refused for FULL_S, and every kind that was refused has
        # succeeded since. One success does not prove much: a full disk accepts writes that fit into existing pages.
        # Some kinds may never run again, so they are waited for only for a minute.
        self._kinds.discard(_kind(transaction))
        quiet_s = now - self._last
        if quiet_s < FULL_S or (self._kinds and quiet_s < _LOG_EVERY_S):
            return
        self._kinds.clear()
        log.info("database_writes.resumed", duration_s=round(self._last - self._began, 1), refused=self._times)
        self._began, self._logged_at, self._times = None, float("-inf"), 0


def _kind(transaction: Callable[..., Any]) -> object:
    """Return the kind of a transaction: the code object of its function. All calls of a function are of one kind."""
    function = getattr(transaction, "__wrapped__", transaction)
    return getattr(function, "__code__", function)
