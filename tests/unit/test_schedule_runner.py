"""The leader's round over schedules: it claims once, fires what is due, and publishes commands before it goes on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from msgspec import structs

from api.leader.schedule_commands import PUBLISHING, ScheduleCommandPublisher
from api.leader.schedule_runner import AT_ONCE, BATCH, LEAST_S, ScheduleRunner
from shared.domain.crawl.state import Verb
from shared.domain.errors import OwnershipLost, Permanent, Refused
from shared.domain.ids import CrawlId, Term
from shared.domain.schedules.firing import Step
from shared.domain.schedules.history import CrawlEffect, Firing, FiringOutcome, HistoryChange
from shared.domain.schedules.spec import ScheduleSpec
from shared.domain.schedules.stored import QueuedEffect, StoredSchedule, UnreadableSchedule, WaitingCommand
from shared.ports.broker import Broker
from shared.ports.schedules import Schedules
from tests.support.manual_clock import ManualClock

TERM = Term(3)
SPEC = ScheduleSpec(Verb.RETRY_FAILED, crawl="docs", every_s=60)


class StoppedClock(ManualClock):
    """A clock whose time of day stands still."""

    def unix_ms(self) -> int:
        return 1_800_000_030_000


class OneTable:
    """Schedules of one table in memory, which refuses every claim below its term."""

    def __init__(self, due_ms: Sequence[int]) -> None:
        self.term = Term(0)
        self.rows = dict(enumerate(due_ms, 1))
        self.waiting: list[WaitingCommand] = []
        self.asked: list[int] = []
        self.batches: list[int] = []
        self.refused = ""
        self.queue: list[QueuedEffect] = []

    async def claim(self, term: Term) -> None:
        if term < self.term:
            raise OwnershipLost("a later leader has claimed")
        self.term = term

    async def due(
        self, now_ms: int, max_count: int, after: tuple[int, int] | None = None
    ) -> Sequence[StoredSchedule | UnreadableSchedule]:
        self.asked.append(max_count)
        due = sorted((at, number) for number, at in self.rows.items() if at <= now_ms)
        found = [place for place in due if after is None or place > after][:max_count]
        return [StoredSchedule(number, f"s{number}", 1, SPEC, False, at, at, 0, 0, "test") for at, number in found]

    async def next_fires_ms(self) -> int | None:
        return min(self.rows.values(), default=None)

    async def fire(
        self, term: Term, due: StoredSchedule, step: Step, now_ms: int, partitions: int
    ) -> HistoryChange | None:
        if due.name == self.refused:
            raise Permanent("a row is refused")
        if self.rows[due.schedule_id] != due.due_ms:
            return None
        assert step.next_ms is not None
        assert step.fires is not None
        self.rows[due.schedule_id] = step.next_ms
        command = WaitingCommand(due.schedule_id, step.fires, "docs", CrawlId(7), f"retry-{due.schedule_id}")
        self.waiting.append(command)
        effect = CrawlEffect("docs", CrawlId(7), FiringOutcome.FIRED, "", now_ms, command.command)
        line = Firing(
            due.schedule_id, step.fires, now_ms, Verb.RETRY_FAILED, FiringOutcome.FIRED, "", 0, step.fires, [effect]
        )
        return HistoryChange(due.name, [line])

    async def fire_all(
        self, term: Term, steps: Sequence[tuple[StoredSchedule, Step]], now_ms: int, partitions: int
    ) -> Sequence[HistoryChange | None]:
        self.batches.append(len(steps))
        if any(stored.name == self.refused for stored, _ in steps):
            raise Permanent("a row is refused")
        return [await self.fire(term, stored, step, now_ms, partitions) for stored, step in steps]

    async def queued(self, max_count: int, after: tuple[str, int, int] | None = None) -> Sequence[QueuedEffect]:
        return self.queue

    async def fire_queued(self, term: Term, queued: QueuedEffect, now_ms: int, partitions: int) -> HistoryChange | None:
        """Return a line for the first crawl of a firing: it changes the outcome."""
        self.queue = [each for each in self.queue if each != queued]
        verb, outcome = Verb.START, FiringOutcome.FIRED
        line = Firing(queued.schedule_id, queued.due_ms, now_ms, verb, outcome, "", 0, queued.due_ms)
        return HistoryChange(f"s{queued.schedule_id}", [line] if queued.crawl == "a" else [], waited=True)

    async def commands(self, after: tuple[int, int, str] | None, max_count: int) -> Sequence[WaitingCommand]:
        left = sorted(self.waiting, key=lambda each: each.place)
        return [each for each in left if after is None or each.place > after][:max_count]

    async def commanded(self, command: WaitingCommand) -> None:
        self.waiting.remove(command)


class Reports:
    """A broker that keeps the ids of what was published."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.full = ""
        self.refused: set[str] = set()

    async def publish_command(self, partition: int, data: bytes, message_id: str) -> None:
        if message_id == self.full:
            raise Refused("the subject is full")
        if message_id.rpartition(".")[0] in self.refused:
            raise Permanent(f"{message_id} is too large")
        self.ids.append(message_id)


