"""What a PostgreSQL server does to transactions: it dies, falls silent, refuses; and what its clients make of it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from api.cluster_main import open_store
from shared.adapters.sql.engine.fence import pass_fence
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresSettings, PostgresStore, patient_engine, patiently
from shared.domain.errors import Permanent, ResourceFull, Transient, Unusable
from shared.domain.frontier.store_model import DeadLetterRow
from shared.domain.ids import Term
from shared.runtime.retry import until_answered
from shared.settings import ClusterMasterSettings
from tests.support.database.frozen_owner import LETTER, buries, letters, stopped
from tests.support.database.store_tables import NOW_MS, PARTITION, Tables
from tests.support.engines.postgres import PostgresLook, PostgresServer, postgres, postgres_tables
from tests.support.engines.socket_proxy import cut_wire

SHORT = PostgresSettings(idle_in_transaction_s=1.8, lock_s=1.9, statement_s=2.0)
"""Limits that are to be reached, and yet leave a machine time to stand still for a moment before."""


def test_server_killed_in_transaction_is_transient_and_owner_resumes(
    postgres_programs: Path,
) -> None:
    with postgres(postgres_programs) as server:

        async def story() -> None:
            url = await server.database()
            store = await PostgresStore.open(url)
            await store.open_cluster(8, "", NOW_MS)
            crawl, _ = await store.put_crawl("docs", "{}", NOW_MS)
            fence = (await store.claim(PARTITION, Term(1))).fence
            with stopped(url, lambda c: pass_fence(c, fence), buries) as owner:
                await owner.there()
                server.kill()
                assert isinstance(await owner.go_on(), Transient)
            with pytest.raises(Transient):
                await store.reload(PARTITION, Term(1))
            with pytest.raises(Transient):
                await store.counters(crawl.crawl_id)
            server.start()
            again = await store.reload(PARTITION, Term(1))
            assert again.fence == fence.next()
            look = PostgresLook(url)
            t = Tables(store, look, crawl.crawl_id, again.fence)
            assert letters(t) == 0
            await t.bury(LETTER)
            assert letters(t) == 1
            look.close()
            await store.close()

        asyncio.run(story())


def test_a_commit_whose_answer_is_lost_is_transient_and_not_done_twice(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """The transaction is committed, its owner cannot know: it loads again and finds it."""

    async def story() -> None:
        async with (
            postgres_tables(postgres_server) as t,
            cut_wire(tmp_path, f"unix:{postgres_server.socket}") as wire,
        ):
            (tmp_path / postgres_server.socket.name).symlink_to("wire")
            assert isinstance(t.at, PostgresLook)
            behind = PostgresStore(PostgresPool(t.at.url.replace(str(postgres_server.folder), str(tmp_path))))
            runs = 0

            def transaction(connection: Connection) -> None:
                nonlocal runs
                runs += 1
                pass_fence(connection, t.fence)
                buries(connection)
                wire.withhold()

            writing = asyncio.create_task(behind.executor.write(transaction))
            while not letters(t):  # noqa: ASYNC110  only the server knows
                await asyncio.sleep(0)
            wire.cut()
            with pytest.raises(Transient):
                await writing
            assert runs == 1
            again = await behind.reload(PARTITION, Term(1))
            assert again.fence.version == t.fence.version + 2
            assert letters(t) == 1
            await behind.close()

    asyncio.run(story())


@pytest.mark.long
def test_a_server_that_falls_silent_is_transient(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Nothing is cut, nothing answers: neither the statement, nor the rollback, nor the end of the session."""

    async def story() -> None:
        async with (
            postgres_tables(postgres_server) as t,
            cut_wire(tmp_path, f"unix:{postgres_server.socket}") as wire,
        ):
            (tmp_path / postgres_server.socket.name).symlink_to("wire")
            assert isinstance(t.at, PostgresLook)
            settings = replace(SHORT, answer_s=0.1, connect_s=2.0)
            pool = PostgresPool(t.at.url.replace(str(postgres_server.folder), str(tmp_path)), settings)

            def transaction(connection: Connection) -> None:
                pass_fence(connection, t.fence)
                wire.withhold()
                buries(connection)

            with pytest.raises(Transient):
                await pool.write(transaction)
            with pytest.raises(Transient):
                await pool.read(lambda c: c.execute(text("SELECT 1")).close())
            wire.cut()
            await until_answered(lambda: pool.read(lambda c: c.execute(text("SELECT 1")).close()))
            await pool.close()
            assert letters(t) == 0
            await t.store.reload(PARTITION, Term(1))

    asyncio.run(story())


@pytest.mark.long
def test_closing_does_not_wait_for_a_server_that_stands_still(postgres_server: PostgresServer) -> None:
    """Session after session, each for as long as a statement may take: three of them would take most of a minute."""

    async def story() -> None:
        url = await postgres_server.database()
        pool, patient = PostgresPool(url), patient_engine(url)
        await asyncio.gather(*(pool.read(lambda c: c.execute(text("SELECT pg_sleep(0.2)")).close()) for _ in range(3)))
        async with patiently(patient) as transaction:
            await transaction.read(lambda c: c.execute(text("SELECT 1")).close())
        with postgres_server.stopped():
            async with asyncio.timeout(30):
                await pool.close()
                await patient.dispose()

    asyncio.run(story())


