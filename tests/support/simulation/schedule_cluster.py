"""Masters that fire schedules over one real database. Their clocks, their etcd and their broker are simulated.

The classes under test are real: the leader's round (`ScheduleRunner`), its transactions (`SqlSchedules`), the epoch and
the term of a leadership (`epoch_after`, `SqlStore.raise_epoch`). A master counts its steps: each statement, each commit
and each publication. A strike at a step kills the master, cuts it from the database, loses an answer or stops it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, event

from api.leader.command_rounds import CommandRounds
from api.leader.leader import epoch_after
from api.leader.schedule_commands import ScheduleCommandPublisher
from api.leader.schedule_runner import LEAST_S, ScheduleRunner
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.executor import Executor
from shared.adapters.sql.engine.point_query import PointQuery
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.errors import Transient
from shared.domain.ids import Term, term_of
from shared.ports.broker import Broker

T = TypeVar("T")

PARTITIONS: Final = 4
START_MS: Final = 1_800_000_000_000
TTL_MS: Final = 15_000
_ACTS_MS: Final = TTL_MS - 4_000
_ROUNDS: Final = 10
_LONGEST_TICK_MS: Final = 12_000


class Killed(Exception):
    """The process of the master was killed at this step."""


class Strike(StrEnum):
    """What happens to a master at a step."""

    KILL = "kill"
    CUT = "cut"
    LOSE = "lose"
    STOP = "stop"


class Steps:
    """Counts the steps of one process, and strikes at the one that was drawn."""

    def __init__(self) -> None:
        self.dead = False
        self.cut = False
        self.strike: Strike | None = None
        self.stopped, self.continued = asyncio.Event(), asyncio.Event()
        self._left = 0

    def arm(self, strike: Strike, after: int) -> None:
        """Strike at the first step after `after` others at which this strike is possible."""
        self.strike, self._left = strike, after

    def inside(self) -> None:
        """Count a step inside a transaction."""
        self._check()
        if self._reached() and self.strike in (Strike.KILL, Strike.CUT):
            self._strike()

    async def between(self, *, committed: bool = False) -> None:
        """Count a step between two transactions, or between a commit and its answer."""
        self._check()
        if not self._reached() or (self.strike is Strike.LOSE and not committed):
            return
        if self.strike is Strike.STOP:
            self.strike = None
            self.stopped.set()
            await self.continued.wait()
            self.stopped.clear()
            return
        self._strike()

    def _check(self) -> None:
        if self.dead:
            raise Killed
        if self.cut:
            raise Transient("the database is away", retry_in=1.0)

    def _reached(self) -> bool:
        self._left -= 1
        return self.strike is not None and self._left < 0

    def _strike(self) -> None:
        strike, self.strike = self.strike, None
        self.dead, self.cut = strike is Strike.KILL, strike is Strike.CUT
        if strike is Strike.LOSE:
            raise Transient("the answer is lost", retry_in=1.0)
        self._check()


class SteppedExecutor:
    """An executor whose transactions count their steps."""

    def __init__(self, run: Executor, steps: Steps) -> None:
        self._run = run
        self._steps = steps

    async def write(self, transaction: Callable[[Connection], T]) -> T:
        await self._steps.between()
        result = await self._run.write(self._counted(transaction))
        await self._steps.between(committed=True)
        return result

    async def read(self, query: Callable[[Connection], T]) -> T:
        await self._steps.between()
        return await self._run.read(query)

    async def glance(self, query: PointQuery, **keys: Any) -> Sequence[Any]:
        await self._steps.between()
        return await self._run.glance(query, **keys)

    async def data_version(self) -> int | None:
        return await self._run.data_version()

    def disk_full(self) -> bool:
        return False

    def silent_s(self) -> float:
        return 0.0

    async def close(self) -> None:
        raise NotImplementedError("masters share the executor")

    def _counted(self, transaction: Callable[[Connection], T]) -> Callable[[Connection], T]:
        @wraps(transaction)
        def run(connection: Connection) -> T:
            def count(*_: object) -> None:
                self._steps.inside()

            event.listen(connection, "before_cursor_execute", count)
            try:
                result = transaction(connection)
                self._steps.inside()  # before the commit
                return result
            finally:
                event.remove(connection, "before_cursor_execute", count)

        return run


@dataclass
class Etcd:
    """What etcd has: its revision, the epoch, and the holder of the leader's key with the end of its lease."""

    revision: int = 1
    epoch: int | None = None
    holder: str | None = None
    until_ms: int = 0


class Reports:
    """The broker: the ids of the messages that it acknowledged, and how often."""

    def __init__(self, steps: Steps, published: dict[str, int]) -> None:
        self._steps = steps
        self._published = published

    async def publish_command(self, partition: int, data: bytes, message_id: str) -> None:
        await self._steps.between()
        self._published[message_id] = self._published.get(message_id, 0) + 1
        await self._steps.between(committed=True)


@dataclass
class Master:
    """A process: its clock's error, its links, and its leadership while it believes to have one."""

    name: str
    steps: Steps = field(default_factory=Steps)
    clock_ms: int = 0
    etcd_cut: bool = False
    back_at_ms: int = 0
    term: Term | None = None
    acts_until_ms: int = 0
    runner: ScheduleRunner | None = None
    commands: CommandRounds | None = None
    round: "asyncio.Task[float | None] | None" = None