def runner(table: OneTable, clock: StoppedClock, **more: Any) -> tuple[ScheduleRunner, list[str]]:
    noted = list[str]()
    made = ScheduleRunner(
        cast(Schedules, table),
        clock,
        2,
        lambda: TERM,
        more.get("publish", lambda: None),
        more.get("changed", lambda: None),
        lambda schedule, firing, waited: noted.append(f"{schedule} {firing.outcome}" + " later" * waited),
    )
    return made, noted


def publisher(table: OneTable) -> tuple[ScheduleCommandPublisher, Reports]:
    broker = Reports()
    return ScheduleCommandPublisher(cast(Schedules, table), cast(Broker, broker), 2), broker


def test_round_fires_what_is_due_and_wakes_the_publisher() -> None:
    async def story() -> None:
        clock, calls = StoppedClock(), list[str]()
        now = clock.unix_ms()
        table = OneTable([now - 1_000, now + 200])
        changed, publish = (lambda: calls.append("changed")), (lambda: calls.append("publish"))
        leads, noted = runner(table, clock, changed=changed, publish=publish)
        assert await leads.once(TERM) == LEAST_S
        assert (noted, calls) == (["s1 fired"], ["changed", "publish"])
        publishes, broker = publisher(table)
        await publishes.once()
        assert broker.ids == ["retry-1.0", "retry-1.1"]
        assert table.waiting == []
        assert await leads.once(TERM) == pytest.approx(0.2), "until the next one fires"
        assert calls == ["changed", "publish"], "nothing was fired"
        assert table.asked == [AT_ONCE], "nothing was due in the second round"

    asyncio.run(story())


def test_schedule_that_cannot_be_fired_delays_no_other() -> None:
    async def story() -> None:
        clock = StoppedClock()
        due_ms = clock.unix_ms() - 1_000
        table = OneTable([due_ms] * 3)
        found = await table.due(clock.unix_ms(), AT_ONCE)

        async def due(
            now_ms: int, max_count: int, after: tuple[int, int] | None = None
        ) -> Sequence[StoredSchedule | UnreadableSchedule]:
            assert isinstance(found[1], StoredSchedule)
            unknown = replace(found[1], spec=structs.replace(SPEC, zone="Mars/Olympus"))
            fired = table.rows[3] != due_ms
            unread = UnreadableSchedule(1, "s1", "its spec cannot be read", "a", False, due_ms, 0, 1, "x")
            return [unread, unknown, *([] if fired else found[2:])]

        table.due = due  # type: ignore[method-assign]
        leads, noted = runner(table, clock)
        assert await leads.once(TERM) == LEAST_S
        assert noted == ["s3 fired"]
        assert await leads.once(TERM) == 0.5, "what cannot be fired is not tried again at once"
        assert noted == ["s3 fired"]

    asyncio.run(story())


def test_due_schedules_fire_in_batches() -> None:
    async def story() -> None:
        clock = StoppedClock()
        table = OneTable([clock.unix_ms() - 1_000] * (BATCH + 3))
        leads, noted = runner(table, clock)
        assert await leads.once(TERM) == LEAST_S
        assert (table.batches, len(noted)) == ([BATCH, 3], BATCH + 3)

    asyncio.run(story())


def test_round_that_read_as_much_as_it_may_is_followed_at_once() -> None:
    async def story() -> None:
        clock = StoppedClock()
        leads, noted = runner(OneTable([clock.unix_ms() - 1_000] * AT_ONCE), clock)
        assert await leads.once(TERM) == 0.0
        assert len(noted) == AT_ONCE

    asyncio.run(story())


def test_batch_that_is_refused_fires_all_but_the_schedule_at_fault() -> None:
    async def story() -> None:
        clock = StoppedClock()
        table = OneTable([clock.unix_ms() - 1_000] * 4)
        table.refused = "s2"
        leads, noted = runner(table, clock)
        assert await leads.once(TERM) == LEAST_S
        assert noted == ["s1 fired", "s3 fired", "s4 fired"]
        assert await leads.once(TERM) == 0.5, "what cannot be fired is not tried again at once"

    asyncio.run(story())


