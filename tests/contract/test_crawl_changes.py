"""The store's promises about changes of crawls: each is found by its number, or by the comparison, and time is counted
by the clocks of pools."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import text

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.frontier.crawl_changes import COMPARED, OVERLAP
from shared.domain.crawl.state import COMPLETE, Verb
from shared.domain.frontier.crawl_rows import ChangeMark, CrawlChanges, CrawlRow, CrawlVersion
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId
from shared.domain.reads.declared import Actor, Declaration
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link, links

OnStore = Callable[[Callable[[Tables], Awaitable[None]]], None]
ACTOR = Actor("0" * 16, "a", "r")
SEEDS = '{"seeds": [{"url": "http://a.test/"}]}'


class Reader:
    """Reads the changes one after another, and keeps the versions as a master does."""

    def __init__(self, t: Tables) -> None:
        self.t = t
        self.mark = ChangeMark()
        self.versions: dict[CrawlId, CrawlVersion] = {}
        self.recent: Mapping[CrawlId, CrawlVersion] = {}

    async def read(self, *compare: CrawlId) -> CrawlChanges:
        changes = await self.t.store.crawl_changes(
            self.mark, lambda crawl_id: self.versions.get(crawl_id) or self.recent.get(crawl_id), compare
        )
        self.mark, self.recent = changes.mark, changes.recent
        for crawl_id, row in changes.rows.items():
            self.versions.pop(crawl_id, None)
            if row is not None:
                self.versions[crawl_id] = row.version
        return changes

    async def rows(self, *compare: CrawlId) -> Mapping[CrawlId, CrawlRow | None]:
        return (await self.read(*compare)).rows


async def sql(t: Tables, statement: str, **keys: Any) -> None:
    await executor_of(t).write(lambda c: c.execute(text(statement), keys).close())


def test_read_returns_each_change_of_a_crawl_once(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        reader = Reader(t)
        assert list(await reader.rows()) == [t.crawl_id]
        assert await reader.rows(t.crawl_id) == {}
        other, _ = await t.store.put_crawl("other", SEEDS, NOW_MS)
        assert list(await reader.rows()) == [other.crawl_id]
        seeding = other.revision, CrawlState.SEEDING
        assert await t.store.advance_crawl(other.crawl_id, *seeding, CrawlState.RUNNING, None, NOW_MS)
        found = await reader.rows()
        assert [row and row.state for row in found.values()] == [CrawlState.RUNNING]
        await t.store.set_state(other.crawl_id, CrawlState.FINISHED, COMPLETE, NOW_MS)
        assert [row and row.state for row in (await reader.rows()).values()] == [CrawlState.FINISHED]
        assert await reader.rows() == {}
        await t.store.set_state(other.crawl_id, CrawlState.DELETED, None, NOW_MS)
        assert await reader.rows() == {other.crawl_id: None}

    on_store(story)


def test_every_change_by_an_operator_is_found(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        catalog, reader = SqlCatalog(executor_of(t)), Reader(t)
        await reader.read()
        seen = []
        await catalog.create(Declaration("a", SEEDS), start=False, actor=ACTOR, now_ms=1)
        seen.append(await reader.rows())
        for verb in (Verb.START, Verb.PAUSE, Verb.RESUME, Verb.CANCEL):
            await catalog.turn("a", verb, expected=None, actor=ACTOR, now_ms=1)
            seen.append(await reader.rows())
        await catalog.put(
            Declaration("a", SEEDS.replace("a.test", "b.test")), expected=None, start=True, actor=ACTOR, now_ms=1
        )
        seen.append(await reader.rows())
        assert [[row and (row.revision, row.state) for row in rows.values()] for rows in seen] == [
            [(1, CrawlState.CREATED)],
            [(1, CrawlState.SEEDING)],
            [(1, CrawlState.PAUSED)],
            [(1, CrawlState.SEEDING)],
            [(1, CrawlState.FINISHED)],
            [(2, CrawlState.FINISHED)],
        ]
        await catalog.turn("a", Verb.RESET, expected=None, actor=ACTOR, now_ms=1)
        assert sorted(row is None for row in (await reader.rows()).values()) == [False, True]

    on_store(story)


@pytest.mark.parametrize("low", [1, OVERLAP - 1])
def test_change_numbered_below_a_known_one_is_found(on_store: OnStore, low: int) -> None:
    """A transaction took its number, and another one that began later committed first."""

    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", SEEDS, NOW_MS)
        await sql(t, "UPDATE crawls SET change = 1000 WHERE crawl_id = :id", id=other.crawl_id)
        reader = Reader(t)
        await reader.read()
        await sql(
            t, "UPDATE crawls SET state = 'paused', change = :n WHERE crawl_id = :id", n=1000 - low, id=t.crawl_id
        )
        assert list(await reader.rows()) == [t.crawl_id]

    on_store(story)


def test_unnumbered_change_is_found_by_comparison_within_one_round(on_store: OnStore) -> None:
    """As a master of an earlier version writes it."""

    async def story(t: Tables) -> None:
        made = [(await t.store.put_crawl(f"c{n}", SEEDS, NOW_MS))[0].crawl_id for n in range(3 * COMPARED)]
        reader = Reader(t)
        await reader.read()
        await sql(t, "UPDATE crawls SET state = 'finished' WHERE crawl_id = :id", id=made[0])
        await sql(t, "UPDATE crawls SET state = 'paused' WHERE crawl_id = :id", id=made[-OVERLAP // 4])
        reader.recent = {}
        await sql(t, "UPDATE crawls SET change = 0")
        reader.mark = ChangeMark(0, reader.mark.versions)
        found: set[CrawlId] = set()
        compared: set[CrawlId] = set()
        for _ in range(4):
            changes = await reader.read(made[0])
            found |= changes.rows.keys()
            compared |= set(changes.compared)
        assert {made[0], made[-OVERLAP // 4]} <= found
        assert compared == {t.crawl_id, *made}, "all took turns"

    on_store(story)


def test_numbers_below_a_deleted_newest_change_are_read_on(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", SEEDS, NOW_MS)
        await sql(t, "UPDATE crawls SET change = 1000 WHERE crawl_id = :id", id=other.crawl_id)
        reader = Reader(t)
        await reader.read()
        await sql(t, "DELETE FROM crawls WHERE crawl_id = :id", id=other.crawl_id)
        await reader.read()
        late, _ = await t.store.put_crawl("late", SEEDS, NOW_MS)
        assert list(await reader.rows()) == [late.crawl_id]

    on_store(story)


def test_read_names_the_crawls_whose_counters_changed(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", SEEDS, NOW_MS)
        reader = Reader(t)
        assert (await reader.read()).counted == set()
        await t.found(*links("a.example.com", range(3)))
        changes = await reader.read()
        assert changes.counted == {t.crawl_id}
        assert changes.positions == await t.store.positions()
        assert (await reader.read()).counted == set()
        await t.found(link("http://b.test/", crawl_id=other.crawl_id), crawl_id=other.crawl_id, producer="x")
        assert (await reader.read()).counted == {other.crawl_id}
        assert await t.lease("a.example.com")
        assert (await reader.read()).counted == {t.crawl_id}, "a dispatch moves counters"
        reader.mark = ChangeMark(reader.mark.change, {PARTITION: 10**6})
        assert (await reader.read()).counted == {t.crawl_id, other.crawl_id}, "of a restored database all are named"

    on_store(story)


def test_crawls_use_up_the_time_of_their_pools_while_they_run(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        catalog = SqlCatalog(executor_of(t))
        for name in ("a", "b"):
            await catalog.create(Declaration(name, SEEDS), start=True, actor=ACTOR, now_ms=1)
        a, b = await catalog.crawl("a"), await catalog.crawl("b")

        async def active() -> list[int]:
            rows = {row.crawl_id: row for row in await t.store.crawl_rows([a.crawl_id, b.crawl_id])}
            shown = [(await catalog.crawl(name)).active_ms for name in ("a", "b")]
            stamps = [(await catalog.stamp(name)).active_ms for name in ("a", "b")]
            assert shown == stamps == [rows[a.crawl_id].active_ms, rows[b.crawl_id].active_ms]
            return shown

        await t.store.start_active_time({a.crawl_id: "x", b.crawl_id: "y"})
        await t.store.add_pool_time({"x": 0, "y": 0}, 1000)
        await t.store.add_pool_time({"x": 1000}, 500)
        assert await active() == [1500, 1000]
        await catalog.turn("a", Verb.PAUSE, expected=None, actor=ACTOR, now_ms=1)
        await t.store.start_active_time({a.crawl_id: "x"})
        await t.store.add_pool_time({"x": 1500, "y": 1000}, 100)
        assert await active() == [1500, 1100], "a paused crawl uses up none"
        await catalog.turn("a", Verb.RESUME, expected=None, actor=ACTOR, now_ms=1)
        await t.store.start_active_time({a.crawl_id: "y", b.crawl_id: "x"})
        await t.store.add_pool_time({"x": 1600, "y": 1100}, 7)
        assert await active() == [1507, 1107], "it may change its pool"
        await t.store.add_pool_time({"x": 1600}, 7)
        assert await active() == [1507, 1107], "another leader has counted that time"
        row = await t.store.crawl(b.crawl_id)
        assert row is not None
        assert await t.store.advance_crawl(b.crawl_id, row.revision, row.state, CrawlState.FINISHED, "x", 1)
        await t.store.add_pool_time({"x": 1607, "y": 1107}, 1000)
        assert await active() == [2507, 1107], "an ended crawl uses up none"

    on_store(story)


def test_starting_the_time_of_a_crawl_again_loses_none(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.store.add_active_time(t.crawl_id, 300)
        for _ in range(2):
            await t.store.start_active_time({t.crawl_id: "x"})
        await t.store.add_pool_time({"x": 0}, 50)
        await t.store.start_active_time({t.crawl_id: "x"})
        row = await t.store.crawl(t.crawl_id)
        assert row is not None
        assert (row.active_ms, row.active_pool, row.active_zero_ms) == (350, "x", -300)

    on_store(story)
