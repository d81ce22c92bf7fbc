"""Fire schedules under one leadership.

A round reads the schedules that are due, decides the next step of each (`step_of`), and carries the steps out in
transactions under the leader's term. An earlier leader changes nothing, because its term is no longer the newest. What
was fired and what comes next is in the database only, so nothing is lost if the leader is killed.

`ScheduleCommandPublisher` publishes the commands of fired schedules in rounds of its own. So schedules fire in time
even if the broker is unavailable or refuses a message. A schedule that cannot be fired delays no other.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import structlog

from shared.domain.errors import OwnershipLost, Permanent, ResourceFull, Transient
from shared.domain.ids import Term
from shared.domain.schedules.firing import Step, step_of
from shared.domain.schedules.history import Firing, FiringOutcome, HistoryChange
from shared.domain.schedules.stored import StoredSchedule, UnreadableSchedule
from shared.ports.clock import Clock
from shared.ports.schedules import Schedules

log = structlog.get_logger("orb.control")

T = TypeVar("T")

AT_ONCE: Final = 200
"""Maximum due schedules that one round reads. Also the maximum waiting verbs that one round reads.

Some verbs cannot be applied while a crawl runs. If a schedule fires such a verb during a run, the verb waits until the
run ends.
"""

BATCH: Final = 50
"""Maximum schedules that fire in one transaction.

Until its end, the transaction locks the crawls of these schedules, and the row with the leader's term.
"""

_LOOK_S: Final = 0.5
"""Maximum seconds between two rounds. So a round finds schedules that other masters changed within this time."""

LEAST_S: Final = 0.05
"""Minimum seconds between two rounds, unless more schedules are due than one round reads.

Schedules that become due in this time fire together.
"""

FiringCallback = Callable[[str, Firing, bool], None]
"""Called with the name of a schedule, an entry of its history, and a flag.