def raises(code: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END $$"


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_transaction_that_met_another_runs_again_as_a_whole(on_postgres: Callable[..., None], code: str) -> None:
    async def story(t: Tables, url: str) -> None:
        runs = 0

        def meets(times: int) -> Callable[[Connection], None]:
            def transaction(connection: Connection) -> None:
                nonlocal runs
                runs += 1
                pass_fence(connection, t.fence)
                buries(connection)
                if runs <= times:
                    connection.execute(text(raises(code)))

            return transaction

        pool = PostgresPool(url, PostgresSettings(tries=3))
        await pool.write(meets(2))
        assert (runs, letters(t)) == (3, 1)
        t.fence, runs = t.fence.next(), 0
        with pytest.raises(Transient, match="planted"):
            await pool.write(meets(9))
        assert (runs, letters(t)) == (3, 1)
        await pool.close()

    on_postgres(story)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT pg_sleep(60)", Transient),
        (raises("57P01"), Transient),
        (raises("25006"), Transient),
        (raises("53300"), Transient),
        (raises("40003"), Transient),
        ("INSERT INTO partitions (partition) VALUES (0)", Permanent),
        ("INSERT INTO partitions (partition) VALUES (NULL)", Permanent),
        ("INSERT INTO partitions (partition) VALUES (99999999999)", Permanent),
        ("SELEKT", Permanent),
        (raises("53100"), ResourceFull),
        (raises("XX001"), Unusable),
        ("SELECT * FROM no_such_table", Unusable),
    ],
)
def test_what_the_server_says_becomes_what_to_do(
    on_postgres: Callable[..., None], statement: str, error: type[Exception]
) -> None:

    async def story(t: Tables, url: str) -> None:
        pool = PostgresPool(url, replace(SHORT, tries=2))
        with pytest.raises(error) as caught:
            await pool.write(lambda c: c.execute(text(statement)).close())
        assert type(caught.value) is error
        await pool.write(buries)
        assert letters(t) == 1
        await pool.close()

    on_postgres(story)


def test_a_lock_that_is_held_too_long_is_transient(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        hasty = PostgresPool(url, replace(SHORT, statement_s=20))

        def transaction(connection: Connection) -> None:
            pass_fence(connection, t.fence)
            buries(connection)

        with stopped(url, lambda c: pass_fence(c, t.fence), lambda c: None) as owner:
            await owner.there()
            with pytest.raises(Transient, match="55P03"):
                await hasty.write(transaction)
            assert await owner.go_on() == "committed"
        await hasty.close()
        assert letters(t) == 0

    on_postgres(story)


def test_absent_server_is_transient_and_wrong_address_unusable(postgres_server: PostgresServer, tmp_path: Path) -> None:
    async def story() -> None:
        for url, error in (
            (f"postgresql://orb@/orb?host={tmp_path}", Transient),
            (postgres_server.url("no_such_database"), Unusable),
            (postgres_server.url().replace("orb@", "nobody_known@"), Unusable),
            ("mysql://orb@localhost/orb", Unusable),
        ):
            with pytest.raises(error):
                await PostgresStore.open(url)

    asyncio.run(story())


def test_exhausted_pool_is_transient_and_names_its_holders(
    on_postgres: Callable[..., None],
) -> None:
    async def story(t: Tables, url: str) -> None:
        pool = PostgresPool(url, replace(SHORT, writers=1))
        t.rows("SELECT pg_advisory_lock(1)")

        def keeps_it(connection: Connection) -> None:
            for limit in ("lock_timeout", "statement_timeout"):
                connection.execute(text(f"SET LOCAL {limit} = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(1)"))

        keeping = asyncio.create_task(pool.write(keeps_it))
        while not t.rows("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            assert not keeping.done(), keeping
            await asyncio.sleep(0)
        with pytest.raises(Transient, match=r"within 2 s; taken by test_postgres.py:\d+ \(.*keeps_it\) for \d"):
            await pool.write(lambda c: None)
        t.rows("SELECT pg_advisory_unlock(1)")
        await keeping
        await pool.write(lambda c: None)
        await pool.close()

    on_postgres(story)


def test_a_master_holds_as_many_connections_as_it_is_told(postgres_server: PostgresServer) -> None:
    async def story() -> None:
        settings = ClusterMasterSettings(
            id="m1", etcd="http://nowhere:1", nats_url="nats://nowhere:1", database=await postgres_server.database(),
            database_writers=3, database_readers=2,
        )  # fmt: skip
        store, _ = await open_store(settings)
        try:
            assert "3 writers and 2 readers" in repr(store)
            ours = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            sessions = f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"
            sleeping = "SELECT pg_sleep(0.05)"
            await asyncio.gather(
                *(store.executor.write(lambda c: c.execute(text(sleeping)).close()) for _ in range(12))
            )
            async with asyncio.timeout(30):  # the one that migrated may take a moment to leave
                while await store.executor.read(lambda c: c.execute(text(sessions)).scalar_one()) != 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await store.close()

    asyncio.run(story())


def test_limits_under_which_no_takeover_could_succeed_are_refused() -> None:
    with pytest.raises(ValueError, match="takeover"):
        PostgresSettings(idle_in_transaction_s=6, lock_s=5)


def test_nul_characters_are_stored_as_the_replacement_character(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        await t.bury(DeadLetterRow(None, "url", NOW_MS, "a\0b", url="http://a/\0"))
        assert t.rows("SELECT evidence, url FROM dead_letters") == [("a\ufffdb", "http://a/\ufffd")]

    on_postgres(story)
