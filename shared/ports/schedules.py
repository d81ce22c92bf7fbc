"""The port to schedules in the database: operators declare them, and the leader fires them.

Every method is one transaction. Methods raise the errors Missing, Exists, Full and Stale of the catalog's port, and
Transient, Permanent and Unusable of the store's port. A method with a parameter `term` raises OwnershipLost, and writes
nothing, if a later leader has claimed the schedules. A method that returns schedules or firings raises
ScheduleUnreadable if a later version of the software wrote one of them. If a method differs from these rules, its
docstring says so.
"""

from collections.abc import Sequence
from typing import Protocol

from shared.domain.errors import Permanent
from shared.domain.ids import Term
from shared.domain.reads.declared import Actor, Repeatable
from shared.domain.schedules.firing import Step
from shared.domain.schedules.history import Firing, HistoryChange
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import QueuedEffect, StoredSchedule, UnreadableSchedule, WaitingCommand


class ScheduleUnreadable(Permanent):
    """This version cannot read a schedule or its history, because a later version wrote it.

    The message names the schedule.
    """


class Schedules(Protocol):
    """Reads and writes schedules and the history of their firings.

    The parameter `expected` of a method is a set of HTTP ETags. The method raises Stale if the ETag of the schedule's
    present version is not among them. None: no condition.
    """

    async def schedule(self, name: str) -> StoredSchedule:
        """Return the schedule of that name. Raise Missing if it does not exist."""

    async def listing(
        self, *, after: str, max_count: int, crawl: str | None = None
    ) -> Sequence[StoredSchedule | UnreadableSchedule]:
        """Return up to `max_count` schedules with names after `after`, ordered by name.

        `crawl`: return only schedules that name this crawl. None: return all. A schedule whose spec cannot be read is
        returned as UnreadableSchedule.
        """

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
        """Create a schedule, paused or not, and return it. Its first due time comes after `now_ms` (Unix ms).

        If the request is repeated (`repeatable`), return the schedule as it was first created. Raise ReusedKey if the
        Idempotency-Key was used for another request. Raise Exists if the name is taken, and Full if there are too many
        schedules.
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
        new: bool = False,
    ) -> tuple[StoredSchedule, bool]:
        """Create the schedule, or replace its spec and `paused`. Return it, and True if it was created.

        If nothing differs, change nothing. If the times change or the schedule was paused, its next due time comes
        after `now_ms`. A schedule that cannot be read is replaced.

        Raise Full if there are too many schedules. If `expected` is given, raise Missing if the schedule does not
        exist, and Stale if its ETag is not in `expected`. With `new`, raise Stale if it exists.
        """

    async def pause(
        self, name: str, *, paused: bool, expected: frozenset[str] | None, actor: Actor, now_ms: int
    ) -> StoredSchedule:
        """Pause the schedule, or resume it if `paused` is False. Return it. If nothing differs, change nothing.

        Raise Missing, or Stale if its present ETag is not in `expected`.
        """

    async def delete(self, name: str, *, expected: frozenset[str] | None, actor: Actor, now_ms: int) -> None:
        """Delete the schedule with its history. Raise Missing, or Stale if its present ETag is not in `expected`.

        This works also for a schedule that this version cannot read.
        """

    async def history(self, schedule_id: int, *, before_ms: int, max_count: int) -> Sequence[Firing]:
        """Return up to `max_count` firings of the schedule with due times before `before_ms` (Unix ms).

        The newest come first.
        """

    # --- the leader ---------------------------------------------------------------------------------------------------

    async def claim(self, term: Term) -> None:
        """Permit writes to the schedules only to leaders of `term` or a later term.

        Raise OwnershipLost if a leader of a later term has claimed them already.
        """

    async def due(
        self, now_ms: int, max_count: int, after: tuple[int, int] | None = None
    ) -> Sequence[StoredSchedule | UnreadableSchedule]:
        """Return up to `max_count` schedules that fire at `now_ms` (Unix ms) or earlier, the earliest first.

        `after`: return only schedules with a greater `place`. None: begin with the earliest.

        Paused schedules are left out. A schedule whose spec cannot be read is returned as UnreadableSchedule.
        """

    async def next_fires_ms(self) -> int | None:
        """Return the time (Unix ms) at which the next schedule fires, or None if none will fire."""

    async def fire(
        self, term: Term, due: StoredSchedule, step: Step, now_ms: int, partitions: int
    ) -> HistoryChange | None:
        """Carry out `step`, the decision on a schedule's next due times. Return the lines added to its history.

        - If a due time fires (`step.fires`), apply the schedule's verb to its crawls.
        - Record the due times that were missed (`step.missed`). They do not fire.
        - Set the schedule's next due time to `step.next_ms`.

        Return None, and write nothing, if the schedule was changed, paused or deleted since `due` was read.

        - `due`: the schedule as it was read.
        - `partitions`: the cluster's number of partitions. Each of them must apply a command.
        """

    async def fire_all(
        self, term: Term, steps: Sequence[tuple[StoredSchedule, Step]], now_ms: int, partitions: int
    ) -> Sequence[HistoryChange | None]:
        """Do what `fire` does for several schedules, in one transaction. Pass at most one step for a schedule.

        Return the result of `fire` for each step, in order. Raise Permanent, and write nothing, if the database will
        never accept the transaction. A single step may be the cause.
        """

    async def queued(self, max_count: int, after: tuple[str, int, int] | None = None) -> Sequence[QueuedEffect]:
        """Return up to `max_count` queued effects that may be applied now, because their wait has ended.

        They are ordered by `place`. `after`: return only effects with a greater place. None: begin with the first.

        An effect is the verb that a firing applies to one crawl. It is queued if it must wait until the crawl's present
        run ends.
        """

    async def fire_queued(self, term: Term, queued: QueuedEffect, now_ms: int, partitions: int) -> HistoryChange | None:
        """Apply to one crawl a verb that had to wait until the crawl's run ended. The run has now ended.

        `queued`: a result of the method `queued`. It names the schedule, the due time and the crawl.

        The schedule's history has one line for each due time. If the schedule has several crawls, they share this line.
        This call may change the outcome of the line. The result says so:

        - If the outcome has changed: `HistoryChange.firings` has the line.
        - Otherwise: `HistoryChange.firings` is empty.

        Example: a schedule had to wait for two crawls, so the outcome of the line is QUEUED. The call for the first
        crawl changes the outcome to FIRED. The call for the second crawl also applies the verb, but the outcome stays
        FIRED.

        Return None, and write nothing, in these cases:

        - The effect is no longer queued.
        - Its schedule is paused or deleted.
        - Another run of the crawl has begun.
        """

    async def commands(self, after: tuple[int, int, str] | None, max_count: int) -> Sequence[WaitingCommand]:
        """Return up to `max_count` commands that firings have stored and that are not recorded as published.

        They are ordered by `place` (schedule id, due time in Unix ms, crawl). `after`: return only commands with a
        greater place. None: begin with the first command.
        """

    async def commanded(self, command: WaitingCommand) -> None:
        """Record that a command was published, so that `commands` no longer returns it."""
