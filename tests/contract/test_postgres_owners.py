"""Owners on PostgreSQL: stopped inside a transaction, deposed while they wait, at work side by side or crosswise."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from shared.adapters.sql.engine.fence import pass_fence, take_over
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresSettings
from shared.adapters.sql.frontier import leasing
from shared.domain.errors import OwnershipLost, Transient
from shared.domain.frontier.store_model import Changes, LeaseRequest
from shared.domain.ids import LeaseId, Revision, Term
from tests.support.database.frozen_owner import LETTER, buries, letters, stopped, waiting_for_a_lock
from tests.support.database.store_tables import NOW_MS, OTHER, PARTITION, Tables, links
from tests.support.engines.postgres import PATIENT

QUICK = PostgresSettings(idle_in_transaction_s=2.0, lock_s=20, statement_s=20)


def test_owner_stopped_in_transaction_delays_no_takeover_and_no_write(
    on_postgres: Callable[..., None],
) -> None:
    async def story(t: Tables, url: str) -> None:
        await t.found(*links("a.example.com", range(3)))
        old = t.fence

        def begin(connection: Connection) -> None:
            pass_fence(connection, old)
            buries(connection)

        with stopped(url, begin, buries, QUICK) as owner:
            await owner.there()
            claimed = await t.claim(2)
            assert owner.outcome == "under way", "the takeover did not wait for it"
            assert claimed.fence.version == old.version + 1, "its transaction left nothing"
            await t.bury(LETTER)
            assert isinstance(await owner.go_on(), Transient)
        assert letters(t) == 1
        with pytest.raises(OwnershipLost):
            await t.store.apply(old, t.position, Changes(dead_letters=[LETTER]))
        with pytest.raises(OwnershipLost):
            await t.store.reload(PARTITION, Term(1))
        assert letters(t) == 1

    on_postgres(story)


def test_a_write_that_waits_behind_a_claim_is_refused_when_the_claim_commits(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        with stopped(url, lambda c: take_over(c, PARTITION, Term(2)), lambda c: None) as heir:
            await heir.there()
            late = asyncio.create_task(t.bury(LETTER))
            await waiting_for_a_lock(t)
            assert await heir.go_on() == "committed"
            with pytest.raises(OwnershipLost):
                await late
        assert letters(t) == 0

    on_postgres(story)


def test_a_claim_waits_for_a_write_that_passed_the_fence_before_and_loads_it(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        with stopped(url, lambda c: pass_fence(c, t.fence), buries) as owner:
            await owner.there()
            claim = asyncio.create_task(t.claim(2))
            await waiting_for_a_lock(t)
            assert await owner.go_on() == "committed"
            assert (await claim).fence.version == 3
        assert letters(t) == 1

    on_postgres(story)


def test_owners_of_different_partitions_write_at_once(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        there = await t.store.claim(OTHER, Term(1))
        other = Tables(t.store, t.at, t.crawl_id, there.fence)
        with stopped(url, lambda c: pass_fence(c, t.fence), buries) as owner:
            await owner.there()
            await other.found(*links("b.example.org", range(4)), producer="w2")
            row = await other.lease("b.example.org")
            assert row is not None
            assert len(row.order) == 4
            assert await owner.go_on() == "committed"
        assert letters(t) == 1
        assert (await t.store.counters(t.crawl_id)).leased == 4

    on_postgres(story)


def test_two_who_lock_rows_crosswise_both_commit(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        row = text("UPDATE partitions SET next_lease = next_lease + 1 WHERE partition = :p")
        pool = PostgresPool(url, PATIENT)
        with stopped(url, lambda c: c.execute(row, {"p": 0}), lambda c: c.execute(row, {"p": 1})) as one:
            await one.there()

            def crosswise(connection: Connection) -> None:
                connection.execute(row, {"p": 1})
                connection.execute(row, {"p": 0})

            other = asyncio.create_task(pool.write(crosswise))
            await waiting_for_a_lock(t)
            assert await one.go_on() == "committed"
            await other
        assert t.rows("SELECT next_lease FROM partitions WHERE partition < 2") == [(3,), (3,)]
        await pool.close()

    on_postgres(story)


def test_crawls_declared_at_once_are_one_crawl_with_every_revision(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        declared = await asyncio.gather(*(t.store.put_crawl("new", f'{{"n":{n}}}', NOW_MS) for n in range(4)))
        assert len({crawl.crawl_id for crawl, _ in declared}) == 1
        assert sorted(crawl.revision for crawl, _ in declared) == [1, 2, 3, 4]
        opened = await asyncio.gather(*(t.store.open_cluster(n, "", NOW_MS) for n in (2, 4)))
        assert {partitions for partitions, _ in opened} == {8}

    on_postgres(story)


def test_leasing_reads_only_what_it_takes_without_server_statistics(
    on_postgres: Callable[..., None],
) -> None:
    """Statistics are as old as the last ANALYZE, and a host may have grown to any size since."""

    async def story(t: Tables, url: str) -> None:
        pool = PostgresPool(url, PATIENT)
        unknown = text("ALTER TABLE urls SET (autovacuum_enabled = off)")
        await pool.write(lambda c: c.execute(unknown).close())
        await t.found(*links("a.example.com", range(5_000)))
        request = LeaseRequest(
            LeaseId(1), t.crawl_id, Revision(1), t.host_id("a.example.com"), "a.example.com", 0, "default", 0, 50
        )

        def lease(connection: Connection) -> tuple[int, int]:
            (row,) = leasing.dispatch(connection, t.fence, 2, [request], NOW_MS, {})
            read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'urls'"
            return len(row.order), connection.execute(text(read)).scalar_one()

        taken, read = await pool.write(lease)
        await pool.close()
        assert taken == 50
        assert taken <= read <= 3 * taken

    on_postgres(story)
