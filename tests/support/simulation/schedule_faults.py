"""Drawn faults on a cluster that fires schedules, and the evidence that they leave."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.executor import Executor
from shared.domain.crawl.state import Verb
from shared.domain.reads.declared import Actor, Declaration
from shared.domain.schedules.spec import CatchUp, Overlap, ScheduleSpec
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import sqlite_tables
from tests.support.simulation.schedule_cluster import PARTITIONS, START_MS, Master, ScheduleCluster, Strike
from tests.support.simulation.schedule_judge import DeclaredSchedule, Evidence, SeenLine, Verdict, judged

OPERATOR: Final = Actor("0" * 16, "operator", "r")
_CALM_MS: Final = 400_000
_SETTLED_MS: Final = 200_000
_RECOVERY_MS: Final = 60_000
_STEPS: Final = 60
_PATIENCE: Final = 60
_AUDIT: Final = text(
    "SELECT id, request, target FROM audit_log WHERE id > :after AND actor LIKE 'schedule %' AND action LIKE 'crawl.%'"
    " ORDER BY id"
)
_LINES: Final = text(
    "SELECT schedule_id, due_ms, outcome, missed, until_ms FROM schedule_firings WHERE due_ms >= :since OR"
    " outcome = 'queued'"
)
_END_RUNS: Final = text("UPDATE crawls SET state = 'finished' WHERE state = 'seeding' AND name LIKE 'run%'")


class ScheduleFault(StrEnum):
    """A kind of fault."""

    KILLED = "the leader is killed between two steps"
    ANSWER_LOST = "the answer to a commit is lost"
    SQL_CUT = "the leader is cut from SQL"
    ETCD_CUT = "the leader is cut from etcd"
    STOPPED = "the leader is stopped, and goes on after the next has begun"
    RESIGNED = "the leader changes"
    CLOCK_FORTH = "the clock of the leader goes forth by a minute"
    CLOCK_BACK = "the clock of the leader goes back by a minute"
    ETCD_EMPTY = "etcd starts empty"
    ETCD_RESTORED = "etcd is restored from an earlier state"
    ALL_STOPPED = "all masters stop for up to three hours"


@dataclass(frozen=True)
class Drawn:
    """A fault, and the real time at which it struck."""

    fault: ScheduleFault
    at_ms: int


@dataclass
class FaultRun:
    """What one run drew and what the judge says of each due time."""

    seed: int
    drawn: list[Drawn] = field(default_factory=list)
    verdicts: Sequence[Verdict] = ()

    def wrong(self) -> list[Verdict]:
        return [each for each in self.verdicts if each.wrong]

    def fault_of(self, verdict: Verdict) -> ScheduleFault | None:
        """Return the fault after which the due time was handled, None before the first."""
        before = [each for each in self.drawn if verdict.seen_ms is not None and each.at_ms <= verdict.seen_ms]
        return before[-1].fault if before else None


SPECS: Final[dict[str, ScheduleSpec]] = {
    "each-minute": ScheduleSpec(Verb.RESET, crawl="run1", every_s=60),
    "last-of-late": ScheduleSpec(Verb.RESET, crawl="run2", every_s=120, catch_up=CatchUp.LAST),
    "with-jitter": ScheduleSpec(Verb.RESET, crawl="run3", every_s=180, jitter_s=45),
    "by-cron": ScheduleSpec(Verb.RESET, crawl="run4", cron="*/5 * * * *", catch_up=CatchUp.LAST),
    "by-labels": ScheduleSpec(Verb.RESET, selector={"team": "search"}, every_s=240),
    "retried": ScheduleSpec(Verb.RETRY_FAILED, crawl="kept", every_s=120, late_s=180),
    "waiting": ScheduleSpec(Verb.START, crawl="long", every_s=300, overlap=Overlap.QUEUE),
}
"""Runs of the crawls `run...` end at once, so that the next firing finds none."""

_CRAWLS: Final = {
    "run1": {},
    "run2": {},
    "run3": {},
    "run4": {},
    "run5": {"team": "search"},
    "run6": {"team": "search"},
}
_ALL_MS: Final = {"by-cron": 300_000}


class FaultedSchedules:
    """A cluster with declared schedules, and an observer that reads the database after each tick."""

    def __init__(self, run: Executor, seed: int, opened: Callable[[Executor], SqlSchedules] = SqlSchedules) -> None:
        self.draw = random.Random(seed)
        self.cluster = ScheduleCluster(run, self.draw, opened)
        self.evidence = Evidence()
        self.result = FaultRun(seed)
        self._run = run
        self._declared: list[DeclaredSchedule] = []
        self._audited = 0
        self.cluster.ticked.append(self._observe)

    async def declare(self) -> None:
        """Create the crawls and the schedules."""
        catalog, schedules = SqlCatalog(self._run), SqlSchedules(self._run)
        for name, labels in [*_CRAWLS.items(), ("kept", {}), ("long", {})]:
            declaration = Declaration(name, '{"seeds": []}', labels)
            await catalog.create(declaration, start=name == "kept", actor=OPERATOR, now_ms=START_MS)
        for name, spec in SPECS.items():
            stored = await schedules.create(name, spec, paused=False, actor=OPERATOR, now_ms=START_MS)
            every_ms = _ALL_MS.get(name) or (spec.every_s or 0) * 1000
            crawls = (spec.crawl,) if spec.crawl is not None else ("run5", "run6")
            self._declared.append(
                DeclaredSchedule(
                    stored.schedule_id,
                    spec.verb,
                    crawls,
                    (START_MS // every_ms + 1) * every_ms,
                    every_ms,
                    spec.late_s * 1000,
                    spec.jitter_s * 1000,
                    spec.catch_up is CatchUp.LAST,
                    spec.overlap is Overlap.QUEUE,
                )
            )

    async def strike(self, count: int) -> FaultRun:
        """Strike `count` times, heal everything, and judge what is left."""
        await self.declare()
        await self.cluster.advance(_SETTLED_MS)
        for _ in range(count):
            await self._one(self.draw.choice(list(ScheduleFault)))
            await self.cluster.advance(self.draw.randint(0, 120_000))
        for master in self.cluster.masters:
            master.etcd_cut, master.steps.cut, master.clock_ms, master.steps.strike = False, False, 0, None
        await self.cluster.advance(_CALM_MS)
        await self._count_rest()
        until_ms = self.cluster.now_ms - _SETTLED_MS
        self.result.verdicts = judged(self._declared, self.evidence, until_ms, PARTITIONS)
        return self.result

    async def _one(self, fault: ScheduleFault) -> None:
        leader = await self._leader()
        match fault:
            case ScheduleFault.KILLED:
                await self._at_a_step(fault, leader, Strike.KILL)
            case ScheduleFault.ANSWER_LOST:
                await self._at_a_step(fault, leader, Strike.LOSE)
            case ScheduleFault.SQL_CUT:
                await self._at_a_step(fault, leader, Strike.CUT)
                await self.cluster.advance(self.draw.randint(1_000, 90_000))
                leader.steps.cut = False
            case ScheduleFault.STOPPED:
                await self._at_a_step(fault, leader, Strike.STOP)
                await self.cluster.advance(self.draw.randint(1_000, 120_000))
                await self.cluster.resume(leader)
            case ScheduleFault.ETCD_CUT:
                self._note(fault)
                leader.etcd_cut = True
                await self.cluster.advance(self.draw.randint(1_000, 90_000))
                leader.etcd_cut = False
            case ScheduleFault.RESIGNED:
                self._note(fault)
                self.cluster.resign(leader)
            case ScheduleFault.CLOCK_FORTH:
                self._note(fault)
                leader.clock_ms = min(60_000, leader.clock_ms + 60_000)
            case ScheduleFault.CLOCK_BACK:
                self._note(fault)
                leader.clock_ms = max(-60_000, leader.clock_ms - 60_000)
            case ScheduleFault.ETCD_EMPTY:
                self._note(fault)
                etcd = self.cluster.etcd
                etcd.revision, etcd.epoch, etcd.holder, etcd.until_ms = 1, None, None, 0
            case ScheduleFault.ETCD_RESTORED:
                self._note(fault)
                etcd = self.cluster.etcd
                etcd.revision, etcd.holder, etcd.until_ms = max(1, etcd.revision - self.draw.randint(1, 40)), None, 0
            case ScheduleFault.ALL_STOPPED:
                self._note(fault)
                away_ms = self.draw.choice([60_000, 600_000, 10_800_000])
                for master in self.cluster.masters:
                    self.cluster.kill(master, away_ms)
                self.cluster.now_ms += away_ms
                await self.cluster.advance(_RECOVERY_MS)

    async def _at_a_step(self, fault: ScheduleFault, leader: Master, strike: Strike) -> None:
        """Strike the leader at a drawn step. If another leads before, it strikes that."""
        leader.steps.arm(strike, self.draw.randint(0, _STEPS))
        steps = leader.steps
        for _ in range(_PATIENCE):
            if steps.strike is None:
                return self._note(fault)
            await self.cluster.tick()
        raise AssertionError(f"{fault}: no step was reached")

    async def _leader(self) -> Master:
        for _ in range(_PATIENCE):
            if (leader := self.cluster.leader()) is not None:
                return leader
            await self.cluster.tick()
        raise AssertionError("there is no leader")

    def _note(self, fault: ScheduleFault) -> None:
        self.result.drawn.append(Drawn(fault, self.cluster.now_ms))

    async def _observe(self) -> None:
        """Read what is new in the audit log and the history, and end the runs of crawls."""
        since_ms = self.cluster.now_ms - 12_000_000
        end_long = self.draw.random() < 0.02

        def read(connection: Connection) -> tuple[list[Any], list[Any]]:
            rows = connection.execute(_AUDIT, {"after": self._audited}).all()
            lines = connection.execute(_LINES, {"since": since_ms}).all()
            connection.execute(_END_RUNS)
            if end_long:
                connection.execute(text("UPDATE crawls SET state = 'finished' WHERE name = 'long'"))
            return list(rows), list(lines)

        rows, lines = await self._run.write(read)
        now_ms = self.cluster.now_ms
        for number, request, target in rows:
            self._audited = number
            schedule_id, due_ms = map(int, request.split("-"))
            self.evidence.applied.setdefault((schedule_id, due_ms, target), []).append(now_ms)
        for schedule_id, due_ms, outcome, missed, until_ms in lines:
            line = SeenLine(due_ms, now_ms, outcome, missed, until_ms)
            self.evidence.lines.setdefault((schedule_id, due_ms), line).outcome = outcome

    async def _count_rest(self) -> None:
        """Read the last outcomes, and count the ids of crawls and the partitions that have each command."""
        lines = await self._run.read(
            lambda c: c.execute(text("SELECT schedule_id, due_ms, outcome FROM schedule_firings")).all()
        )
        for schedule_id, due_ms, outcome in lines:
            self.evidence.lines[schedule_id, due_ms].outcome = outcome
        ids = await self._run.read(lambda c: c.execute(text("SELECT name, count(*) FROM crawls GROUP BY name")).all())
        self.evidence.crawl_ids = {name: int(count) for name, count in ids}
        commands: Counter[tuple[int, int]] = Counter()
        for message_id in self.cluster.published:
            _, schedule_id, due_ms, _ = message_id.split("-")
            commands[int(schedule_id), int(due_ms)] += 1
        self.evidence.commands = commands


async def struck_on_sqlite(
    seed: int, count: int, opened: Callable[[Executor], SqlSchedules] = SqlSchedules
) -> FaultRun:
    """Strike `count` faults drawn from the seed at schedules in a new SQLite database."""
    with tempfile.TemporaryDirectory() as folder:
        async with sqlite_tables(Path(folder)) as tables:
            return await FaultedSchedules(executor_of(tables), seed, opened).strike(count)
