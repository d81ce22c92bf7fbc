"""What masters do for all crawls at every pass takes as many statements for a thousand crawls as for ten."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.errors import Transient
from shared.domain.frontier.states import CrawlState, Position
from shared.domain.ops.counts import OTHER as OTHERS
from shared.wire.events import EventKind
from tests.support.database.running_crawls import Master, Recorder, ended, running, sampling
from tests.support.database.statement_log import executor_of, statements, steps
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, link, sqlite_tables

OnStore = Callable[[Callable[[Tables], Awaitable[None]]], None]

MANY = 2_000
"""One step more for each crawl would be above the bounds: the least of what is counted is about a thousand steps."""


@pytest.mark.long
@pytest.mark.parametrize("queued", [0, 1])
def test_looking_at_many_crawls_takes_few_statements(on_store: OnStore, queued: int) -> None:
    """Ten crawls more or a thousand, all complete or all with a URL queued."""

    async def story(t: Tables) -> None:
        sql = executor_of(t)
        await sql.write(lambda c: c.execute(text("UPDATE partitions SET stream_created_ns = 1")).close())
        assert (await t.store.positions())[PARTITION] == Position(1)
        await ended(t)
        taken = []
        for crawls in (10, 1_000):
            await running(t, crawls, queued)
            master = Master(t)
            with statements() as sent:
                for _ in range(2):
                    await master.look()
            taken.append(len([each for each in sent if each.startswith(("SELECT", "WITH"))]))
            left = [row for row in await t.store.worked_on() if row.state is CrawlState.RUNNING]
            assert len(left) == (0 if queued == 0 else crawls), "the first pass starts its time, the second ends it"
            await ended(t)
        assert taken[1] - taken[0] <= 4, taken
        assert taken[0] >= 3, "they are not counted"

    on_store(story)


def test_idle_pass_sends_as_many_statements_for_any_number(on_store: OnStore) -> None:

    async def story(t: Tables) -> None:
        await ended(t)
        taken = []
        for crawls in (10, MANY):
            await running(t, crawls, 1)
            master = Master(t)
            for _ in range(3):
                await master.look()
            with statements() as sent:
                for _ in range(8):
                    await committed(t)
                    await master.look()
            taken.append(len(sent))
            await ended(t)
        assert taken[0] * 0.8 <= taken[1] <= taken[0] * 1.2, taken
        assert taken[0] >= 8 * 5, "they are not counted"

    on_store(story)


def test_idle_pass_reads_as_much_for_any_number_of_crawls(tmp_path: Path) -> None:
    """Counted in steps of SQLite's own machine. Of three changes, it reads as much more for any number."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            idle, busy = [], []
            for crawls in (10, MANY):
                await ended(t)
                await running(t, crawls, 1)
                master = Master(t)
                for _ in range(3):
                    await master.look()
                with steps() as taken:
                    for _ in range(8):
                        await committed(t)
                        await master.look()
                idle.append(len(taken))
                some = [row.crawl_id for row in await t.store.worked_on()][3:6]
                for crawl_id in some:
                    await t.store.set_state(crawl_id, CrawlState.PAUSED, None, NOW_MS)
                    await t.found(link("http://a.test/", crawl_id=crawl_id), crawl_id=crawl_id, producer=f"w{crawl_id}")
                with steps() as taken:
                    await master.look()
                busy.append(len(taken))
                assert {crawl.crawl_id for crawl in master.crawls if not crawl.dispatching} == set(some)
            assert idle[0] * 0.8 <= idle[1] <= idle[0] * 1.2, idle
            assert busy[1] <= busy[0] * 2, busy
            assert min(*idle, *busy) > 1_000, "they are not counted"

    asyncio.run(story())