def test_firing_whose_crawls_waited_is_noted_once_and_wakes_for_each() -> None:
    async def story() -> None:
        clock, calls = StoppedClock(), list[str]()
        table = OneTable([clock.unix_ms() + 60_000])
        table.queue = [QueuedEffect(1, clock.unix_ms(), crawl) for crawl in ("a", "b", "c")]
        changed, publish = (lambda: calls.append("changed")), (lambda: calls.append("publish"))
        leads, noted = runner(table, clock, changed=changed, publish=publish)
        await leads.once(TERM)
        assert noted == ["s1 fired later"]
        assert calls == ["changed"] * 3 + ["publish"]

    asyncio.run(story())


def test_command_that_a_partition_refuses_waits_and_delays_no_other() -> None:
    async def story() -> None:
        clock = StoppedClock()
        table = OneTable([clock.unix_ms() - 1_000] * 2)
        leads, _ = runner(table, clock)
        assert await leads.once(TERM) == LEAST_S
        publishes, broker = publisher(table)
        broker.full = "retry-1.1"
        assert [*await publishes.once()] == ["retry-1"]
        assert broker.ids == ["retry-1.0", "retry-2.0", "retry-2.1"]
        assert [each.command for each in table.waiting] == ["retry-1"]
        broker.full = ""
        assert await publishes.once() == {}
        assert broker.ids[3:] == ["retry-1.0", "retry-1.1"]
        assert table.waiting == []

    asyncio.run(story())


def test_commands_of_many_schedules_are_published_together() -> None:
    """As many at a time as are allowed, all that wait, and none waits for one that its partition refuses."""

    async def story() -> None:
        table = OneTable([])
        wanted = AT_ONCE + 7
        table.waiting = [WaitingCommand(n, 1, "docs", CrawlId(7), f"retry-{n}") for n in range(wanted)]
        publishes, broker = publisher(table)
        under_way, most = 0, 0

        async def slow(partition: int, data: bytes, message_id: str) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(3):
                await asyncio.sleep(0)
            under_way -= 1
            broker.ids.append(message_id)

        broker.publish_command = slow  # type: ignore[method-assign]  # a broker that takes its time
        await publishes.once()
        assert most == PUBLISHING
        assert sorted(broker.ids) == sorted(f"retry-{n}.{partition}" for n in range(wanted) for partition in range(2))
        assert table.waiting == []

        table.waiting = [WaitingCommand(n, 2, "docs", CrawlId(7), f"again-{n}") for n in range(40)]
        publishes, broker = publisher(table)
        broker.full = "again-3.1"
        await publishes.once()
        assert [each.command for each in table.waiting] == ["again-3"]
        broker.full = ""
        await publishes.once()
        assert table.waiting == []

    asyncio.run(story())


def test_commands_that_are_refused_for_good_starve_no_other() -> None:
    """Two whole reads of them come before one that can be published."""

    async def story() -> None:
        table = OneTable([])
        wanted = 2 * AT_ONCE + 1
        table.waiting = [WaitingCommand(n, 1, "docs", CrawlId(7), f"retry-{n}") for n in range(wanted)]
        publishes, broker = publisher(table)
        broker.refused = {f"retry-{n}" for n in range(2 * AT_ONCE)}
        errors = await publishes.once()
        assert broker.ids == [f"retry-{2 * AT_ONCE}.{partition}" for partition in range(2)]
        assert errors.keys() == broker.refused, "each has its error"
        assert {each.command for each in table.waiting} == broker.refused

    asyncio.run(story())


def test_round_of_a_deposed_leader_fires_nothing() -> None:
    async def story() -> None:
        clock = StoppedClock()
        table = OneTable([clock.unix_ms() - 1_000])
        table.term = Term(9)
        leads, noted = runner(table, clock)
        with pytest.raises(OwnershipLost):
            await leads.once(TERM)
        assert noted == []

    asyncio.run(story())


def test_runner_of_a_deposed_leader_goes_on_without_firing() -> None:
    """Its task must not end the master: the leadership ends elsewhere."""

    async def story() -> None:
        clock = StoppedClock()
        table = OneTable([clock.unix_ms() - 1_000])
        table.term = Term(9)
        refused = asyncio.Event()

        async def claim(term: Term) -> None:
            refused.set()
            raise OwnershipLost("a later leader has claimed")

        table.claim = claim  # type: ignore[method-assign]
        leads, noted = runner(table, clock)
        running = asyncio.create_task(leads.run())
        await refused.wait()
        await asyncio.sleep(0)
        assert not running.done()
        assert noted == []
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
