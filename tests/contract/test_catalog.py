"""Operators and masters that write to the catalog at once, on every engine."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from shared.adapters.sql.catalog import SqlCatalog
from shared.adapters.sql.store import SqlStore
from shared.domain.access import ApiKey, Role
from shared.domain.declared import Actor, Declaration, DeclaredCrawl
from shared.ports.catalog import Exists, Stale
from tests.support.tables import NOW_MS, Tables

OPERATOR = Actor("0" * 16, "operator", "r")
NewTables = Callable[[], AbstractAsyncContextManager[Tables]]


def catalog(t: Tables) -> SqlCatalog:
    assert isinstance(t.store, SqlStore)
    return SqlCatalog(t.store.executor)


def test_of_many_who_change_the_same_version_exactly_one_succeeds(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls = catalog(t)
            made = await crawls.create(Declaration("news", "{}"), start=False, actor=OPERATOR, now_ms=NOW_MS)
            wanted = [Declaration("news", f'{{"n":{n}}}') for n in range(8)]
            answers = await asyncio.gather(
                *(crawls.put(w, expected=made.tag, start=False, actor=OPERATOR, now_ms=NOW_MS) for w in wanted),
                return_exceptions=True,
            )
            refused = [answer for answer in answers if isinstance(answer, Stale)]
            ((put, created),) = [answer for answer in answers if not isinstance(answer, BaseException)]
            assert len(refused) == 7, answers
            assert not created
            assert put == await crawls.crawl("news")
            assert {answer.current for answer in refused} == {put.tag}

    asyncio.run(story())


def test_writes_without_a_version_are_all_revisions(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls = catalog(t)
            await crawls.create(Declaration("news", "{}"), start=False, actor=OPERATOR, now_ms=NOW_MS)
            wanted = [Declaration("news", f'{{"n":{n}}}') for n in range(8)]
            answers = await asyncio.gather(
                *(crawls.put(w, expected=None, start=False, actor=OPERATOR, now_ms=NOW_MS) for w in wanted)
            )
            assert sorted(crawl.revision for crawl, _ in answers) == list(range(2, 10))

    asyncio.run(story())


def test_of_many_who_create_the_same_name_exactly_one_succeeds(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls, wanted = catalog(t), Declaration("news", "{}")
            answers = await asyncio.gather(
                *(crawls.create(wanted, start=False, actor=OPERATOR, now_ms=NOW_MS) for _ in range(8)),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, DeclaredCrawl) for answer in answers) == 1, answers
            assert sum(isinstance(answer, Exists) for answer in answers) == 7, answers

    asyncio.run(story())


def test_masters_that_start_together_make_one_first_key(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = [ApiKey(f"{n:016}", f"m{n}", Role.ADMIN, bytes(32), NOW_MS, "first start") for n in range(6)]
            made = await asyncio.gather(*(catalog(t).add_first_key(key) for key in keys))
            assert sum(made) == 1
            assert len(await catalog(t).keys(after="", most=10)) == 1

    asyncio.run(story())
