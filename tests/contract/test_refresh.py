"""When the refresh of a crawl began, on every engine: verbs, declarations and schedules set and clear it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from sqlalchemy import text

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import REFRESHED, DesiredRun, IllegalTransition, NoRecrawl, Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import Partition, Revision, Term
from shared.domain.reads.declared import Actor, Declaration, DeclaredCrawl
from shared.domain.schedules.firing import step_of
from shared.domain.schedules.history import CrawlEffect
from shared.domain.schedules.spec import ScheduleSpec
from shared.ports.broker import StreamState
from tests.support.database.running_crawls import Master
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables

OPERATOR = Actor("0" * 16, "operator", "r")
ONCE = '{"seeds": []}'
AGAIN = '{"seeds": [], "recrawl": {"policy": "fixed", "min_s": 60}}'

Opened = Callable[[], AbstractAsyncContextManager[Tables]]


class Stage:
    """A crawl in a database, and what is done to it. Each verb is applied a second after the one before."""

    def __init__(self, tables: Tables) -> None:
        assert isinstance(tables.store, SqlStore)
        self.store = tables.store
        self.catalog = SqlCatalog(tables.store.executor)
        self.schedules = SqlSchedules(tables.store.executor)
        self.now_ms = NOW_MS

    async def put(self, spec: str, desired: DesiredRun | None = None) -> DeclaredCrawl:
        made, _ = await self.catalog.put(
            Declaration("news", spec, {}, desired), expected=None, start=False, actor=OPERATOR, now_ms=self.now_ms
        )
        return made

    async def turn(self, verb: Verb) -> int:
        """Apply the verb. Return when the refresh of the crawl began, which all readers of the crawl agree on."""
        self.now_ms += 1_000
        _, made = await self.catalog.turn("news", verb, expected=None, actor=OPERATOR, now_ms=self.now_ms)
        assert made == await self.catalog.crawl("news")
        row = await self.store.crawl(made.crawl_id)
        assert row is not None
        assert row.refresh_ms == made.refresh_ms
        return row.refresh_ms

    async def ended(self) -> None:
        """End the crawl's run, as the leader does."""
        await self.seeded()
        await self._advanced(CrawlState.RUNNING, CrawlState.FINISHED, REFRESHED)

    async def seeded(self) -> None:
        """End the seeding of the crawl, as the leader does."""
        await self._advanced(CrawlState.SEEDING, CrawlState.RUNNING, None)

    async def _advanced(self, before: CrawlState, after: CrawlState, reason: str | None) -> None:
        crawl = await self.catalog.crawl("news")
        assert await self.store.advance_crawl(crawl.crawl_id, Revision(1), before, after, reason, self.now_ms)

    async def fired(self, verb: Verb) -> CrawlEffect:
        """Fire a schedule with the verb. Return what it did to the crawl."""
        spec = ScheduleSpec(verb=verb, crawl="news", every_s=3600)
        stored = await self.schedules.create("hourly", spec, paused=False, actor=OPERATOR, now_ms=self.now_ms)
        assert stored.due_ms is not None
        step = step_of(spec, stored.schedule_id, stored.due_ms, stored.due_ms)
        assert step is not None
        await self.schedules.claim(Term(1))
        self.now_ms = stored.due_ms
        fired = await self.schedules.fire(Term(1), stored, step, self.now_ms, 1)
        assert fired is not None
        [effect] = fired.firings[0].effects
        return effect


def test_verbs_set_keep_and_clear_the_time_of_a_refresh(new_tables: Opened) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            await stage.put(AGAIN)
            began = await stage.turn(Verb.REFRESH)
            assert began == stage.now_ms
            assert await stage.turn(Verb.PAUSE) == began
            assert await stage.turn(Verb.RESUME) == began
            await stage.ended()
            assert await stage.turn(Verb.RETRY_FAILED) == began, "no page that became due later is fetched"
            assert await stage.turn(Verb.CANCEL) == began
            assert await stage.turn(Verb.REFRESH) == stage.now_ms > began
            assert await stage.turn(Verb.CANCEL) == stage.now_ms - 1_000
            assert await stage.turn(Verb.START) == 0
            await stage.turn(Verb.CANCEL)
            assert await stage.turn(Verb.REFRESH) == stage.now_ms
            assert await stage.turn(Verb.RESET) == 0

    asyncio.run(story())


