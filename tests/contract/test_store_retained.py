"""What is kept for a while only: forgotten when it is old, in bounded steps, and never while somebody needs it."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from sqlalchemy import Connection, text

from shared.adapters.sql.admin import retention
from shared.adapters.sql.admin.retention import ROWS
from shared.adapters.sql.catalog import access
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresStore
from shared.adapters.sql.frontier import old_hosts
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.scope_change import scope_command_of
from shared.domain.crawl.state import Verb
from shared.domain.crawl.wider_scope import rediscovery_of
from shared.domain.frontier.commands import collection_of, recrawl_of, retry_of
from shared.domain.frontier.page_history import ChangeKind, change_of
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Changes, CommandRun, DeadLetterRow
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.access import ApiKey, Role
from shared.domain.ops.config import HotConfig, WorkerPart
from shared.domain.ops.retention import DAY_MS, RetainedKind, named_for, used_until_ms, week_of
from shared.domain.reads.declared import Actor, Declaration
from shared.domain.web.url import fingerprint
from tests.support.database.query_plans import accesses, recorded
from tests.support.database.retention_walk import LATER_MS, walked
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link

OnStore = Callable[..., None]
OPERATOR = Actor("0" * 16, "operator", "r")


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
        assert await walked(t, RetainedKind.AUDIT, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.AUDIT) == [ROWS, 20]
        assert t.value("SELECT count(*) FROM audit_log") == 30

    on_store(story)


def test_that_a_deleted_crawls_rows_are_removed_is_known_until_it_is_noted(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog, name = SqlCatalog(t.store.executor), collection_of(t.crawl_id)
        await catalog.ask(name, t.crawl_id, "delete", "{}", 1, actor=OPERATOR, now_ms=NOW_MS)
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        await t.command("delete", id=name)
        assert await walked(t, RetainedKind.COMMANDS) == [0]
        assert await walked(t, RetainedKind.CRAWLS) == [0], "it is not collected"
        await t.store.collected(t.crawl_id, NOW_MS)
        assert await walked(t, RetainedKind.COMMANDS) == [1]
        assert await walked(t, RetainedKind.CRAWLS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.CRAWLS) == [2], "the crawl and its revision"
        assert t.value("SELECT count(*) FROM crawl_revisions") == 0
        made = await catalog.create(Declaration("crawl", "{}", {}), start=False, actor=OPERATOR, now_ms=LATER_MS)
        assert made.crawl_id > t.crawl_id, "its number is not given again"
        t.crawl_id = made.crawl_id

    on_store(story)


def test_old_changes_go_in_bounded_steps_and_newer_stay(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS", 3)

    async def story(t: Tables) -> None:
        url, recent = "http://a.test/", LATER_MS - 10 * DAY_MS
        await t.found(link(url))
        entry = change_of(ChangeKind.CHANGED, t.host_id("a.test"), fingerprint(url), 2)
        for at_ms in (*range(NOW_MS, NOW_MS + 7), recent, recent + 1):
            await t.apply(Changes(page_changes={t.crawl_id: [entry]}, at_ms=at_ms))
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        assert await walked(t, RetainedKind.CHANGES, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await catalog.changes_deleted_ms(t.crawl_id) is None
        assert await walked(t, RetainedKind.CHANGES) == [3, 3, 1]
        assert await catalog.changes_deleted_ms(t.crawl_id) == NOW_MS + 6, "the newest that is deleted"
        assert t.rows("SELECT at_ms FROM page_changes ORDER BY at_ms") == [(recent,), (recent + 1,)]
        assert t.value("SELECT count(*) FROM urls") == 1, "the page stays"

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
                HotConfig(worker=WorkerPart(max_visits=n)), expected=None, actor=OPERATOR, now_ms=NOW_MS
            )
        crawl = await catalog.crawl("other")
        assert await walked(t, RetainedKind.REVISIONS) == [3]
        assert await walked(t, RetainedKind.CONFIG) == [3]
        left = await catalog.revisions(crawl.crawl_id, before=100, max_count=100)
        assert [revision.revision for revision in left] == [6, 5, 4]
        assert (await catalog.crawl("other")).spec == '{"n": 6}'
        assert [stored.revision for stored in await desired.config_revisions(before=100, max_count=100)] == [6, 5, 4]
        assert (await desired.config()).config.worker.max_visits == 6
        assert await walked(t, RetainedKind.REVISIONS) == [0]

    on_store(story)


def test_dead_letters_of_crawls_stay_and_those_of_none_age(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        for crawl_id in (t.crawl_id, None, None):
            await t.bury(DeadLetterRow(crawl_id, "outcome", NOW_MS, "unreadable", payload=b"x"))
        assert await walked(t, RetainedKind.LETTERS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.LETTERS) == [2]
        assert t.rows("SELECT crawl_id FROM dead_letters") == [(t.crawl_id,)]

    on_store(story)


def test_producer_unused_is_deleted_and_one_without_week_stays(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        weekly = named_for("w1.ab", week_of(NOW_MS))
        until = used_until_ms(weekly)
        assert until is not None
        for producer in (weekly, "seeds-0123"):
            await t.found(link(f"http://{producer.replace('.', '-')}.test/"), producer=producer)
        assert await walked(t, RetainedKind.PRODUCERS, until + 28 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.PRODUCERS, until + 28 * DAY_MS + 1) == [1]
        assert t.rows("SELECT partition, producer FROM producers") == [(PARTITION, "seeds-0123")]

    on_store(story)


def test_a_walk_sees_every_row_however_many_passes_it_takes(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        kept = f"k{ROWS:05}"

        def ask(c: Connection) -> None:
            for n in range(ROWS + 2):
                access.ask(c, f"k{n:05}", CrawlId(0), "host_policy", "{}", 0, actor=OPERATOR, now_ms=NOW_MS)

        await t.store.executor.write(ask)
        await catalog.ask("zz", CrawlId(0), "host_policy", "{}", 1, actor=OPERATOR, now_ms=LATER_MS)
        assert await walked(t, RetainedKind.COMMANDS) == [ROWS, 2]
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
        await walked(t, RetainedKind.REVISIONS)
        _, made = await catalog.turn("other", Verb.PAUSE, expected=None, actor=OPERATOR, now_ms=NOW_MS)
        assert (made.state, made.revision) == (CrawlState.PAUSED, 6)

    on_store(story)


def test_commands_sent_for_a_revision_go_with_the_revision(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        for n in range(2, 7):
            spec = f'{{"n": {n}}}'
            await catalog.put(Declaration("docs", spec, {}), expected=None, start=True, actor=OPERATOR, now_ms=NOW_MS)
        sent_for = (retry_of, recrawl_of, scope_command_of, rediscovery_of)
        ids = {n: {command_of(t.crawl_id, Revision(n)) for command_of in sent_for} for n in range(1, 7)}
        for each in set[str]().union(*ids.values()):
            await t.command("retry_failed", id=each)
        await t.command("retry_failed", id=f"rescope-{t.crawl_id}1-1")  # of another crawl
        recrawl = recrawl_of(t.crawl_id, Revision(3))
        assert await catalog.command(recrawl) is not None
        assert await walked(t, RetainedKind.REVISIONS) == [3]
        assert await catalog.command(recrawl) is None
        assert await catalog.command(recrawl_of(t.crawl_id, Revision(4))) is not None
        other = {f"rescope-{t.crawl_id}1-1"}
        assert {each for (each,) in t.rows("SELECT id FROM commands")} == ids[4] | ids[5] | ids[6] | other
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        await t.store.collected(t.crawl_id, NOW_MS)
        assert await walked(t, RetainedKind.CRAWLS) == [4], "the crawl and its revisions"
        assert {each for (each,) in t.rows("SELECT id FROM commands")} == other
        made = await catalog.create(Declaration("crawl", "{}", {}), start=False, actor=OPERATOR, now_ms=LATER_MS)
        t.crawl_id = made.crawl_id

    on_store(story)


def test_upload_mark_expires_after_first_seen_and_repeat_counts_anew(
    on_store: OnStore,
) -> None:
    async def story(t: Tables) -> None:
        seeds = (link("http://a.test/"), link("http://a.test/b"))
        await t.found(*seeds, producer="seeds-01")
        await t.found(link("http://a.test/c"), producer="w1.ab")
        assert await walked(t, RetainedKind.UPLOADS, NOW_MS) == [0], "its time begins"
        assert t.rows("SELECT producer, seen_at_ms FROM producers ORDER BY 1") == [
            ("seeds-01", NOW_MS),
            ("w1.ab", None),
        ]
        assert (await t.found(*seeds, producer="seeds-01", n=1)).repeats == 1
        assert await walked(t, RetainedKind.UPLOADS, NOW_MS + 10 * DAY_MS) == [0], "not yet"
        assert await walked(t, RetainedKind.UPLOADS, NOW_MS + 10 * DAY_MS + 1) == [1]
        t.sent.clear()
        again = await t.found(*seeds, producer="seeds-01")
        assert (again.repeats, again.gaps) == (0, 0)
        counters = await t.store.counters(t.crawl_id)
        assert (counters.accepted, counters.new, counters.known) == (5, 3, 2)

    on_store(story)


def test_revoked_keys_go_when_they_are_old_and_never_the_last_of_all(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        catalog = SqlCatalog(t.store.executor)
        for number, name in enumerate(("one", "two")):
            key = ApiKey(f"{number}" * 16, name, Role.VIEWER, bytes(32), NOW_MS, "test")
            await catalog.add_key(key, actor=OPERATOR)
            await catalog.revoke_key(name, actor=OPERATOR, now_ms=NOW_MS + number)
        assert await walked(t, RetainedKind.KEYS) == [0], "a cluster without any key would make a first one"
        await catalog.add_key(ApiKey("f" * 16, "holds", Role.ADMIN, bytes(32), NOW_MS, "test"), actor=OPERATOR)
        assert await walked(t, RetainedKind.KEYS, NOW_MS + 10 * DAY_MS + 1) == [1], "the other is not old enough"
        assert await walked(t, RetainedKind.KEYS) == [1]
        assert [key.name for key in await catalog.keys(after=("", ""), max_count=10, revoked=True)] == ["holds"]
        told = t.rows("SELECT target, after FROM audit_log WHERE action = 'key.create' ORDER BY id")
        assert told[0] == ("one", '{"id": "0000000000000000", "role": "viewer"}'), "what the log says of them stays"

    on_store(story)


async def host_of(t: Tables, host: str, **columns: int) -> None:
    """Let a host have been met by a crawl that is gone."""
    assert isinstance(t.store, SqlStore)
    gone, _ = await t.store.put_crawl(f"of-{host.replace('.', '-')}", "{}", NOW_MS)
    await t.found(link(f"http://{host}/", crawl_id=gone.crawl_id), crawl_id=gone.crawl_id, producer=host)
    await t.store.set_state(gone.crawl_id, CrawlState.DELETED, None, NOW_MS)
    run = CommandRun(collection_of(gone.crawl_id), gone.crawl_id, "delete", {}, PARTITION)
    await t.run(await t.accept(run))
    await t.store.collected(gone.crawl_id, NOW_MS)
    changes = ", ".join(f"{name} = {value}" for name, value in {"visited_at_ms": NOW_MS, **columns}.items())
    await t.store.executor.write(
        lambda c: c.execute(text(f"UPDATE hosts SET {changes} WHERE host = :host"), {"host": host}).close()
    )


def test_host_without_crawl_or_setting_is_deleted(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        for host, columns in {
            "old.test": {},
            "never-visited.test": {"visited_at_ms": 0},
            "lately.test": {"visited_at_ms": LATER_MS - 9 * DAY_MS},
            "failed-lately.test": {"last_failure_ms": LATER_MS - 9 * DAY_MS},
            "blocked.test": {"blocked_until_ms": LATER_MS + 1},
            "slowed.test": {"operator_delay_ms": 5000},
            "used.test": {},
        }.items():
            await host_of(t, host, **columns)
        await t.found(link("http://used.test/2"), producer="w2")
        assert await walked(t, RetainedKind.HOSTS, NOW_MS + 10 * DAY_MS) == [1], "of the others not yet"
        assert await walked(t, RetainedKind.HOSTS) == [1]
        left = {host for (host,) in t.rows("SELECT host FROM hosts")}
        assert left == {"lately.test", "failed-lately.test", "blocked.test", "slowed.test", "used.test"}
        before = t.value("SELECT max(host_id) FROM hosts")
        await t.found(link("http://old.test/again"), producer="w3")
        assert t.host_id("old.test") > before, "numbers of hosts are not given again"

    on_store(story)


@pytest.mark.parametrize("max_count", [1, 4, 20])
def test_old_hosts_are_checked_in_steps_shorter_with_more_queues(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch, max_count: int
) -> None:
    monkeypatch.setattr(old_hosts, "MAX_QUEUES_READ", max_count)
    monkeypatch.setattr(old_hosts, "_CRAWLS", 2)
    hosts = [f"h{number:02}.test" for number in range(12)]

    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        for host in hosts:
            await host_of(t, host)
        for number in range(30):
            await t.store.put_crawl(f"without-any-{number}", "{}", NOW_MS)
        kept = {host for number, host in enumerate(hosts) if number % 3 == 0 or number == 7}
        for name in ("one", "two", "three"):
            crawl, _ = await t.store.put_crawl(name, "{}", NOW_MS)
            # Each has most of them, and no two the same ones.
            of_it = sorted(kept - {hosts[{"one": 0, "two": 3, "three": 7}[name]]})
            links = (link(f"http://{host}/of/{name}", crawl_id=crawl.crawl_id) for host in of_it)
            await t.found(*links, crawl_id=crawl.crawl_id, producer=name)
        passes = await walked(t, RetainedKind.HOSTS)
        assert (sum(passes), {host for (host,) in t.rows("SELECT host FROM hosts")}) == (len(hosts) - len(kept), kept)
        assert len(passes) > 3 if max_count == 1 else len(passes) == 1 if max_count == 20 else len(passes) > 1

    on_store(story)


def test_hosts_are_asked_for_by_the_key_of_queues(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        assert isinstance(t.store, SqlStore)
        await t.found(*(link(f"http://h{n}.test/") for n in range(300)))
        await t.store.executor.write(lambda c: c.execute(text("ANALYZE")).close())
        await host_of(t, "old.test")
        with recorded() as sent:
            assert await walked(t, RetainedKind.HOSTS) == [1]
        found = [access for told in (await accesses(t.store, sent)).values() for access in told]
        of_queues = [access.condition or "every row" for access in found if access.table == "queues"]
        assert len(of_queues) == 2, "which crawls have something there, and what they have"
        assert all("crawl_id" in condition for condition in of_queues), found

    on_store(story)


def test_host_met_while_deleted_gets_another_number(
    on_postgres: Callable[..., None],
) -> None:
    """SQLite has one writer. Elsewhere its transaction waits at its fence, and reads the hosts after that."""

    async def story(t: Tables, _: str) -> None:
        assert isinstance(t.store, PostgresStore)
        await host_of(t, "old.test")
        before = t.host_id("old.test")
        old = old_hosts.Old({before: PARTITION}, "")
        pool = cast(PostgresPool, t.store.executor)
        async with pool._writer.begin() as leader:
            gone = await leader.run_sync(lambda c: old_hosts.forget_hosts(c, old, LATER_MS, LATER_MS))
            assert gone.rows == 1
            finding = asyncio.create_task(t.found(link("http://old.test/new"), producer="w2"))
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not finding.done() and not t.value(waiting):  # noqa: ASYNC110  the server tells nobody
                await asyncio.sleep(0.01)
        await finding
        assert t.host_id("old.test") > before
        lost = "SELECT count(*) FROM queues q LEFT JOIN hosts h ON h.host_id = q.host_id WHERE h.host_id IS NULL"
        assert t.value(lost) == 0

    on_postgres(story)


def test_hosts_of_an_owner_at_work_wait_for_another_walk(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, _: str) -> None:
        assert isinstance(t.store, PostgresStore)
        await host_of(t, "old.test")
        pool = cast(PostgresPool, t.store.executor)
        async with pool._writer.begin() as owner:
            await owner.execute(text("UPDATE partitions SET version = version WHERE partition = :p"), {"p": PARTITION})
            assert await walked(t, RetainedKind.HOSTS) == [0]
        assert await walked(t, RetainedKind.HOSTS) == [1]

    on_postgres(story)
