"""The store's promises about operators' commands: once, in bounded chunks, safe to start over after a crash."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text

from shared.adapters.sql.engine import chunks
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.explain.excluded_links import ExcludedLink
from shared.domain.frontier.command_progress import place_of
from shared.domain.frontier.states import LEVEL_MS, CrawlState, UrlState
from shared.domain.frontier.store_model import Changes, CommandRun, DeadLetterRow, HostChange, UrlChange
from shared.domain.ids import CrawlId, Fingerprint
from tests.support.database.query_plans import accesses, analyze, recorded
from tests.support.database.statement_log import executor_of
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables, link, links

OnStore = Callable[..., None]

HOST = "a.example.com"


async def _fail(t: Tables, host: str, max_count: int = 500) -> None:
    row = await t.lease(host, max_count)
    assert row is not None
    await t.settle(row, UrlState.FAILED, reason="http_500")


def test_failed_urls_are_queued_again_with_fresh_attempts(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        first = link(f"http://{HOST}/", 2, priority=1)
        await t.found(first, *links(HOST, range(4), depth=3))
        await _fail(t, HOST, 3)
        assert await t.command("retry_failed", now_ms=NOW_MS + 60_000) == 1
        row = t.url(first)
        assert (row["state"], row["attempts"], row["reason"], row["lease_id"]) == (UrlState.QUEUED, 0, None, None)
        assert row["rank"] == NOW_MS + 60_000 + LEVEL_MS, "ranked as any URL queued now"
        assert (await t.queue(HOST)).queued == 5
        assert t.value("SELECT outcome_seq FROM partitions WHERE partition = ?", PARTITION) == t.position.outcome_seq

    on_store(story)


def test_unanswered_urls_are_queued_again_and_counts_follow(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        for reason in ("egress_denied", "http_404", "httpd_is_no_status"):
            row = await t.lease(HOST, 1)
            assert row is not None
            await t.settle(row, UrlState.FAILED, reason=reason)
            changes = Changes()
            changes.tallies[t.crawl_id, "failed", reason] += 1
            await t.apply(changes)
        await t.command("retry_unanswered")
        assert t.rows("SELECT reason FROM urls WHERE state = 4") == [("http_404",)]
        assert (await t.queue(HOST)).queued == 2
        assert await t.store.tallies(t.crawl_id) == {"failed": {"http_404": 1}}

    on_store(story)


def test_a_retry_gives_dead_hosts_a_new_chance_and_leaves_the_others_blocks(on_store: OnStore) -> None:
    """A host that asked to be left alone stays so: its block is politeness, not failure."""

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(2)), *links("b.example.com", range(2)))
        await _fail(t, HOST)
        for host in (HOST, "b.example.com"):
            host_id = t.host_id(host)
            change = HostChange(host_id, 0, 0, 4, 3, NOW_MS, "connect", NOW_MS + 9000, NOW_MS, None)
            await t.apply(Changes(hosts={host_id: change}))
        await t.command("retry_failed")
        assert t.rows("SELECT host, failures, unreachable, blocked_until_ms FROM hosts ORDER BY 1") == [
            (HOST, 0, 0, NOW_MS + 9000),
            ("b.example.com", 4, 3, NOW_MS + 9000),
        ]

    on_store(story)


def test_a_command_is_applied_once_however_often_it_comes(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        await _fail(t, HOST)
        await t.command("retry_failed", id="x")
        await _fail(t, HOST)
        await t.command("retry_failed", id="x")
        assert t.value("SELECT count(*) FROM urls WHERE state = 4") == 3
        assert t.rows("SELECT id, kind, applied_at_ms FROM commands") == [("x", "retry_failed", NOW_MS)]
        await t.command("retry_failed", id="y")
        assert t.value("SELECT count(*) FROM urls WHERE state = 4") == 0

    on_store(story)


def test_retry_over_many_hosts_goes_on_after_a_takeover(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        hosts = [f"h{i:03}.example.com" for i in range(450)]
        await t.found(*(link(f"http://{host}/") for host in hosts))
        for row in await t.lease_all([(host, 1) for host in hosts]):
            await t.settle(row, UrlState.FAILED)
        run = await t.accept(CommandRun("c1", t.crawl_id, "retry_failed", {}, PARTITION))
        assert run is not None
        assert (await t.claim(2)).position == t.position, "the position moves when it is accepted"
        run = await t.chunk(run)
        assert run is not None
        assert 0 < t.value("SELECT count(*) FROM urls WHERE state = 0") <= 200
        assert (await t.claim(3)).commands == (run,), "another owner goes on where this one was"
        chunks_left = await t.run(run)
        assert chunks_left >= 2
        assert t.value("SELECT count(*) FROM urls WHERE state = 0") == 450
        assert (await t.claim(4)).commands == ()

    on_store(story)


def test_delete_removes_all_rows_of_one_crawl_in_chunks(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        hosts = [f"h{i:03}.example.com" for i in range(401)]
        await t.found(*(link(f"http://{host}/") for host in hosts))
        theirs = [link(f"http://{host}/", crawl_id=other.crawl_id) for host in hosts[:3]]
        await t.found(*theirs, crawl_id=other.crawl_id, producer="v")
        await t.lease(hosts[7])
        await t.bury(DeadLetterRow(t.crawl_id, "url", NOW_MS, "x"))
        await t.bury(DeadLetterRow(other.crawl_id, "url", NOW_MS, "y"))
        changes = Changes()
        changes.tallies[t.crawl_id, "status", "200"] += 1
        changes.left_out.append(
            ExcludedLink(t.crawl_id, "depth", "http://x.test/", t.host_id(hosts[0]), Fingerprint(b"f"))
        )
        await t.apply(changes)
        assert t.value("SELECT count(*) FROM links_left_out") == 1
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        run = await t.chunk(await t.accepted(CommandRun("c1", t.crawl_id, "delete", {}, PARTITION)))
        assert run is not None
        assert (await t.claim(2)).commands == (run,)
        assert await t.run(run) >= 1
        tables = ("urls", "queues", "fetches", "leases", "producers", "crawl_counters", "crawl_tallies", "dead_letters")
        for table in (*tables, "links_left_out"):
            assert t.value(f"SELECT count(*) FROM {table} WHERE crawl_id = ?", t.crawl_id) == 0, table
        assert t.value("SELECT count(*) FROM urls") == 3
        assert t.value("SELECT count(*) FROM dead_letters") == 1
        assert t.value("SELECT count(*) FROM hosts") == 401, "hosts outlive the crawls that met them"

    on_store(story)


def test_what_a_crawl_has_beside_its_hosts_is_deleted_in_chunks_too(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters are as many as URLs may be, and producers as the processes that ever reported."""
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        for _ in range(7):
            await t.bury(DeadLetterRow(t.crawl_id, "url", NOW_MS, "x"))
        await t.bury(DeadLetterRow(other.crawl_id, "url", NOW_MS, "y"))
        for n in range(4):
            await t.found(link("http://a.example.com/"), producer=f"w{n}")
        run = await t.accept(CommandRun("d", t.crawl_id, "delete", {}, PARTITION))
        left = [(7, 4)]
        while run is not None:
            run = await t.chunk(run)
            rows = t.rows("SELECT (SELECT count(*) FROM dead_letters), (SELECT count(*) FROM producers)")
            left.append((rows[0][0] - 1, rows[0][1]))
        assert left == [(7, 4), (5, 4), (2, 4), (0, 3), (0, 0), (0, 0)]
        assert t.value("SELECT count(*) FROM crawl_counters WHERE crawl_id = ?", t.crawl_id) == 0
        assert t.value("SELECT count(*) FROM urls") == t.value("SELECT count(*) FROM queues") == 0

    on_store(story)