def test_refresh_of_a_crawl_without_recrawl_changes_nothing(new_tables: Opened) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            before = await stage.put(ONCE)
            with pytest.raises(NoRecrawl):
                await stage.turn(Verb.REFRESH)
            assert await stage.catalog.crawl("news") == before

    asyncio.run(story())


def test_refusal_of_a_refresh_says_how_to_begin_one(new_tables: Opened) -> None:
    """A run that `start` began has no end, so to wait for it would be in vain."""

    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            await stage.put(AGAIN)
            await stage.turn(Verb.START)
            with pytest.raises(
                IllegalTransition, match=r"`start` began .* no end: cancel it before a refresh"
            ) as refused:
                await stage.turn(Verb.REFRESH)
            assert Verb.CANCEL in refused.value.legal
            await stage.turn(Verb.CANCEL)
            await stage.turn(Verb.REFRESH)
            with pytest.raises(IllegalTransition, match="a refresh of the crawl has begun already: wait for its end"):
                await stage.turn(Verb.REFRESH)
            await stage.turn(Verb.PAUSE)
            with pytest.raises(IllegalTransition, match="resume it"):
                await stage.turn(Verb.REFRESH)
            await stage.turn(Verb.RESUME)
            await stage.ended()
            await stage.turn(Verb.REFRESH)
            await stage.turn(Verb.CANCEL)
            await stage.turn(Verb.START)
            await stage.ended()
            assert await stage.turn(Verb.REFRESH) == stage.now_ms, (
                "a run that `start` began and that ended is no hindrance"
            )
            await stage.put(ONCE)
            await stage.turn(Verb.CANCEL)
            await stage.turn(Verb.START)
            with pytest.raises(IllegalTransition, match="does not allow refresh"):
                await stage.turn(Verb.REFRESH)

    asyncio.run(story())


def test_declaration_that_starts_a_crawl_again_begins_no_refresh(new_tables: Opened) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            await stage.put(AGAIN)
            await stage.turn(Verb.REFRESH)
            await stage.turn(Verb.CANCEL)
            made = await stage.put(AGAIN, DesiredRun.RUNNING)
            assert (made.state, made.refresh_ms) == (CrawlState.SEEDING, 0)

    asyncio.run(story())


def test_declaration_of_a_running_refresh_leaves_it_one(new_tables: Opened) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            await stage.put(AGAIN)
            began = await stage.turn(Verb.REFRESH)
            made = await stage.put(AGAIN, DesiredRun.RUNNING)
            assert (made.state, made.refresh_ms) == (CrawlState.SEEDING, began)
            made = await stage.put(AGAIN, DesiredRun.PAUSED)
            assert (made.state, made.refresh_ms) == (CrawlState.PAUSED, began)

    asyncio.run(story())


def test_schedule_begins_a_refresh_at_the_time_of_its_firing(new_tables: Opened) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            await stage.put(AGAIN)
            assert (await stage.fired(Verb.REFRESH)).outcome == "fired"
            made = await stage.catalog.crawl("news")
            assert (made.state, made.refresh_ms) == (CrawlState.SEEDING, stage.now_ms)

    asyncio.run(story())


@pytest.mark.parametrize(("spec", "desired", "detail"), [
    (ONCE, None, "the crawl fetches each page once: set `recrawl` in its spec before a refresh"),
    (AGAIN, DesiredRun.PAUSED, "the crawl declares `desired: paused`, so no schedule applies refresh to it"),
])  # fmt: skip
def test_refused_refresh_has_its_reason_in_the_history(
    new_tables: Opened, spec: str, desired: DesiredRun | None, detail: str
) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            before = await stage.put(spec, desired)
            effect = await stage.fired(Verb.REFRESH)
            assert (effect.outcome, effect.detail) == ("refused", detail)
            assert await stage.catalog.crawl("news") == before

    asyncio.run(story())


