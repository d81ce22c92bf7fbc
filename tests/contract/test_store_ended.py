"""The store's promises to the leader about crawls that are over: collected until done, reopened where needed, and free
of cost as long as nothing is to be done."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from shared.adapters.sql.catalog.overview import SqlOverview
from shared.domain.crawl.state import CANCELLED, COMPLETE
from shared.domain.frontier.commands import collection_of
from shared.domain.frontier.crawl_rows import ChangeMark
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition
from tests.support.database.ended_crawls import ending
from tests.support.database.query_plans import accesses, recorded
from tests.support.database.statement_log import executor_of, steps
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link, links, sqlite_tables

OnStore = Callable[..., None]


def test_a_deleted_crawl_is_named_until_every_partition_has_removed_its_rows(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        await t.found(*links("a.example.com", range(3)))
        assert await t.store.uncollected() == {}
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        assert await t.store.uncollected() == {t.crawl_id: [Partition(p) for p in range(8)]}
        await t.command("delete", id=collection_of(t.crawl_id))
        assert await t.store.uncollected() == {t.crawl_id: [Partition(p) for p in range(8) if p != PARTITION]}
        await t.store.collected(t.crawl_id, NOW_MS)
        assert await t.store.uncollected() == {}
        await t.store.set_state(other.crawl_id, CrawlState.DELETED, None, NOW_MS)
        assert list(await t.store.uncollected()) == [other.crawl_id]

    on_store(story)


@pytest.mark.parametrize(
    ("state", "reason", "reopens"),
    [
        (CrawlState.FINISHED, COMPLETE, True),
        (CrawlState.FINISHED, CANCELLED, False),
        (CrawlState.FINISHED, "max_pages", False),
        (CrawlState.PAUSED, None, False),
    ],
)
def test_a_crawl_runs_again_when_it_was_complete_and_something_is_queued(
    on_store: OnStore, state: CrawlState, reason: str | None, reopens: bool
) -> None:
    async def story(t: Tables) -> None:
        await t.store.set_state(t.crawl_id, state, reason, NOW_MS)
        assert (await t.store.reopen(CrawlId(0), 500))[0] == [], "there is nothing to do"
        await t.found(*links("a.example.com", range(2)))
        assert await t.store.reopen(CrawlId(0), 500) == ([t.crawl_id] if reopens else [], None)
        row = await t.store.crawl(t.crawl_id)
        assert row is not None
        if reopens:
            assert (row.state, row.finished_reason, row.finished_at_ms) == (CrawlState.RUNNING, None, None)
        else:
            assert (row.state, row.finished_reason) == (state, reason)
        assert (await t.store.reopen(CrawlId(0), 500))[0] == []

    on_store(story)


def test_crawls_with_queued_work_are_checked_in_bounded_rotation(
    on_store: OnStore,
) -> None:
    async def story(t: Tables) -> None:
        late = [(await t.store.put_crawl(f"late-{n}", "{}", NOW_MS))[0].crawl_id for n in range(3)]
        for crawl_id in (t.crawl_id, *late):
            t.crawl_id = crawl_id
            await t.found(
                link(f"http://h{crawl_id}.test/", crawl_id=crawl_id), crawl_id=crawl_id, producer=f"w{crawl_id}"
            )
        await t.store.set_state(late[-1], CrawlState.FINISHED, COMPLETE, NOW_MS)
        assert await t.store.reopen(CrawlId(0), 2) == ([], late[0])
        assert await t.store.reopen(late[0], 2) == ([late[2]], late[2])
        assert await t.store.reopen(late[2], 2) == ([], None)
        await t.store.set_state(late[-1], CrawlState.FINISHED, COMPLETE, NOW_MS)
        assert await t.store.reopen(CrawlId(0), 1, [late[1], late[2]]) == ([late[2]], CrawlId(1)), "those named, too"

    on_store(story)


def test_leader_finds_crawls_to_act_on_by_partial_indexes(
    on_store: OnStore,
) -> None:
    async def story(t: Tables) -> None:
        executor = executor_of(t)
        await executor.write(lambda c: ending(c, 2000))
        with recorded() as sent:
            await looks(t)
        await executor.write(lambda c: c.execute(text("ANALYZE")).close())
        found = {access for told in (await accesses(t.store, sent)).values() for access in told}  # type: ignore[arg-type]  # it is one
        partly = {"crawls_worked_on", "crawls_uncollected", "crawls_change"}
        by = {access.index.rpartition(" ")[2] for access in found if access.table == "crawls"}
        assert partly <= by <= {*partly, "KEY", "crawls_pkey"}, by
        whole = {access.table for access in found if access.condition is None and access.table != "crawls"}
        assert whole <= {"cluster", "partitions", "pool_clocks", "ready"}, found
        assert not [access for access in found if access.table == "crawls" and not access.index]

    on_store(story)


def test_the_looks_of_a_leader_cost_the_same_however_many_crawls_have_ended(tmp_path: Path) -> None:
    """Counted in steps of SQLite's own machine, which no load of this one changes."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            costs = []
            for crawls in (10, 1000):
                await executor_of(t).write(lambda c, n=crawls: ending(c, n))  # type: ignore[misc]  # bound now
                with steps() as taken:
                    await looks(t)
                costs.append(len(taken))
            assert costs[1] <= costs[0] * 1.1, costs
            assert costs[0] > 50, "it is not counted"

    asyncio.run(story())


async def looks(t: Tables) -> None:
    """All that is read of crawls again and again: by the leader, and by each master."""
    overview = SqlOverview(executor_of(t))
    assert [row.crawl_id for row in await t.store.worked_on()] == [t.crawl_id]
    mark = (await t.store.crawl_changes(ChangeMark(), lambda _: None, ())).mark
    assert (await t.store.crawl_changes(mark, lambda _: None, [t.crawl_id])).compared == {t.crawl_id}
    assert await t.store.living([t.crawl_id]) == {t.crawl_id}
    assert await t.store.reopen(CrawlId(0), 10) == ([], None)
    assert await t.store.uncollected() == {}
    assert [standing.crawl_id for standing in await overview.crawl_overviews([t.crawl_id])] == [t.crawl_id]
    assert await overview.letters(0, 10) == []
    await overview.lag(None, NOW_MS)
