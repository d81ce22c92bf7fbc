"""Who is short of room: this master, which then sends nothing out of its partitions, and the workers, by their word.

What is in hand goes on: reports are applied, which empties the streams; grants run and are extended.
"""

from collections.abc import Callable

import structlog

from api.frontier.room import PoolRoom
from shared.domain.watermarks import Level, Place
from shared.ports.rationing import Rationing
from shared.wire.messages import WorkerStatus

log = structlog.get_logger("orb.control")

Heard = Callable[[str, str | None], None]
"""Hears that a member became short of room, and why, or (None) that it has enough. Neither waits nor raises."""


def unheard(member: str, reason: str | None) -> None:
    """Where nobody listens, the log has it all the same."""


class MasterRoom:
    """`shared.ports.rationing.Watcher` of the master `member`: lets its owners dispatch, or not. `news`: its status is
    another than it was."""

    def __init__(
        self, member: str, room: PoolRoom, rationing: Callable[[], Rationing], heard: Heard, news: Callable[[], None]
    ) -> None:
        self._member = member
        self._room = room
        self._rationing = rationing
        self._heard = heard
        self._news = news

    def __repr__(self) -> str:
        return f"<MasterRoom {self._member} held={self._room.held}>"

    def short(self, place: Place, level: Level, reason: str) -> None:
        log.warning("dispatch.held", place=place, used=level.used, most=level.most, reason=reason)
        self._turn()

    def enough(self, place: Place, level: Level) -> None:
        log.info("dispatch.room", place=place, used=level.used, most=level.most, still=self._rationing().reason)
        self._turn()

    def unread(self, place: Place, error: Exception) -> None:
        log.warning("room.unread", place=place, error=str(error))

    def _turn(self) -> None:
        before, self._room.held = self._room.held, self._rationing().reason
        if (before is None) != (self._room.held is None):
            self._heard(self._member, self._room.held)
        self._news()


class WorkersRoom:
    """Tells when a worker says that it is short of room, or no more. Only whoever leads tells, so that it is told
    once."""

    def __init__(self, leading: Callable[[], bool], heard: Heard) -> None:
        self._leading = leading
        self._heard = heard

    def heard(self, before: WorkerStatus | None, status: WorkerStatus) -> None:
        """A worker told its status; `before`: what it told last, None if nothing lately."""
        was_short = before is not None and bool(before.short)
        if bool(status.short) != was_short and self._leading():
            self._heard(status.worker, status.short or None)
