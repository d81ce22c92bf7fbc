"""What is kept for a while only: forgotten when it is old, in bounded steps, and never while somebody needs it."""

from collections.abc import Callable

from sqlalchemy import Connection

from shared.adapters.sql import access
from shared.adapters.sql.catalog import SqlCatalog
from shared.adapters.sql.desired import SqlDesired
from shared.adapters.sql.retained import ROWS, SqlRetained
from shared.adapters.sql.store import SqlStore
from shared.domain.command import collection_of
from shared.domain.config import HotConfig, WorkerPart
from shared.domain.crawl_state import Verb
from shared.domain.declared import Actor, Declaration
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId
from shared.domain.ledger import DeadLetter
from shared.domain.retention import DAY_MS, Kept, Retention, named_for, used_until_ms, week_of
from tests.support.tables import NOW_MS, PARTITION, Tables, link

OnStore = Callable[..., None]
OPERATOR = Actor("0" * 16, "operator", "r")
LATER_MS = NOW_MS + 1000 * DAY_MS
RULES = Retention(audit_days=10, commands_days=10, revisions=3, crawls_days=10, letters_days=10, producers_days=28)


async def walked(t: Tables, what: Kept, now_ms: int = LATER_MS) -> list[int]:
    """The rows that each pass of a whole walk removed."""
    assert isinstance(t.store, SqlStore)
    retained, place, passes = SqlRetained(t.store.executor), "", []
    while True:
        forgotten = await retained.forget(what, RULES, now_ms, place)
        passes.append(forgotten.rows)
        place = forgotten.place
        if not place:
            return passes
        assert len(passes) < 100, "it goes on for ever"


async def lines(t: Tables, n: int, now_ms: int) -> None:
    def write(c: Connection) -> None:
        for i in range(n):
            access.record(c, OPERATOR, "crawl.put", str(i), None, None, now_ms)

    assert isinstance(t.store, SqlStore)
    await t.store.executor.write(write)


def test_old_lines_of_the_audit_log_go_in_bounded_steps_and_the_others_stay(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await lines(t, ROWS + 20, NOW_MS)
        await lines(t, 30, LATER_MS)
        assert await walked(t, Kept.AUDIT, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, Kept.AUDIT) == [ROWS, 20]
        assert t.value("SELECT count(*) FROM audit_log") == 30

    on_store(story)


def test_a_command_is_not_forgotten_before_every_partition_has_applied_it(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        for name, partitions in (("done", 1), ("half", 2)):
            await catalog.ask(name, t.crawl_id, "retry_failed", "{}", partitions, actor=OPERATOR, now_ms=NOW_MS)
            await t.command("retry_failed", id=name)
        assert await walked(t, Kept.COMMANDS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, Kept.COMMANDS) == [1]
        assert await catalog.command("done") is None
        half = await catalog.command("half")
        assert half is not None
        assert (half.applied, half.partitions) == (1, 2)
        assert t.rows("SELECT id FROM commands") == [("half",)], "what keeps it from being applied twice stays"

    on_store(story)


def test_that_a_deleted_crawls_rows_are_removed_is_known_until_it_is_noted(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog, name = SqlCatalog(t.store.executor), collection_of(t.crawl_id)
        await catalog.ask(name, t.crawl_id, "delete", "{}", 1, actor=OPERATOR, now_ms=NOW_MS)
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        await t.command("delete", id=name)
        assert await walked(t, Kept.COMMANDS) == [0]
        assert await walked(t, Kept.CRAWLS) == [0], "it is not collected"
        await t.store.collected(t.crawl_id, NOW_MS)
        assert await walked(t, Kept.COMMANDS) == [1]
        assert await walked(t, Kept.CRAWLS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, Kept.CRAWLS) == [2], "the crawl and its revision"
        assert t.value("SELECT count(*) FROM crawl_revisions") == 0
        made = await catalog.create(Declaration("crawl", "{}", {}), start=False, actor=OPERATOR, now_ms=LATER_MS)
        assert made.crawl_id > t.crawl_id, "its number is not given again"
        t.crawl_id = made.crawl_id

    on_store(story)


def test_the_newest_revisions_stay_with_the_one_that_holds(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog, desired = SqlCatalog(t.store.executor), SqlDesired(t.store.executor)
        for n in range(1, 7):
            spec = f'{{"n": {n}}}'
            await catalog.put(
                Declaration("other", spec, {}), expected=None, start=False, actor=OPERATOR, now_ms=NOW_MS + n
            )
            await desired.put_config(
                HotConfig(worker=WorkerPart(visits=n)), expected=None, actor=OPERATOR, now_ms=NOW_MS
            )
        crawl = await catalog.crawl("other")
        assert await walked(t, Kept.REVISIONS) == [3]
        assert await walked(t, Kept.CONFIG) == [3]
        left = await catalog.revisions(crawl.crawl_id, before=100, most=100)
        assert [revision.revision for revision in left] == [6, 5, 4]
        assert (await catalog.crawl("other")).spec == '{"n": 6}'
        assert [stored.revision for stored in await desired.config_revisions(before=100, most=100)] == [6, 5, 4]
        assert (await desired.config()).config.worker.visits == 6
        assert await walked(t, Kept.REVISIONS) == [0]

    on_store(story)


def test_dead_letters_of_crawls_stay_and_those_of_none_age(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        for crawl_id in (t.crawl_id, None, None):
            await t.bury(DeadLetter(crawl_id, "outcome", NOW_MS, "unreadable", payload=b"x"))
        assert await walked(t, Kept.LETTERS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, Kept.LETTERS) == [2]
        assert t.rows("SELECT crawl_id FROM dead_letters") == [(t.crawl_id,)]

    on_store(story)


def test_a_producer_goes_when_its_name_is_no_longer_used_and_one_without_a_week_stays(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        weekly = named_for("w1.ab", week_of(NOW_MS))
        until = used_until_ms(weekly)
        assert until is not None
        for producer in (weekly, "seeds-0123"):
            await t.found(link(f"http://{producer.replace('.', '-')}.test/"), producer=producer)
        assert await walked(t, Kept.PRODUCERS, until + 28 * DAY_MS) == [0], "not yet"
        assert await walked(t, Kept.PRODUCERS, until + 28 * DAY_MS + 1) == [1]
        assert t.rows("SELECT partition, producer FROM producers") == [(PARTITION, "seeds-0123")]

    on_store(story)


def test_a_walk_sees_every_row_however_many_passes_it_takes(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        kept = f"k{ROWS:05}"

        def ask(c: Connection) -> None:
            for n in range(ROWS + 2):
                access.ask(c, f"k{n:05}", CrawlId(0), "block_host", "{}", 0, actor=OPERATOR, now_ms=NOW_MS)

        await t.store.executor.write(ask)
        await catalog.ask("zz", CrawlId(0), "block_host", "{}", 1, actor=OPERATOR, now_ms=NOW_MS)
        assert await walked(t, Kept.COMMANDS) == [ROWS, 2]
        assert await catalog.command(kept) is None
        assert await catalog.command("zz") is not None

    on_store(story)


def test_verbs_go_on_upon_a_crawl_whose_earlier_revisions_are_forgotten(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        for n in range(6):
            await catalog.put(
                Declaration("other", f'{{"n": {n}}}', {}), expected=None, start=True, actor=OPERATOR, now_ms=NOW_MS
            )
        await walked(t, Kept.REVISIONS)
        _, made = await catalog.turn("other", Verb.PAUSE, expected=None, actor=OPERATOR, now_ms=NOW_MS)
        assert (made.state, made.revision) == (CrawlState.PAUSED, 6)

    on_store(story)