def test_unbegun_leases_of_a_deleted_crawl_go_in_chunks(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are twice the free visits of a pool, each with the fingerprints of its URLs."""
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        hosts = [f"h{n}.example.com" for n in range(8)]
        await t.found(*(link(f"http://{host}/") for host in hosts))
        [begun, *_] = await t.lease_all([(host, 1) for host in hosts])
        await t.store.grant(t.fence, [begun.lease_id])
        t.fence = t.fence.next()
        run = await t.accept(CommandRun("d", t.crawl_id, "delete", {}, PARTITION))
        left = [8]
        while run is not None:
            run = await t.chunk(run)
            left.append(t.value("SELECT count(*) FROM leases"))
        assert max(before - after for before, after in pairwise(left)) <= 3
        assert left[-1] == 1, "a grant of the first one may last"

    on_store(story)


def test_exactly_a_chunk_of_hosts_ends_the_command(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*(link(f"http://h{i:03}.example.com/") for i in range(200)))
        await t.command("delete")
        assert t.value("SELECT count(*) FROM urls") == 0

    on_store(story)


def test_host_of_any_size_is_retried_and_deleted_in_bounded_chunks(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other writers, and a check that the database answers, wait for one chunk at most."""
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(11_000)), link("http://b.example.com/"))
        for _ in range(22):
            await _fail(t, HOST)
        await _fail(t, "b.example.com")
        run = await t.chunk(await t.accepted(CommandRun("r", t.crawl_id, "retry_failed", {}, PARTITION)))
        assert run is not None
        assert place_of(run.after)[0] == t.host_id(HOST), "it goes on with the same host"
        assert t.value("SELECT count(*) FROM urls WHERE state = 0") == (await t.queue(HOST)).queued == 5_000
        counters = await t.store.counters(t.crawl_id)
        assert (counters.queued, counters.failed) == (5_000, 6_001)
        assert await t.run(run) == 2
        assert t.value("SELECT count(*) FROM urls WHERE state = 0") == 11_001
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        run = await t.chunk(await t.accepted(CommandRun("d", t.crawl_id, "delete", {}, PARTITION)))
        assert run is not None
        assert t.value("SELECT count(*) FROM urls") == 6_001
        assert await t.run(run) == 2
        assert t.value("SELECT count(*) FROM urls") == t.value("SELECT count(*) FROM queues") == 0

    on_store(story)