class ScheduleCluster:
    """Masters, of which at most one holds the leader's key of etcd. Real time passes in ticks of some seconds.

    `opened` makes the schedules of a master from its executor. `ticked` is called after each tick.
    """

    def __init__(
        self,
        run: Executor,
        draw: random.Random,
        opened: Callable[[Executor], SqlSchedules],
        masters: int = 3,
    ) -> None:
        self.now_ms = START_MS
        self.etcd = Etcd()
        self.masters = [Master(f"m{number}") for number in range(masters)]
        self.published: dict[str, int] = {}
        self.ticked: list[Callable[[], Any]] = []
        self._run = run
        self._draw = draw
        self._opened = opened

    def leader(self) -> Master | None:
        """Return the master that holds the leader's key and acts, None if there is none."""
        return next((each for each in self.masters if each.name == self.etcd.holder and self._acts(each)), None)

    async def advance(self, passed_ms: int) -> None:
        """Let real time pass: in each tick leases are renewed, a leader is elected, and leaders run their rounds."""
        end_ms = self.now_ms + passed_ms
        while self.now_ms < end_ms:
            await self.tick()

    async def tick(self) -> None:
        self.now_ms += self._draw.randint(1_000, _LONGEST_TICK_MS)
        for master in self.masters:
            if master.steps.dead and self.now_ms >= master.back_at_ms:
                self.restart(master)
            self._renew(master)
        await self._elect()
        for master in self._draw.sample(self.masters, len(self.masters)):
            await self._rounds(master)
        for call in self.ticked:
            await call()

    def kill(self, master: Master, away_ms: int) -> None:
        """Kill the process. It is started again after `away_ms`."""
        master.steps.dead, master.back_at_ms = True, self.now_ms + away_ms
        master.runner, master.term, master.acts_until_ms = None, None, 0

    def restart(self, master: Master) -> None:
        master.steps = Steps()
        master.runner, master.term, master.acts_until_ms = None, None, 0

    async def resume(self, master: Master) -> None:
        """Let a stopped process go on where it stopped, until its round ends."""
        task, master.round = master.round, None
        assert task is not None
        master.steps.continued.set()
        await task
        master.steps.continued.clear()

    def resign(self, master: Master) -> None:
        """End the leadership of a master in order."""
        if self.etcd.holder == master.name:
            self.etcd.holder = None
        master.runner, master.term, master.acts_until_ms = None, None, 0

    def unix_ms(self, master: Master) -> int:
        return self.now_ms + master.clock_ms

    def _acts(self, master: Master) -> bool:
        return master.runner is not None and self.now_ms < master.acts_until_ms

    def _renew(self, master: Master) -> None:
        if master.runner is None or master.etcd_cut or master.round is not None or master.steps.dead:
            return
        if self.etcd.holder == master.name and self.now_ms < self.etcd.until_ms:
            self.etcd.until_ms = self.now_ms + TTL_MS
            master.acts_until_ms = self.now_ms + _ACTS_MS
        elif self.now_ms >= master.acts_until_ms:
            master.runner, master.term = None, None

    async def _elect(self) -> None:
        if self.etcd.holder is not None and self.now_ms < self.etcd.until_ms:
            return
        able = [each for each in self.masters if not each.steps.dead and not each.etcd_cut and each.round is None]
        able = [each for each in able if not self._acts(each)]
        if not able:
            return
        master = self._draw.choice(able)
        if master.steps.strike is Strike.STOP:  # only rounds can be stopped
            master.steps.strike = None
        self.etcd.revision += self._draw.randint(1, 9)
        revision, etcd = self.etcd.revision, self.etcd
        etcd.holder, etcd.until_ms = master.name, self.now_ms + TTL_MS
        executor = SteppedExecutor(self._run, master.steps)
        store = SqlStore(executor)
        try:
            epoch = epoch_after(await store.epoch(), etcd.epoch, await store.newest_term(), revision)
            if (await store.epoch(), etcd.epoch) != (epoch, epoch):
                etcd.epoch = await store.raise_epoch(epoch)
        except Transient:
            return self.resign(master)
        except Killed:
            return self.kill(master, self._draw.randint(0, 30_000))
        self._lead(master, executor, term_of(epoch, revision))

    def _lead(self, master: Master, executor: SteppedExecutor, term: Term) -> None:
        cluster = self

        class MasterClock:
            def elapsed(self) -> float:
                return cluster.now_ms / 1000

            def unix_ms(self) -> int:
                return cluster.unix_ms(master)

        master.term, master.acts_until_ms = term, self.now_ms + _ACTS_MS
        schedules = self._opened(executor)
        publisher = ScheduleCommandPublisher(schedules, cast(Broker, Reports(master.steps, self.published)), PARTITIONS)

        def acts() -> bool:
            return master.term == term and self.now_ms < master.acts_until_ms

        master.commands = CommandRounds("schedules", publisher.once, acts)
        master.runner = ScheduleRunner(
            schedules,
            MasterClock(),
            PARTITIONS,
            lambda: term if acts() else None,
            lambda: None,
            lambda: None,
            lambda *_: None,
        )

    async def _rounds(self, master: Master) -> None:
        """Run rounds of a master until nothing is due, but not many. One that is stopped goes on at `resume`."""
        for _ in range(_ROUNDS):
            if not self._acts(master) or master.round is not None or master.steps.dead:
                return
            task = asyncio.create_task(self._round(master))
            stopped = asyncio.create_task(master.steps.stopped.wait())
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                master.round = task
                return
            stopped.cancel()
            await asyncio.gather(stopped, return_exceptions=True)
            pause_s = task.result()
            if pause_s is None or pause_s > LEAST_S:
                return

    async def _round(self, master: Master) -> float | None:
        runner, commands = master.runner, master.commands
        assert runner is not None
        assert commands is not None
        try:
            pause_s = await runner.attempt()
            await commands.attempt()
        except Killed:
            self.kill(master, self._draw.randint(0, 30_000))
            return None
        return pause_s
