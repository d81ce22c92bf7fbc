"""Whether a crawl runs, as declared, on every engine: transactions of a PUT, a reset, and a schedule's firing."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import COMPLETE, DesiredRun, Verb
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Term
from shared.domain.reads.declared import Actor, Declaration, DeclaredCrawl
from shared.domain.schedules.firing import step_of
from shared.domain.schedules.spec import ScheduleSpec
from tests.support.database.store_tables import NOW_MS, Tables, link

OPERATOR = Actor("0" * 16, "operator", "r")
RUNNING, PAUSED = DesiredRun.RUNNING, DesiredRun.PAUSED
SPEC = '{"seeds": []}'


async def put(
    catalog: SqlCatalog, desired: DesiredRun | None, *, spec: str = SPEC, enforce: bool = True
) -> DeclaredCrawl:
    wanted = Declaration("news", spec, {}, desired)
    made, _ = await catalog.put(wanted, expected=None, start=True, actor=OPERATOR, now_ms=NOW_MS, enforce=enforce)
    assert await catalog.crawl("news") == made
    return made


def test_put_and_reset_follow_the_declaration(new_tables: Callable[[], AbstractAsyncContextManager[Tables]]) -> None:
    async def story() -> None:
        async with new_tables() as t:
            assert isinstance(t.store, SqlStore)
            catalog = SqlCatalog(t.store.executor)
            made = await put(catalog, PAUSED)
            assert (made.state, made.version, made.desired) == (CrawlState.CREATED, 1, PAUSED)
            started = await put(catalog, RUNNING)
            assert (started.state, started.version, started.revision) == (CrawlState.SEEDING, 2, 1)
            assert await put(catalog, RUNNING) == started
            paused = await put(catalog, PAUSED, spec='{"seeds": [], "n": 2}')
            assert (paused.state, paused.resumes_as, paused.revision) == (CrawlState.PAUSED, CrawlState.SEEDING, 2)
            _, resumed = await catalog.turn("news", Verb.RESUME, expected=None, actor=OPERATOR, now_ms=NOW_MS)
            assert resumed.drifted
            left = await put(catalog, PAUSED, spec='{"seeds": [], "n": 2}', enforce=False)
            assert left == resumed, "only the declaration counts, and it is the same"
            _, again = await catalog.turn("news", Verb.RESET, expected=None, actor=OPERATOR, now_ms=NOW_MS)
            assert (again.state, again.desired) == (CrawlState.CREATED, PAUSED)
            free = await put(catalog, None, spec='{"seeds": [], "n": 2}')
            assert (free.state, free.desired, free.crawl_id) == (CrawlState.CREATED, None, again.crawl_id)

    asyncio.run(story())


@pytest.mark.parametrize(("verb", "outcome"), [(Verb.START, "refused"), (Verb.PAUSE, "refused"), (Verb.RESET, "fired")])
def test_firing_on_a_declared_crawl_is_refused_in_the_history(
    new_tables: Callable[[], AbstractAsyncContextManager[Tables]], verb: Verb, outcome: str
) -> None:
    async def story() -> None:
        async with new_tables() as t:
            assert isinstance(t.store, SqlStore)
            catalog, schedules = SqlCatalog(t.store.executor), SqlSchedules(t.store.executor)
            await put(catalog, PAUSED)
            spec = ScheduleSpec(verb=verb, crawl="news", every_s=3600)
            stored = await schedules.create("hourly", spec, paused=False, actor=OPERATOR, now_ms=NOW_MS)
            assert stored.due_ms is not None
            step = step_of(spec, stored.schedule_id, stored.due_ms, stored.due_ms)
            assert step is not None
            await schedules.claim(Term(1))
            fired = await schedules.fire(Term(1), stored, step, stored.due_ms, 1)
            assert fired is not None
            [effect] = fired.firings[0].effects
            assert effect.outcome == outcome
            assert effect.detail == (
                f"the crawl declares `desired: paused`, so no schedule applies {verb} to it" * (outcome == "refused")
            )
            assert (await catalog.crawl("news")).state is CrawlState.CREATED

    asyncio.run(story())


@pytest.mark.parametrize("by_itself", [False, True])
def test_finished_crawl_with_a_new_spec_is_seeded_when_it_runs_again(
    new_tables: Callable[[], AbstractAsyncContextManager[Tables]], by_itself: bool
) -> None:
    """Otherwise it would run under the new revision without its seeds, and end as complete."""

    async def story() -> None:
        async with new_tables() as t:
            assert isinstance(t.store, SqlStore)
            catalog = SqlCatalog(t.store.executor)

            async def again() -> CrawlState:
                if by_itself:
                    await t.found(link("http://late.test/", crawl_id=t.crawl_id), crawl_id=t.crawl_id, producer="w")
                    assert (await t.store.reopen(CrawlId(0), 500))[0] == [t.crawl_id]
                else:
                    await catalog.turn("news", Verb.RETRY_FAILED, expected=None, actor=OPERATOR, now_ms=NOW_MS)
                row = await catalog.crawl("news")
                assert (row.resumes_as, row.finished_reason, row.finished_at_ms) == (None, None, None)
                return row.state

            t.crawl_id = (await put(catalog, None)).crawl_id
            await t.store.set_state(t.crawl_id, CrawlState.FINISHED, COMPLETE, NOW_MS)
            assert await again() is CrawlState.RUNNING
            await t.store.set_state(t.crawl_id, CrawlState.FINISHED, COMPLETE, NOW_MS)
            changed = await put(catalog, None, spec='{"seeds": [], "n": 2}')
            assert (changed.state, changed.finished_reason) == (CrawlState.FINISHED, COMPLETE)
            assert await put(catalog, None, spec='{"seeds": [], "n": 2}') == changed
            assert await again() is CrawlState.SEEDING

    asyncio.run(story())