The flag is False for a new entry. It is True for an entry that was reported before and now has another outcome.
"""


class ScheduleRunner:
    """Fires the schedules of a cluster while its master leads.

    - `term` returns the term of the leadership, None while this master must not act.
    - `publish` is called when there may be commands to publish.
    - `changed` is called when a verb may have been applied to a crawl.
    - `noted` is called for each new or changed entry in the history of a schedule (`FiringCallback`).
    """

    def __init__(
        self,
        schedules: Schedules,
        clock: Clock,
        partitions: int,
        term: Callable[[], Term | None],
        publish: Callable[[], None],
        changed: Callable[[], None],
        noted: FiringCallback,
    ) -> None:
        self._schedules = schedules
        self._clock = clock
        self._partitions = partitions
        self._term = term
        self._publish = publish
        self._changed = changed
        self._noted = noted
        self._claimed: Term | None = None
        self._refused: set[tuple[str, str]] = set()
        self._due_after: tuple[int, int] | None = None
        self._queued_after: tuple[str, int, int] | None = None

    async def run(self) -> None:
        """Fire what is due, again and again, until cancelled."""
        while True:
            pause_s = await self.attempt()
            await asyncio.sleep(pause_s)

    async def attempt(self) -> float:
        """Run a round if this master may act. Return the seconds until the next round. Errors are only logged."""
        try:
            if (term := self._term()) is not None:
                return await self.once(term)
        except OwnershipLost as error:  # a later leader fires them; this leadership is about to end
            self._claimed = None
            log.info("schedules.lost", error=str(error))
        except ResourceFull as error:
            log.debug("schedules.postponed", error=str(error))
        except Transient as error:
            log.warning("schedules.delayed", error=str(error))
        except Permanent as error:
            log.error("schedules.refused", error=str(error))
        return _LOOK_S

    async def once(self, term: Term) -> float:
        """Run a round under `term`: fire due schedules, and apply verbs whose wait has ended.

        If there are more of them than one round reads, the next round goes on behind those that this one read. So those
        that cannot be fired delay no other.

        A verb waits if it was fired during a run of its crawl and can be applied only after that run. Return the
        seconds until the next round. Raise OwnershipLost if a leader with a later term fires the schedules now.
        """
        if term != self._claimed:
            await self._schedules.claim(term)
            self._claimed = term
        now_ms, next_ms = self._clock.unix_ms(), await self._schedules.next_fires_ms()
        is_due = next_ms is not None and next_ms <= now_ms
        due = await self._schedules.due(now_ms, AT_ONCE, self._due_after) if is_due else ()
        moved = waited = False
        for batch in _batches(due, BATCH):
            moved |= await self._fire(term, batch)
        self._due_after = due[-1].place if len(due) == AT_ONCE else None
        queued = await self._schedules.queued(AT_ONCE, self._queued_after)
        for waiting in queued:
            try:
                now_ms = self._clock.unix_ms()
                fired = await self._schedules.fire_queued(term, waiting, now_ms, self._partitions)
                self._note(fired)
                if fired is not None:
                    waited = True
                    self._changed()
            except Permanent as error:
                self._refuse(f"schedule {waiting.schedule_id}, crawl {waiting.crawl}", error)
        self._queued_after = queued[-1].place if len(queued) == AT_ONCE else None
        if moved or waited:
            self._publish()
        if moved:
            return 0.0 if len(due) == AT_ONCE else LEAST_S
        if AT_ONCE in (len(due), len(queued)):  # The next round reads further ones.
            return LEAST_S
        if is_due:  # None of them can be fired: do not try again at once.
            return _LOOK_S
        left_s = _LOOK_S if next_ms is None else (next_ms - self._clock.unix_ms()) / 1000
        return min(_LOOK_S, max(LEAST_S, left_s))

    async def _fire(self, term: Term, batch: Sequence[StoredSchedule | UnreadableSchedule]) -> bool:
        """Carry out the next step of each schedule in one transaction. Return True if any step was carried out.

        If the transaction fails for good, carry out each step in its own transaction. A schedule that cannot be fired
        is logged.
        """
        now_ms = self._clock.unix_ms()
        decided = await asyncio.to_thread(lambda: [_decided(stored, now_ms) for stored in batch])
        steps: list[tuple[StoredSchedule, Step]] = []
        for stored, step in zip(batch, decided, strict=True):
            if isinstance(step, Permanent):
                self._refuse(stored.name, step)
            elif step is not None and isinstance(stored, StoredSchedule):
                steps.append((stored, step))
        if not steps:
            return False
        try:
            for fired in await self._schedules.fire_all(term, steps, now_ms, self._partitions):
                self._note(fired)
            return True
        except Permanent as error:
            if len(steps) == 1:
                self._refuse(steps[0][0].name, error)
                return False
        return await self._fire_each(term, steps, now_ms)

    async def _fire_each(self, term: Term, steps: Sequence[tuple[StoredSchedule, Step]], now_ms: int) -> bool:
        """Carry out each step in a transaction of its own. Return True if any step was carried out.

        Call it after the common transaction of the steps has failed for good. A step that fails again is logged.
        """
        moved = False
        for stored, step in steps:
            try:
                self._note(await self._schedules.fire(term, stored, step, now_ms, self._partitions))
                moved = True
            except Permanent as error:
                self._refuse(stored.name, error)
        return moved

    def _refuse(self, schedule: str, error: Permanent) -> None:
        """Log that a schedule cannot be fired, once for each reason."""
        if (schedule, str(error)) not in self._refused:
            self._refused.add((schedule, str(error)))
            log.error("schedule.refused", schedule=schedule, error=str(error))

    def _note(self, change: HistoryChange | None) -> None:
        """Log and report what a transaction fired. Do nothing for None: the transaction fired nothing."""
        if change is None:
            return
        for firing in change.firings:
            self._noted(change.schedule, firing, change.waited)
            log.info(
                "schedule.fired",
                schedule=change.schedule,
                due_ms=firing.due_ms,
                outcome=firing.outcome,
                verb=firing.verb,
                missed=firing.missed,
                crawls=len(firing.effects),
                detail=firing.detail,
            )
        if any(each.outcome is FiringOutcome.FIRED for firing in change.firings for each in firing.effects):
            self._changed()


def _decided(stored: StoredSchedule | UnreadableSchedule, now_ms: int) -> Step | Permanent | None:
    """Return the next step of a schedule, or None if it does not fire yet. Return Permanent if it can never fire."""
    if isinstance(stored, UnreadableSchedule):
        return Permanent(stored.reason)
    try:
        return None if stored.due_ms is None else step_of(stored.spec, stored.schedule_id, stored.due_ms, now_ms)
    except Permanent as error:
        return error


def _batches(due: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(due), size):
        yield due[start : start + size]
