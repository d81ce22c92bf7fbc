"""What is due together fires in one transaction, and a round costs what is due, on every engine."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from sqlalchemy import Connection, insert, text

from shared.adapters.sql.engine.access_schema import schedules
from shared.domain.crawl.state import Verb
from shared.domain.errors import OwnershipLost
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import Term
from shared.domain.schedules.history import FiringOutcome
from shared.domain.schedules.spec import Overlap, ScheduleSpec
from shared.domain.schedules.stored import StoredSchedule, encode_schedule
from tests.support.database.schedule_stage import EVERY, MINUTE, NOW, OPERATOR, PARTITIONS, TERM, step
from tests.support.database.schedule_stage import ScheduleStage as Stage
from tests.support.database.statement_log import statements

Story = Callable[[Stage], Awaitable[None]]


def test_batch_fires_each_due_time_with_its_effect(on_schedules: Callable[[Story], None]) -> None:
    """Two schedules of one crawl act in turn, and one that an operator has changed meanwhile fires nothing."""

    async def story(stage: Stage) -> None:
        await stage.crawl()
        await stage.crawl("blog")
        first, second = await stage.declared(), await stage.declared(name="again")
        pausing = await stage.declared(ScheduleSpec(Verb.PAUSE, crawl="news", every_s=60), "pausing")
        other = await stage.declared(ScheduleSpec(Verb.RESET, crawl="blog", every_s=60), "other")
        changed = await stage.declared(ScheduleSpec(Verb.CANCEL, crawl="blog", every_s=60), "changed")
        await stage.schedules.pause("changed", paused=True, expected=None, actor=OPERATOR, now_ms=NOW)
        due = [first, second, pausing, other, changed]
        steps = [(stored, step(stored, NOW + MINUTE)) for stored in due]
        with pytest.raises(OwnershipLost):
            await stage.schedules.fire_all(Term(4), steps, NOW + MINUTE, PARTITIONS)
        made = await stage.schedules.fire_all(TERM, steps, NOW + MINUTE, PARTITIONS)
        outcomes = [None if fired is None else fired.firings[0].outcome for fired in made]
        fired, skipped = FiringOutcome.FIRED, FiringOutcome.SKIPPED
        assert outcomes == [fired, skipped, fired, fired, None]
        assert await stage.state() is CrawlState.PAUSED
        assert [action for action, _ in await stage.verbs()] == ["crawl.start", "crawl.pause", "crawl.reset"]
        for stored, line in zip(due, made, strict=True):
            history = await stage.schedules.history(stored.schedule_id, before_ms=2**62, max_count=10)
            assert history == ([] if line is None else line.firings)
        again = await stage.schedules.fire_all(TERM, steps, NOW + MINUTE, PARTITIONS)
        assert again == [None] * len(steps)

    on_schedules(story)


def test_batch_costs_fewer_statements_than_its_schedules(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        await stage.crawl(start=True)
        sent_for = []
        for size in (1, 11):
            due = [await stage.declared(name=f"s{size}-{number}") for number in range(size)]
            steps = [(stored, step(stored, NOW + MINUTE)) for stored in due]
            with statements() as sent:
                await stage.schedules.fire_all(TERM, steps, NOW + MINUTE, PARTITIONS)
            sent_for.append(len(sent))
        one_more = (sent_for[1] - sent_for[0]) / 10
        assert one_more == 0, "schedules that are skipped share all statements"

    on_schedules(story)


def test_queued_firing_of_a_selector_changes_its_outcome_once(on_schedules: Callable[[Story], None]) -> None:
    async def story(stage: Stage) -> None:
        for name in ("a", "b"):
            await stage.crawl(name, start=True, team="search")
        spec = ScheduleSpec(Verb.START, selector={"team": "search"}, every_s=60, overlap=Overlap.QUEUE)
        fired = await stage.fire(await stage.declared(spec), NOW + MINUTE)
        assert fired is not None
        assert ([each.outcome for each in fired.firings], fired.waited) == ([FiringOutcome.QUEUED], False)
        noted = []
        for name in ("a", "b"):
            await stage.catalog.turn(name, Verb.CANCEL, expected=None, actor=OPERATOR, now_ms=NOW)
            [waiting] = await stage.schedules.queued(10)
            made = await stage.schedules.fire_queued(TERM, waiting, NOW + 2 * MINUTE, PARTITIONS)
            assert made is not None
            assert made.waited
            noted += [(each.outcome, [effect.crawl for effect in each.effects]) for each in made.firings]
            assert await stage.state(name) is CrawlState.SEEDING
        assert noted == [(FiringOutcome.FIRED, ["a", "b"])]

    on_schedules(story)


def test_ten_thousand_schedules_cost_what_is_due(on_schedules: Callable[[Story], None]) -> None:
    """A round with three due schedules sends as many statements for 10,000 as for ten, and finds them by index."""

    async def story(stage: Stage) -> None:
        await stage.crawl(start=True)
        sent_for = []
        for count, first in ((10, 0), (10_000, 10)):
            await stage.run.write(partial(fill, first=first, count=count))
            with statements() as sent:
                due = await stage.schedules.due(NOW, 100)
                for stored in due:
                    assert isinstance(stored, StoredSchedule)
                    assert await stage.fire(stored, NOW) is not None
                await stage.schedules.next_fires_ms()
                await stage.schedules.queued(100)
                await stage.schedules.commands(None, 100)
            assert len(due) == 3
            sent_for.append(len(sent))
        assert sent_for[0] == sent_for[1], sent_for
        assert sent_for[0] > 6, "they are not counted"

        def plan(connection: Connection) -> str:
            if connection.dialect.name == "sqlite":
                explain = "EXPLAIN QUERY PLAN "
            else:
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                explain = "EXPLAIN "
            query = f"{explain}SELECT * FROM schedules WHERE NOT paused AND fires_ms <= {NOW} ORDER BY fires_ms LIMIT 9"
            return str(connection.execute(text(query)).all())

        assert "schedules_due" in await stage.run.read(plan)

    on_schedules(story)


def fill(connection: Connection, first: int, count: int) -> None:
    """Add schedules of which three are due at NOW."""
    rows = [
        {
            "name": f"s{number}",
            "version": 1,
            "spec": encode_schedule(EVERY),
            "crawl": "news",
            "paused": False,
            "due_ms": (due := NOW if number - first < 3 else NOW + 90 * MINUTE),
            "fires_ms": due,
            "last_ms": 0,
            "created_at_ms": NOW,
            "created_by": "test",
        }
        for number in range(first, first + count)
    ]
    connection.execute(insert(schedules), rows)
