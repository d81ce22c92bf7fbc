"""Operators and masters that write to the catalog at once, on every engine."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from sqlalchemy import Connection

from api.http.cached_reads import CachedCrawlReads
from shared.adapters.sql.catalog import declared, seed_sets
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import Verb
from shared.domain.frontier.commands import collection_of
from shared.domain.frontier.states import CrawlState
from shared.domain.ops.access import ApiKey, Role
from shared.domain.ops.seed_sets import set_spec
from shared.domain.reads.declared import Actor, CrawlFilter, Declaration, DeclaredCrawl, Repeatable
from shared.ports.catalog import Exists, Full, Missing, ReusedKey, Stale
from tests.support.api.member_view import FixedSurroundings
from tests.support.database.frozen_owner import stopped, waiting_for_a_lock
from tests.support.database.store_tables import NOW_MS, Tables

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
                *(
                    crawls.put(w, expected=frozenset({made.tag}), start=False, actor=OPERATOR, now_ms=NOW_MS)
                    for w in wanted
                ),
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


def test_concurrent_creates_keep_the_limit_of_crawls(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls = catalog(t)
            limit: dict[str, Any] = {"start": False, "actor": OPERATOR, "now_ms": NOW_MS, "max_count": 2}
            wanted = [Declaration(f"news-{n}", "{}") for n in range(12)]
            answers = await asyncio.gather(
                *(crawls.create(each, **limit) for each in wanted[:6]),
                *(crawls.put(each, expected=None, **limit) for each in wanted[6:]),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, Full) for answer in answers) == 11, answers
            assert t.value("SELECT count(*) FROM crawls") == 2, "that of the tables, and one more"

    asyncio.run(story())


def test_concurrent_puts_of_a_new_name_create_one_crawl_at_the_limit(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls, wanted = catalog(t), Declaration("news", "{}")
            answers = await asyncio.gather(
                *(
                    crawls.put(wanted, expected=None, start=False, actor=OPERATOR, now_ms=NOW_MS, max_count=2)
                    for _ in range(8)
                )
            )
            assert sum(created for _, created in answers) == 1
            assert len({crawl.crawl_id for crawl, _ in answers}) == 1

    asyncio.run(story())


def test_concurrent_creates_with_one_idempotency_key_share_an_answer(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls, wanted, again = catalog(t), Declaration("news", "{}"), Repeatable("k", b"d" * 32)
            answers = await asyncio.gather(
                *(
                    crawls.create(wanted, start=False, actor=OPERATOR, now_ms=NOW_MS, repeatable=again, max_count=2)
                    for _ in range(8)
                )
            )
            assert answers == [answers[0]] * 8
            assert t.value("SELECT count(*) FROM crawls WHERE name = 'news'") == 1

    asyncio.run(story())


def test_different_creates_at_once_under_one_idempotency_key_are_one_create(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls = catalog(t)
            answers = await asyncio.gather(
                *(
                    crawls.create(
                        Declaration(f"news{n}", "{}"),
                        start=False,
                        actor=OPERATOR,
                        now_ms=NOW_MS,
                        repeatable=Repeatable("k", bytes([n]) * 32),
                    )
                    for n in range(5)
                ),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, DeclaredCrawl) for answer in answers) == 1, answers
            assert sum(isinstance(answer, ReusedKey) for answer in answers) == 4, answers
            assert t.value("SELECT count(*) FROM crawls WHERE name LIKE 'news%'") == 1

    asyncio.run(story())


def test_a_create_that_waits_behind_its_own_repeat_gets_its_answer(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        wanted, again = Declaration("news", "{}"), Repeatable("k", b"d" * 32)

        def create(connection: Connection) -> DeclaredCrawl:
            return declared.create(connection, wanted, start=False, actor=OPERATOR, now_ms=NOW_MS, repeatable=again)

        with stopped(url, create, lambda connection: None) as first:
            await first.there()
            asked = asyncio.create_task(
                catalog(t).create(wanted, start=False, actor=OPERATOR, now_ms=NOW_MS, repeatable=again)
            )
            await waiting_for_a_lock(t)
            assert await first.go_on() == "committed"
            assert (await asked).name == "news"
        assert t.value("SELECT count(*) FROM crawls WHERE name = 'news'") == 1

    on_postgres(story)


def put_again(connection: Connection) -> None:
    same = Declaration("news", "{}")
    declared.put(connection, same, expected=None, start=False, actor=OPERATOR, now_ms=NOW_MS)


def put_seed_set(connection: Connection) -> None:
    spec = set_spec(["http://a.test/"], {})
    seed_sets.put(connection, "news", "one", spec, 8, expected=None, new=False, actor=OPERATOR, now_ms=NOW_MS)


def fire(connection: Connection) -> None:
    assert list(declared.locked(connection, ["news"])) == ["news"]


@pytest.mark.parametrize("transaction", [put_again, put_seed_set, fire])
def test_transaction_that_waited_for_a_reset_locks_the_new_crawl(
    on_postgres: Callable[..., None], transaction: Callable[[Connection], None]
) -> None:
    """The reset deletes the row that the transaction waited for, and makes another of the same name."""

    async def story(t: Tables, url: str) -> None:
        await catalog(t).create(Declaration("news", "{}"), start=False, actor=OPERATOR, now_ms=NOW_MS)

        def reset(connection: Connection) -> None:
            declared.turn(connection, "news", Verb.RESET, expected=None, actor=OPERATOR, now_ms=NOW_MS)

        with stopped(url, reset, lambda connection: None) as first:
            await first.there()
            with stopped(url, transaction, lambda connection: None) as second:
                await waiting_for_a_lock(t)
                assert await first.go_on() == "committed"
                await second.there()
                free = "SELECT crawl_id FROM crawls WHERE name = 'news' AND state <> 'deleted' FOR UPDATE SKIP LOCKED"
                assert t.rows(free) == []
                assert await second.go_on() == "committed"
                assert len(t.rows(free)) == 1

    on_postgres(story)


def test_a_delete_asks_for_the_collection_in_its_own_transaction(new_tables: NewTables) -> None:
    """Whoever dies right behind it leaves word of what is to be done."""

    async def story() -> None:
        async with new_tables() as t:
            crawls = catalog(t)
            made = await crawls.create(Declaration("news", "{}"), start=False, actor=OPERATOR, now_ms=NOW_MS)
            await crawls.turn("news", Verb.DELETE, expected=None, actor=OPERATOR, now_ms=NOW_MS)
            progress = await crawls.command(collection_of(made.crawl_id))
            assert progress is not None
            assert (progress.kind, progress.applied, progress.partitions) == ("delete", 0, 8)

    asyncio.run(story())


def test_masters_that_start_together_make_one_first_key(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = [ApiKey(f"{n:016}", f"m{n}", Role.ADMIN, bytes(32), NOW_MS, "first start") for n in range(6)]
            made = await asyncio.gather(*(catalog(t).add_first_key(key) for key in keys))
            assert sum(made) == 1
            assert len(await catalog(t).keys(after=("", ""), max_count=10)) == 1

    asyncio.run(story())


def test_repeated_request_for_first_key_learns_that_it_is_kept(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            first, late = (ApiKey(f"{n:016}", f"m{n}", Role.ADMIN, bytes(32), NOW_MS, "first start") for n in range(2))
            assert [await catalog(t).add_first_key(key) for key in (first, first, late, first)] == [
                True, True, False, True,
            ]  # fmt: skip
            assert [key.key_id for key in await catalog(t).keys(after=("", ""), max_count=10)] == [first.key_id]

    asyncio.run(story())


def test_concurrent_delete_and_verb_of_one_version_run_exactly_one(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls = catalog(t)
            for number, verb in enumerate((Verb.START, Verb.CANCEL, Verb.RESET, Verb.START, Verb.RESET)):
                wanted = Declaration(f"news-{number}", "{}")
                made = await crawls.create(wanted, start=False, actor=OPERATOR, now_ms=NOW_MS)
                turns = [
                    crawls.turn(wanted.name, each, expected=frozenset({made.tag}), actor=OPERATOR, now_ms=NOW_MS)
                    for each in ((verb, Verb.DELETE) if number % 2 else (Verb.DELETE, verb))
                ]
                answers = await asyncio.gather(*turns, return_exceptions=True)
                [done] = [answer for answer in answers if not isinstance(answer, BaseException)]
                [refused] = [answer for answer in answers if isinstance(answer, BaseException)]
                deleted = done[1].state == CrawlState.DELETED
                assert isinstance(refused, Missing if deleted else Stale), answers
                left, _ = await crawls.crawls(CrawlFilter(), after="", max_count=100)
                assert [crawl.name for crawl in left if crawl.name == wanted.name] == [wanted.name] * (not deleted)

    asyncio.run(story())


def test_crawl_change_alters_its_stamp_and_cached_answer_is_never_old(
    new_tables: NewTables,
) -> None:
    async def story() -> None:
        async with new_tables() as t:
            crawls, shown, seen = catalog(t), CachedCrawlReads(), set[tuple[object, ...]]()

            async def looked_at() -> DeclaredCrawl:
                crawl = await crawls.crawl("news")
                kept = await shown.answer("news", crawls, FixedSurroundings())
                fresh = await CachedCrawlReads().answer("news", crawls, FixedSurroundings())
                assert (kept.body, kept.headers["etag"]) == (fresh.body, fresh.headers["etag"])
                assert await shown.answer("news", crawls, FixedSurroundings()) is kept
                assert await crawls.stamp("news") == crawl.stamp
                assert crawl.stamp not in seen
                seen.add(crawl.stamp)
                return crawl

            with pytest.raises(Missing):
                await crawls.stamp("news")
            await crawls.create(Declaration("news", "{}"), start=False, actor=OPERATOR, now_ms=NOW_MS)
            await looked_at()
            for wanted in (Declaration("news", '{"n":1}'), Declaration("news", '{"n":1}', {"team": "search"})):
                await crawls.put(wanted, expected=None, start=False, actor=OPERATOR, now_ms=NOW_MS)
                await looked_at()
            for verb in (Verb.START, Verb.PAUSE, Verb.RESUME):
                await crawls.turn("news", verb, expected=None, actor=OPERATOR, now_ms=NOW_MS)
                crawl = await looked_at()
            await t.store.set_state(crawl.crawl_id, CrawlState.RUNNING, None, NOW_MS + 1)
            await looked_at()
            await t.store.set_state(crawl.crawl_id, CrawlState.FINISHED, "exhausted", NOW_MS + 2)
            await looked_at()
            await crawls.turn("news", Verb.RESET, expected=None, actor=OPERATOR, now_ms=NOW_MS)
            await looked_at()
            await crawls.turn("news", Verb.DELETE, expected=None, actor=OPERATOR, now_ms=NOW_MS)
            with pytest.raises(Missing):
                await shown.answer("news", crawls, FixedSurroundings())

    asyncio.run(story())
