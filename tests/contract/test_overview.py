"""What those see who watch over the whole, on every engine: numbers that are right, at a cost that is bounded."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, bindparam, text

from shared.adapters.sql.catalog import crawl_reader as reading
from shared.adapters.sql.catalog import overview as module
from shared.adapters.sql.catalog.access import record
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.frontier.store_model import Changes, DeadLetterRow, HostChange
from shared.domain.ids import CrawlId, Partition
from shared.domain.ops.audit import AuditFilter
from shared.domain.reads.declared import Actor
from tests.support.database.statement_log import executor_of, statements
from tests.support.database.store_tables import NOW_MS, Tables, link, links

NewTables = Callable[[], AbstractAsyncContextManager[Tables]]
OnStore = Callable[..., None]
END = 2**63 - 1


def seen(t: Tables) -> SqlOverview:
    return SqlOverview(executor_of(t))


def test_host_states_are_those_with_urls_to_send_and_bounded(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        hosts = [f"h{n}.test" for n in range(5)]
        for host in hosts:
            await t.found(*links(host, range(2)), now_ms=NOW_MS)
        leased = await t.lease("h4.test", 2)
        assert leased is not None
        host_id = t.host_id("h0.test")
        held = HostChange(host_id, 0, 0, 1, 0, NOW_MS, "http_429", NOW_MS + 60_000, NOW_MS, None, asked_ms=60_000)
        await t.apply(Changes(hosts={host_id: held}))
        overview = seen(t)
        found = {state.host: state for state in await overview.host_states(t.crawl_id, NOW_MS, 10)}
        assert sorted(found) == hosts[:4], "a host whose URLs are all with workers has nothing to send"
        assert found["h0.test"].health.blocked_until_ms == NOW_MS + 60_000
        assert (found["h1.test"].urls, found["h1.test"].health.blocked_until_ms) == (2, 0)
        assert len(await overview.host_states(t.crawl_id, NOW_MS, 3)) == 3
        assert await overview.host_states(CrawlId(99), NOW_MS, 3) == []

    on_store(story)


def test_lag_is_what_waits_at_each_place_and_how_long_the_oldest_has(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        overview = seen(t)
        nothing = await overview.lag(t.crawl_id, NOW_MS)
        assert [nothing.due, nothing.pending, nothing.in_flight] == [Waiting(0, None)] * 3

        await t.found(*links("a.test", range(6)), now_ms=NOW_MS)
        await t.found(*links("b.test", range(4)), now_ms=NOW_MS + 1_000)
        lag = await overview.lag(t.crawl_id, NOW_MS + 5_000)
        assert lag.due == Waiting(10, 5.0)

        rows = await t.lease_all([("a.test", 2), ("b.test", 4)], now_ms=NOW_MS + 6_000)
        begun = await t.lease("a.test", 1, now_ms=NOW_MS + 7_000)
        assert begun is not None
        await t.store.grant(t.fence, [begun.lease_id])
        t.fence = t.fence.next()
        lag = await overview.lag(t.crawl_id, NOW_MS + 10_000)
        assert lag.due == Waiting(3, 3.0), "a queue that was served is as old as that"
        assert lag.pending == Waiting(2, 4.0)
        assert lag.in_flight == Waiting(1, 3.0)

        await t.settle(rows[0], UrlState.WAITING, due_ms=NOW_MS + 60_000)
        await t.settle(begun, UrlState.DONE)
        lag = await overview.lag(t.crawl_id, NOW_MS + 10_000)
        assert (lag.due.count, lag.pending, lag.in_flight) == (3, Waiting(1, 4.0), Waiting(0, None))
        assert lag.positions[t.fence.partition] == t.position

    on_store(story)


def test_the_clusters_lag_is_that_of_the_crawls_that_are_under_way(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        overview = seen(t)
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        await t.found(*links("a.test", range(3)))
        await t.found(
            *(link(f"http://a.test/{n}", crawl_id=other.crawl_id) for n in range(2)),
            producer="v",
            crawl_id=other.crawl_id,
        )
        assert (await overview.lag(None, NOW_MS)).due.count == 5
        assert (await overview.lag(other.crawl_id, NOW_MS)).due.count == 2
        await t.store.set_state(t.crawl_id, CrawlState.FINISHED, "max_pages", NOW_MS)
        assert (await overview.lag(None, NOW_MS)).due.count == 2, "what is left of a crawl that is over"
        assert (await overview.lag(t.crawl_id, NOW_MS)).due.count == 0

    on_store(story)


@pytest.mark.parametrize("state", [CrawlState.CREATED, CrawlState.PAUSED, CrawlState.FINISHED])
def test_lag_of_a_crawl_that_does_not_run_has_shards_but_no_due_urls(on_store: OnStore, state: CrawlState) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links("a.test", range(3)))
        assert await t.lease("a.test", 1) is not None
        await t.store.set_state(t.crawl_id, state, None, NOW_MS)
        lag = await seen(t).lag(t.crawl_id, NOW_MS)
        assert (lag.due, lag.pending.count) == (Waiting(0, None), 1)
        of_all = await seen(t).lag(None, NOW_MS)
        assert (of_all.due.count, of_all.pending.count) == (0, int(state is CrawlState.PAUSED))

    on_store(story)


def test_lag_looks_at_a_bounded_number_of_queues_and_says_so(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUES", 5)

    async def story(t: Tables) -> None:
        for n in range(8):
            await t.found(link(f"http://h{n}.test/"), now_ms=NOW_MS - 1_000 * n)
        due = (await seen(t).lag(t.crawl_id, NOW_MS)).due
        assert due == Waiting(5, 7.0, more=True), "those are looked at that have waited longest"

    on_store(story)


def test_lag_of_many_crawls_takes_a_few_statements(on_store: OnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each part of each crawl took seconds, where a statement is a round trip."""
    monkeypatch.setattr(module, "_PARTS_AT_ONCE", 4)

    async def story(t: Tables) -> None:
        for n in range(10):
            crawl, _ = await t.store.put_crawl(f"c{n}", "{}", NOW_MS)
            urls = [link(f"http://h{m}.test/", crawl_id=crawl.crawl_id) for m in range(3)]
            await t.found(*urls, producer=f"p{n}", crawl_id=crawl.crawl_id, now_ms=NOW_MS - 1_000 * n)
        before = await seen(t).lag(None, NOW_MS)
        with statements() as taken:
            lag = await seen(t).lag(None, NOW_MS)
        assert (lag, lag.due) == (before, Waiting(30, 9.0))
        assert sum("queues" in each for each in taken) == 3, "ten parts, four at once"
        assert len([each for each in taken if each.startswith(("SELECT", "WITH"))]) <= 7

    on_store(story)