def test_a_chunk_does_not_come_back_to_what_those_before_it_have_done(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the chunks of one large host would each walk over all before them, and what fails as fast as it is retried
    would keep a command for ever."""
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 3)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(7)), *links("b.example.com", range(2)))
        await _fail(t, HOST)
        await _fail(t, "b.example.com")
        run = await t.accept(CommandRun("r", t.crawl_id, "retry_failed", {}, PARTITION))
        n = 0
        while run is not None and (run := await t.chunk(run)) is not None:
            assert (await t.queue(HOST)).queued + (await t.queue("b.example.com")).queued == 3
            await _fail(t, HOST)
            n += 1
            assert n < 10, "it goes on for ever"
        assert n == 3
        assert (await t.store.counters(t.crawl_id)).failed == 7, "the last two are queued"

    on_store(story)


def test_unblocked_host_keeps_its_failures(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(2)))
        assert isinstance(t.store, SqlStore)
        await t.store.executor.write(
            lambda c: c.exec_driver_sql("UPDATE hosts SET blocked_until_ms = 7, failures = 2").close()
        )
        await t.command("unblock_host", id="u", host=HOST)
        queue = await t.queue(HOST)
        assert (queue.blocked_until_ms, queue.failures) == (0, 2)
        await t.command("unblock_host", id="n", host="unknown.example.com")

    on_store(story)


@pytest.mark.parametrize(("kind", "args"), [("explode", {}), ("unblock_host", {}), ("host_policy", {"host": 7})])
def test_a_command_that_is_none_changes_nothing(on_store: OnStore, kind: str, args: dict[str, object]) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(2)))
        run = CommandRun("c1", CrawlId(1), kind, args, PARTITION)
        with pytest.raises(ValueError, match="command"):
            await t.accept(run)
        assert await t.store.still_owner(t.fence)
        assert t.value("SELECT count(*) FROM commands") == 0
        await t.found(link(f"http://{HOST}/fence-still-holds"))

    on_store(story)


def test_chunk_is_bounded_by_the_rows_it_looks_at(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a host of any size it may change none."""
    monkeypatch.setattr(chunks, "ROWS_A_CHUNK", 100)
    monkeypatch.setattr(chunks, "STEP", 40)
    monkeypatch.setattr(chunks, "CHUNK_S", 60.0)

    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(1_000)))
        assert await t.command("retry_failed", id="r") >= 10
        assert await t.command("delete_seeds", id="named", all=False, places=[[HOST, b"0" * 16]]) == 1
        assert await t.command("delete_seeds", id="s", all=True, places=[]) >= 10
        assert (await t.store.counters(t.crawl_id)).excluded == 1_000
        assert await t.command("delete_seeds", id="again", all=True, places=[]) == 1, "no host has any that is open"
        assert await t.command("delete", id="d") >= 10

    on_store(story)


