"""The port to schedules in the database: as operators declare them, and as the leader fires them.

Every method is one transaction. Errors: Missing, Exists, Full and Stale as for the catalog, Transient, Permanent and
Unusable as for the store. A method with a `term` raises OwnershipLost, and writes nothing, if a later leader has
claimed the schedules.
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.ids import Term
from shared.domain.reads.declared import Actor, Repeatable
from shared.domain.schedules.firing import Step
from shared.domain.schedules.history import Fired, Firing
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import QueuedEffect, StoredSchedule, UnreadableSchedule, WaitingCommand


class Schedules(Protocol):
    """Schedules and their history."""

    async def schedule(self, name: str) -> StoredSchedule:
        """Return the schedule of that name. Raise Missing."""

    async def listing(self, *, after: str, max_count: int, crawl: str | None = None) -> Sequence[StoredSchedule]:
        """Return up to `max_count` schedules after the name `after`, ordered by name. With `crawl` only those of it."""

    async def create(
        self,
        name: str,
        spec: ScheduleSpec,
        *,
        paused: bool,
        actor: Actor,
        now_ms: int,
        repeatable: Repeatable | None = None,
    ) -> StoredSchedule:
        """Create a schedule. Its first due time comes after `now_ms`. Raise Exists or Full.

        A repeat returns the schedule as it was created. Raise ReusedKey if its key was used for another request.
        """

    async def put(
        self,
        name: str,
        spec: ScheduleSpec,
        *,
        paused: bool,
        expected: frozenset[str] | None,
        actor: Actor,
        now_ms: int,
    ) -> tuple[StoredSchedule, bool]:
        """Create the schedule or replace it. Return it, and True if it was created. Raise Missing, Stale or Full.

        If its times change, or its pause ends, the next due time comes after `now_ms`.
        """

    async def pause(
        self, name: str, *, paused: bool, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> StoredSchedule:
        """Pause or resume the schedule. Raise Missing or Stale. A repeat changes nothing."""

    async def delete(self, name: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int) -> None:
        """Delete the schedule with its history. Raise Missing or Stale."""

    async def history(self, schedule_id: int, *, before_ms: int, max_count: int) -> Sequence[Firing]:
        """Return up to `max_count` firings with due times before `before_ms`, newest first."""

    # --- the leader ---------------------------------------------------------------------------------------------------

    async def claim(self, term: Term) -> None:
        """Let only leaders of `term` or later write from now on. Raise OwnershipLost if a later one has claimed."""

    async def due(self, now_ms: int, max_count: int) -> Sequence[StoredSchedule | UnreadableSchedule]:
        """Return up to `max_count` schedules that fire at `now_ms` or earlier, the earliest first."""

    async def next_fires_ms(self) -> int | None:
        """Return when the next schedule fires, None if none does."""

    async def fire(self, term: Term, due: StoredSchedule, step: Step, now_ms: int, partitions: int) -> Fired | None:
        """Carry out a step of a schedule with the effects on its crawls. Return what was done.

        Return None, and write nothing, if the schedule is not as `due` any more.
        """

    async def fire_all(
        self, term: Term, steps: Sequence[tuple[StoredSchedule, Step]], now_ms: int, partitions: int
    ) -> Sequence[Fired | None]:
        """Do what `fire` does for each of the steps, in one transaction. No two are of the same schedule.

        If this raises Permanent, nothing was written, and one of the steps may be the cause.
        """

    async def queued(self, max_count: int) -> Sequence[QueuedEffect]:
        """Return up to `max_count` effects that waited for the end of a run that is over now."""

    async def fire_queued(self, term: Term, queued: QueuedEffect, now_ms: int, partitions: int) -> Fired | None:
        """Carry out an effect that waited. Return what was done; None if it does not wait any more, or must go on.

        The result has the line of the due time if its outcome is another one by that.
        """

    async def commands(self, after: tuple[int, int, str] | None, max_count: int) -> Sequence[WaitingCommand]:
        """Return up to `max_count` commands that are not published for certain, ordered by their `place`.

        `after`: only those after this place. None: from the first on.
        """

    async def commanded(self, command: WaitingCommand) -> None:
        """Record that a command was published."""