@pytest.mark.parametrize("verb", [Verb.REFRESH, Verb.START])
def test_end_of_a_run_does_not_end_the_next_one(new_tables: Opened, verb: Verb) -> None:
    """A leader that stalls after its last check ends no run that began meanwhile, though all it compared is as then."""

    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            crawl = await stage.put(AGAIN.replace("[]", '[{"url": "http://a.test/"}]'))
            await stage.store.executor.write(
                lambda c: c.execute(text("UPDATE partitions SET stream_created_ns = 1")).close()
            )
            master = Master(tables)
            await stage.turn(verb)
            await stage.seeded()
            advance, stalls = tables.store.advance_crawl, True

            async def stalled(*seen: Any) -> bool:
                nonlocal stalls
                if stalls and seen[3] is CrawlState.FINISHED:
                    stalls = False
                    for each in (Verb.CANCEL, verb):
                        await stage.turn(each)
                    await stage.seeded()
                return await advance(*seen)

            tables.store.advance_crawl = stalled  # type: ignore[method-assign, assignment]  # a leader that stalls there
            for _ in range(3):
                await master.look()
                if not stalls:
                    break
            row = await tables.store.crawl(crawl.crawl_id)
            assert row is not None
            assert not stalls, "the leader did not try to end it"
            assert (row.state, row.finished_reason) == (CrawlState.RUNNING, None)
            for _ in range(3):
                await master.look()
            row = await tables.store.crawl(crawl.crawl_id)
            assert row is not None
            assert row.state is CrawlState.FINISHED, "the run that began meanwhile ends by its own check"

    asyncio.run(story())


def test_refresh_waits_for_retries_that_an_owner_applies_late(new_tables: Opened) -> None:
    """The owner has 45 reports to apply as the refresh seems over. Then the operator retries what failed."""

    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            crawl = await stage.put(AGAIN.replace("[]", '[{"url": "http://a.test/"}]'))
            await stage.store.executor.write(
                lambda c: c.execute(text("UPDATE partitions SET stream_created_ns = 1")).close()
            )
            master = Master(tables)
            await stage.turn(Verb.REFRESH)
            await stage.seeded()
            published = 45

            async def last_report(partition: Partition, kind: str) -> int:
                return published if (partition, kind) == (PARTITION, "outcome") else 0

            async def state() -> StreamState:
                return StreamState(1, published)

            # A broker whose stream ends at a place that the test sets.
            master.controller._check._broker.last_report = last_report  # type: ignore[method-assign]
            master.controller._check._broker.reports_state = state  # type: ignore[method-assign]

            async def looked() -> CrawlState:
                for _ in range(3):
                    await master.look()
                row = await tables.store.crawl(crawl.crawl_id)
                assert row is not None
                return row.state

            async def applied(through: int) -> None:
                values = {"through": through, "partition": PARTITION}
                update = text("UPDATE partitions SET outcome_seq = :through WHERE partition = :partition")
                await stage.store.executor.write(lambda c: c.execute(update, values).close())

            assert await looked() is CrawlState.RUNNING
            published = 46
            await stage.turn(Verb.RETRY_FAILED)
            await looked()
            await applied(45)
            assert await looked() is CrawlState.RUNNING, "the command is not applied yet"
            await applied(46)
            assert await looked() is CrawlState.FINISHED

    asyncio.run(story())


def test_refresh_waits_for_a_scheduled_retry_that_is_not_published(new_tables: Opened) -> None:
    async def story() -> None:
        async with new_tables() as tables:
            stage = Stage(tables)
            crawl = await stage.put(AGAIN.replace("[]", '[{"url": "http://a.test/"}]'))
            await stage.store.executor.write(
                lambda c: c.execute(text("UPDATE partitions SET stream_created_ns = 1")).close()
            )
            master = Master(tables)
            await stage.turn(Verb.REFRESH)
            await stage.ended()
            assert (await stage.fired(Verb.RETRY_FAILED)).outcome == "fired"

            async def looked() -> CrawlState:
                for _ in range(3):
                    await master.look()
                row = await tables.store.crawl(crawl.crawl_id)
                assert row is not None
                return row.state

            assert await looked() is CrawlState.RUNNING
            [command] = await stage.schedules.commands(None, 10)
            await stage.schedules.commanded(command)
            assert await looked() is CrawlState.FINISHED

    asyncio.run(story())