def test_command_touches_no_row_that_was_written_behind_it(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        seeds = links(HOST, range(4))
        await t.found(*seeds)
        row = await t.lease(HOST, 4)
        assert row is not None
        first = await t.accepted(CommandRun("r1", t.crawl_id, "retry_failed", {}, PARTITION))
        before, behind, *others = row.urls
        for fingerprint, marks in ((before, {}), (behind, {t.crawl_id: first.number})):
            changes = Changes(marks=marks)
            changes.urls.append(UrlChange(t.crawl_id, row.host_id, fingerprint, UrlState.FAILED, 0, 1, 0, "http_500"))
            changes.queue(t.crawl_id, row.host_id).leased -= 1
            changes.counters[t.crawl_id].update(leased=-1, failed=1)
            await t.apply(changes)
        await t.run(first)
        assert [bytes(key) for (key,) in t.rows("SELECT fingerprint FROM urls WHERE state = 4")] == [behind]
        assert (await t.queue(HOST)).queued == 1
        await t.command("retry_failed", id="r2")
        assert t.rows("SELECT fingerprint FROM urls WHERE state = 4") == [], "a later one means it"
        second = await t.accepted(CommandRun("s1", t.crawl_id, "delete_seeds", {"all": True, "places": []}, PARTITION))
        added = link(f"http://{HOST}/added")
        await t.found(added, marks={t.crawl_id: second.number})
        changes = Changes(marks={t.crawl_id: second.number})
        changes.urls.append(UrlChange(t.crawl_id, row.host_id, others[0], UrlState.WAITING, NOW_MS, 1, 0, "http_503"))
        queue = changes.queue(t.crawl_id, row.host_id)
        queue.leased, queue.waiting = -1, 1
        changes.counters[t.crawl_id].update(leased=-1, queued=1)
        await t.apply(changes)
        await t.run(second)
        kept = {bytes(key) for (key,) in t.rows("SELECT fingerprint FROM urls WHERE state IN (0, 1)")}
        assert kept == {added.fingerprint, others[0]}
        counters = await t.store.counters(t.crawl_id)
        assert (counters.excluded, counters.url_drift()) == (2, 0)
        await t.command("delete_seeds", id="s2", all=True, places=[])
        assert (await t.store.counters(t.crawl_id)).queued == 0

    on_store(story)


def test_failed_url_that_is_found_again_behind_a_retry_is_queued(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        seeds = links(HOST, range(2))
        await t.found(*seeds)
        row = await t.lease(HOST, 2)
        assert row is not None
        changes = Changes()
        for fingerprint in row.urls:
            changes.urls.append(UrlChange(t.crawl_id, row.host_id, fingerprint, UrlState.FAILED, 0, 1, 0, "dns"))
        changes.queue(t.crawl_id, row.host_id).leased -= 2
        changes.counters[t.crawl_id].update(leased=-2, failed=2)
        await t.apply(changes)
        run = await t.accepted(CommandRun("r", t.crawl_id, "retry_unanswered", {}, PARTITION))
        await t.found(seeds[0], marks={t.crawl_id: run.number})
        await t.run(run)
        assert (await t.queue(HOST)).queued == 2, "a link to a failed URL changes nothing of it"

    on_store(story)


def test_host_that_is_given_up_behind_a_retry_stays_given_up(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(3)))
        run = await t.accepted(CommandRun("r", t.crawl_id, "retry_failed", {}, PARTITION))
        end = (t.crawl_id, t.host_id(HOST), UrlState.FAILED, "host_unreachable")
        await t.apply(Changes(give_up=[end], marks={t.crawl_id: run.number}))
        await t.run(run)
        assert t.value("SELECT count(*) FROM urls WHERE state = 4") == 3
        await t.command("retry_failed", id="later")
        assert t.value("SELECT count(*) FROM urls WHERE state = 4") == 0

    on_store(story)


def test_delete_ends_the_commands_of_its_crawl_and_of_no_other(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        await t.found(*links(HOST, range(3)))
        for id, crawl_id in (("mine", t.crawl_id), ("theirs", other.crawl_id)):
            await t.accepted(CommandRun(id, crawl_id, "retry_failed", {}, PARTITION))
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        deletion = CommandRun("d", t.crawl_id, "delete", {}, PARTITION)
        run = await t.accepted(deletion)
        assert await t.accept(deletion) is None, "it is in progress"
        assert await t.accept(CommandRun("late", t.crawl_id, "retry_failed", {}, PARTITION)) is None
        assert t.rows("SELECT id FROM commands ORDER BY id") == [("late",), ("mine",)]
        busy = await t.store.crawls_with_commands([t.crawl_id, other.crawl_id, CrawlId(99)])
        assert set(busy) == {t.crawl_id, other.crawl_id}
        claimed = await t.claim(2)
        assert [each.id for each in claimed.commands] == ["theirs", "d"]
        await t.run(run)
        assert await t.store.crawls_with_commands([t.crawl_id]) == set()
        assert await t.accept(deletion) is None, "it is applied"

    on_store(story)


async def _in_sets(t: Tables, sets: int, urls: int) -> None:
    """Let there be so many seed sets of as many other crawls, with so many URLs each."""
    made = text(
        "INSERT INTO seed_sets (set_id, crawl_id, revision, name, document, canonical, seeds, created_at_ms,"
        " created_by, changed_at_ms, changed_by) VALUES (:n, :other, :n, 'one', '', '', 0, 0, '', 0, '')"
    )
    has = text("INSERT INTO seed_set_urls (set_id, fingerprint) VALUES (:set, :key)")
    numbers = range(1, sets + 1)
    keys = [{"set": number, "key": b"%08d%08d" % (number, n)} for number in numbers for n in range(urls)]
    await executor_of(t).write(lambda c: c.execute(made, [{"n": n, "other": 1_000 + n} for n in numbers]).close())
    await executor_of(t).write(lambda c: c.execute(has, keys).close())


def test_no_statement_of_a_command_looks_at_rows_one_by_one(on_store: OnStore) -> None:
    """Those on one host are small, and letters are found by their numbers."""

    async def story(t: Tables) -> None:
        for i in range(4):
            await t.found(*links(f"h{i}.example.com", range(1_500)))
        await _fail(t, "h0.example.com")
        await _in_sets(t, 200, 1_000)
        assert isinstance(t.store, SqlStore)
        await analyze(t.store)
        with recorded() as sent:
            await t.command("retry_failed", id="r")
            await t.command("retry_unanswered", id="u")
            await t.command("delete_seeds", id="s", all=True, places=[])
            await t.command("delete", id="d")
        found = await accesses(t.store, sent)
        assert {access.table for told in found.values() for access in told} >= {"urls", "queues", "fetches", "hosts"}
        # `w` is a step's rows and `json_each` a message's seeds, which SQLite scans.
        slow = {
            statement: told
            for statement, told in found.items()
            if any(access.one_by_one and access.table not in ("w", "json_each") for access in told)
        }
        if isinstance(t.at, Path):  # PostgreSQL knows that all of these are seeds, for which any index will do.
            seeds = [told for statement, told in found.items() if "via_host IS NULL" in statement]
            assert all(any(access.index.endswith("urls_seeds") for access in told) for told in seeds), seeds
        assert not slow, "\n".join(f"{k} {v}" for k, v in slow.items())

    on_store(story)
