"""The schedules, crawls and tables of a new database, for tests of the leader's transactions on schedules."""

from typing import Final

from sqlalchemy import func, select

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.access_schema import audit_log, schedule_firings
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import Term
from shared.domain.reads.declared import Actor, Declaration
from shared.domain.schedules.firing import Step, step_of
from shared.domain.schedules.history import HistoryChange
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import StoredSchedule

OPERATOR: Final = Actor("0" * 16, "operator", "r")
MINUTE: Final = 60_000
NOW: Final = 1_800_000_000_000
EVERY: Final = ScheduleSpec(Verb.START, crawl="news", every_s=60)
TERM: Final = Term(5)
PARTITIONS: Final = 8


class ScheduleStage:
    """The schedules, crawls and tables of one new database."""

    def __init__(self, store: SqlStore) -> None:
        self.schedules = SqlSchedules(store.executor)
        self.catalog = SqlCatalog(store.executor)
        self.run = store.executor

    async def crawl(self, name: str = "news", *, start: bool = False, **labels: str) -> None:
        await self.catalog.create(Declaration(name, '{"seeds": []}', labels), start=start, actor=OPERATOR, now_ms=NOW)

    async def declared(self, spec: ScheduleSpec = EVERY, name: str = "nightly") -> StoredSchedule:
        return await self.schedules.create(name, spec, paused=False, actor=OPERATOR, now_ms=NOW)

    async def fire(self, stored: StoredSchedule, now_ms: int, term: Term = TERM) -> HistoryChange | None:
        return await self.schedules.fire(term, stored, step(stored, now_ms), now_ms, PARTITIONS)

    async def state(self, name: str = "news") -> CrawlState:
        return (await self.catalog.crawl(name)).state

    async def verbs(self) -> list[tuple[str, str]]:
        """Action and request of each verb that a schedule applied, from the audit log."""
        query = select(audit_log.c.action, audit_log.c.request).where(
            audit_log.c.actor.like("schedule %"), audit_log.c.action.like("crawl.%")
        )
        rows = await self.run.read(lambda c: c.execute(query.order_by(audit_log.c.id)).all())
        return [tuple(row) for row in rows]

    async def lines(self) -> int:
        return int(
            await self.run.read(lambda c: c.execute(select(func.count()).select_from(schedule_firings)).scalar_one())
        )


def step(stored: StoredSchedule, now_ms: int) -> Step:
    """Return what becomes of the schedule's next due time, which must have come."""
    assert stored.due_ms is not None
    found = step_of(stored.spec, stored.schedule_id, stored.due_ms, now_ms)
    assert found is not None
    return found