def test_recording_of_events_reads_as_much_for_any_number_of_crawls(tmp_path: Path) -> None:
    """Also of three crawls that change, in steps of SQLite's own machine."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            sent, idle, busy = [], [], []
            for crawls in (10, MANY):
                await ended(t)
                await running(t, crawls, 1)
                master, recorder = Master(t), Recorder(t)
                master.controller.on_changes = (recorder.recorder.take,)
                for _ in range(4):
                    await master.look()
                    await recorder.look()
                with steps() as taken, statements() as selected:
                    for _ in range(8):
                        await committed(t)
                        await recorder.look()
                sent.append(len(selected))
                idle.append(len(taken))
                some = [row.crawl_id for row in await t.store.worked_on()][3:6]
                for crawl_id in some:
                    await t.store.set_state(crawl_id, CrawlState.PAUSED, None, NOW_MS)
                await master.controller.once()
                recorder.published.clear()
                with steps() as taken:
                    await recorder.look()
                busy.append(len(taken))
                of_crawls = [about for kind, about, action in recorder.published if kind is EventKind.CRAWL]
                progressing = {about for kind, about, action in recorder.published if kind is EventKind.PROGRESS}
                assert of_crawls == some
                assert progressing == set(some)
            assert idle[0] * 0.8 <= idle[1] <= idle[0] * 1.2, idle
            assert busy[0] * 0.8 <= busy[1] <= busy[0] * 1.2, busy
            assert sent[0] == sent[1] >= 8, "they are not counted"

    asyncio.run(story())


def test_numbers_for_metrics_read_as_much_for_any_number_of_crawls(tmp_path: Path) -> None:
    """Also of three crawls that change, in steps of SQLite's own machine."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            sent, idle, busy = [], [], []
            for crawls in (100, MANY):
                await ended(t)
                await running(t, crawls, 1)
                master, sampler = Master(t), sampling(t, [PARTITION, OTHER])
                master.controller.on_changes = (sampler.take,)
                for _ in range(4):
                    await master.look()
                    await sampler.once()
                assert sum(each.queued for each in sampler.stored.counters.values()) == 2 * crawls
                with steps() as taken, statements() as selected:
                    for _ in range(8):
                        await committed(t)
                        await master.controller.once()
                        selected.clear()
                        taken.clear()
                        await sampler.once()
                        sent.append(len(selected))
                        idle.append(len(taken))
                some = [row.crawl_id for row in await t.store.worked_on()][3:90:43]
                for crawl_id in some:
                    await t.found(link("http://a.test/", crawl_id=crawl_id), crawl_id=crawl_id, producer=f"w{crawl_id}")
                await master.controller.once()
                with steps() as taken:
                    await sampler.once()
                busy.append(len(taken))
                numbers = sampler.stored.counters
                assert sum(each.queued for each in numbers.values()) == 2 * crawls + len(some)
                assert sum(each.accepted for each in numbers.values()) == len(some)
                names = {row.crawl_id: row.name for row in await t.store.worked_on()}
                assert {name for name in numbers if numbers[name].accepted} == {names[some[0]], names[some[1]], OTHERS}
            assert max(idle) <= 1.2 * idle[0], idle
            assert busy[1] <= busy[0] * 1.2, busy
            assert set(sent) == {2}, "one transaction of one statement each"
            assert min(*idle, *busy) > 100, "they are not counted"

    asyncio.run(story())


def test_pass_reads_nothing_until_another_process_commits(tmp_path: Path) -> None:
    """After the last commit it compares every crawl once more, and misses no later one."""

    async def story() -> None:
        async with sqlite_tables(tmp_path) as t:
            await ended(t)
            await running(t, 25, 1)
            master = Master(t)
            for _ in range(8):
                await master.controller.once()
            with statements() as sent:
                for _ in range(8):
                    await master.controller.once()
            assert sent == []
            some = [row.crawl_id for row in await t.store.worked_on()][3:6]
            other = await SqliteStore.open(tmp_path / "crawl.db")
            for crawl_id in some:
                await other.set_state(crawl_id, CrawlState.PAUSED, None, NOW_MS)
            await other.close()
            await master.controller.once()
            assert {crawl.crawl_id for crawl in master.crawls if not crawl.dispatching} == set(some)
            with statements() as sent:
                await master.controller.once()
            assert sent, "not all crawls were compared since the commit"

    asyncio.run(story())


def test_loading_many_crawls_takes_few_statements(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await ended(t)
        taken = []
        for crawls in (10, 1_000):
            await running(t, crawls, 1)
            master = Master(t)
            for _ in range(2):
                with statements() as sent:
                    await master.controller.once()
                taken.append(len(sent))
            assert sum(crawl.dispatching for crawl in master.crawls) >= crawls
            await ended(t)
        assert max(taken[2:]) - max(taken[:2]) <= 4, taken

    on_store(story)


def test_crawl_with_unread_spending_is_not_dispatched(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass dispatched it as if nothing of its budget were spent."""

    async def story(t: Tables) -> None:
        await ended(t)
        await running(t, 1, 1)
        master = Master(t)
        with monkeypatch.context() as away:
            away.setattr(t.store, "counters_by_partition", _away)
            for _ in range(2):
                with pytest.raises(Transient):
                    await master.controller.once()
            assert [crawl.dispatching for crawl in master.crawls] == [False]
        await master.controller.once()
        assert [crawl.dispatching for crawl in master.crawls] == [True]
        await ended(t)

    on_store(story)


async def committed(t: Tables) -> None:
    """Commit something that concerns no pass, so that the next one reads."""
    change = "UPDATE crawl_revisions SET created_at_ms = created_at_ms + 1 WHERE crawl_id = :crawl_id"
    await executor_of(t).write(lambda c: c.execute(text(change), {"crawl_id": t.crawl_id}).close())


async def _away(crawl_ids: Any) -> Any:
    raise Transient("away")