def test_nothing_that_a_request_reads_is_searched_for_row_by_row(new_tables: NewTables) -> None:
    wanted: list[tuple[TextClause, dict[str, Any], str]] = [
        (reading.TOP_HOSTS.clause, {"crawl_id": 1, "max_count": 10}, "queues_pages"),
        (module.OLDEST_QUEUES, {"crawl_id": 1, "partition": 3, "max_count": 10}, "queues_ready"),
        (module.LEASES, {"crawls": [1, 2]}, "leases_crawl"),
    ]

    async def story() -> None:
        async with new_tables() as t:
            await t.found(*(link(f"http://h{n}.test/") for n in range(300)))
            assert isinstance(t.store, SqlStore)
            for query, values, index in wanted:
                plan = await t.store.executor.read(lambda c, q=query, v=values: planned(c, q, v))  # type: ignore[misc]  # bound now
                assert f"{index}" in plan, plan

    asyncio.run(story())


def planned(connection: Connection, query: TextClause, values: dict[str, Any]) -> str:
    """The plan of a query. PostgreSQL reads few rows as they lie unless it is told that this is dear."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        connection.execute(text("SET LOCAL enable_bitmapscan = off"))
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
    lists = [name for name, value in values.items() if isinstance(value, list)]
    asked = text(explain + query.text).bindparams(*(bindparam(name, expanding=True) for name in lists))
    return "\n".join(" ".join(map(str, row)) for row in connection.execute(asked, values))


def test_standings_and_counters_are_those_of_every_crawl_that_is_not_deleted(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        overview = seen(t)
        await t.found(*links("a.test", range(3)))
        gone, _ = await t.store.put_crawl("gone", "{}", NOW_MS)
        await t.store.set_state(gone.crawl_id, CrawlState.DELETED, None, NOW_MS)
        [standing] = await overview.crawl_overviews()
        assert (standing.crawl_id, standing.name, standing.revision, standing.state) == (
            t.crawl_id, "docs", 1, CrawlState.SEEDING,
        )  # fmt: skip
        counted = await overview.counters([t.crawl_id, CrawlId(4711)])
        assert list(counted) == [t.crawl_id]
        assert counted[t.crawl_id] == await t.store.counters(t.crawl_id)
        assert await overview.counters([]) == {}

    on_store(story)


def test_new_dead_letters_are_found_behind_the_last_one_seen(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        overview = seen(t)
        assert await overview.newest_letter() == 0
        for n in range(5):
            await t.bury(DeadLetterRow(t.crawl_id, "url", NOW_MS, f"{n}", f"http://a.test/{n}"))
        letters = await overview.letters(0, 10)
        assert [letter.evidence for letter in letters] == list("01234")
        assert [letter.evidence for letter in await overview.letters(letters[2].id, 1)] == ["3"]
        assert await overview.newest_letter() == letters[-1].id

    on_store(story)


def test_the_audit_log_is_listed_newest_first_by_any_of_its_conditions(
    on_store: OnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCANNED", 4)
    ann, bob = Actor("a" * 16, "ann", "r1"), Actor("b" * 16, "ann (2)", "r2")
    acts = [
        (ann, "crawl.create", "docs"), (bob, "crawl.pause", "docs"), (ann, "key.create", "k"),
        (bob, "crawl.pause", "d"), (ann, "crawl.delete", "docs"), (ann, "crawls", "docs"), (bob, "key.revoke", "k"),
        (bob, "crawl.pause", "docs"),
    ]  # fmt: skip

    async def story(t: Tables) -> None:
        overview = seen(t)
        assert isinstance(t.store, SqlStore)
        for n, (actor, action, target) in enumerate(acts):
            await t.store.executor.write(
                lambda c, a=actor, v=action, o=target, n=n: record(c, a, v, o, None, "{}", NOW_MS + n)  # type: ignore[misc]  # bound now
            )

        async def found(which: AuditFilter, max_count: int = 3) -> list[int]:
            """The numbers of the acts, over pages that may be short."""
            places: list[int] = []
            before: int | None = END
            while before is not None:
                lines, before = await overview.audit(which, before=before, max_count=max_count)
                assert len(lines) <= max_count
                places += [line.at_ms - NOW_MS for line in lines]
            return places

        assert await found(AuditFilter()) == [7, 6, 5, 4, 3, 2, 1, 0]
        assert await found(AuditFilter(actor="ann")) == [5, 4, 2, 0], "a name that begins so is another name"
        assert await found(AuditFilter(actor="b" * 16)) == [7, 6, 3, 1]
        assert await found(AuditFilter(action="crawl.pause")) == [7, 3, 1]
        assert await found(AuditFilter(action="crawl.")) == [7, 4, 3, 1, 0]
        assert await found(AuditFilter(target="docs", actor="ann (2)")) == [7, 1]
        assert await found(AuditFilter(since_ms=NOW_MS + 2, until_ms=NOW_MS + 5)) == [4, 3, 2]
        assert await found(AuditFilter(target="nothing")) == []
        monkeypatch.undo()
        [line], _ = await overview.audit(AuditFilter(target="d"), before=END, max_count=10)
        assert (line.actor, line.request, line.action, line.before, line.after) == (
            str(bob), "r2", "crawl.pause", None, "{}",
        )  # fmt: skip

    on_store(story)


def test_lag_counts_every_partition(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        lag = await seen(t).lag(None, NOW_MS)
        assert set(lag.positions) == {Partition(p) for p in range(8)}

    on_store(story)
