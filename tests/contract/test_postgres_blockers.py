"""A session whose client stopped inside a statement keeps its locks; the transactions that wait for them end it."""

import asyncio

import pytest
from sqlalchemy import Connection, text

from shared.adapters.sql.engine.fence import pass_fence
from shared.adapters.sql.engine.postgres import PostgresPool, PostgresSettings, PostgresStore
from shared.domain.errors import Transient
from shared.domain.ids import Term
from tests.support.database.frozen_owner import waiting_for_a_lock
from tests.support.database.store_tables import PARTITION, Tables
from tests.support.engines.partial_statement import half_statement
from tests.support.engines.postgres import PATIENT, PostgresLook, PostgresServer, postgres_tables

HEIR = PostgresSettings(idle_in_transaction_s=0.5, lock_s=8.0, statement_s=10.0)
HASTY = PostgresSettings(idle_in_transaction_s=0.1, lock_s=1.5, statement_s=10.0)
TAKES_ROW = f"UPDATE partitions SET version = version + 1 WHERE partition = {PARTITION}"


async def heir_of(t: Tables, url: str, settings: PostgresSettings) -> Term:
    """Claim the partition under term 2, within the limits of a claim; the term that then owns it."""
    store = PostgresStore(PostgresPool(url, settings))
    try:
        return (await store.claim(PARTITION, Term(2))).fence.term
    finally:
        await store.close()


def url_of(t: Tables) -> str:
    assert isinstance(t.at, PostgresLook)
    return t.at.url


def test_a_client_stopped_inside_a_statement_holds_no_takeover_up(postgres_server: PostgresServer) -> None:
    async def story() -> None:
        async with postgres_tables(postgres_server) as t:
            limits = {"idle_in_transaction_session_timeout": "500", "statement_timeout": "500"}
            with half_statement(postgres_server, url_of(t), **limits) as stopped:
                stopped.run(TAKES_ROW)
                stopped.send_half("SELECT 1")
                still = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'ClientRead'"
                while not t.rows(still):  # noqa: ASYNC110  the server has no event for it
                    await asyncio.sleep(0)
                assert await heir_of(t, url_of(t), HEIR) == Term(2)
                assert stopped.ended()
            assert t.value("SELECT version FROM partitions WHERE partition = ?", PARTITION) == t.fence.version + 1

    asyncio.run(story())


def test_a_client_that_reads_no_result_holds_no_takeover_up(postgres_server: PostgresServer) -> None:
    async def story() -> None:
        async with postgres_tables(postgres_server) as t:
            with half_statement(postgres_server, url_of(t)) as stopped:
                stopped.run(TAKES_ROW)
                stopped.ask("SELECT repeat('x', 1000000) FROM generate_series(1, 100)")
                still = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
                while not t.rows(still):  # noqa: ASYNC110  the server has no event for it
                    await asyncio.sleep(0)
                assert await heir_of(t, url_of(t), HEIR) == Term(2)

    asyncio.run(story())


def test_a_session_that_executes_is_not_ended_by_a_claim(postgres_server: PostgresServer) -> None:
    async def story() -> None:
        async with postgres_tables(postgres_server) as t:
            t.rows("SELECT pg_advisory_lock(7)")

            def works(connection: Connection) -> None:
                pass_fence(connection, t.fence)
                connection.execute(text("SELECT pg_advisory_xact_lock(7)"))

            owner = PostgresPool(url_of(t), PATIENT)
            working = asyncio.create_task(owner.write(works))
            await waiting_for_a_lock(t)
            with pytest.raises(Transient, match="55P03"):
                await heir_of(t, url_of(t), HASTY)
            t.rows("SELECT pg_advisory_unlock(7)")
            await working
            await owner.close()
            assert t.value("SELECT version FROM partitions WHERE partition = ?", PARTITION) == t.fence.version + 1

    asyncio.run(story())


def test_a_silent_session_that_blocks_no_master_lives_on(postgres_server: PostgresServer) -> None:
    async def story() -> None:
        async with postgres_tables(postgres_server) as t:
            t.rows("SELECT pg_advisory_lock(7)")
            with half_statement(postgres_server, url_of(t)) as stopped:
                stopped.run("UPDATE partitions SET version = version WHERE partition = 1")
                stopped.send_half("SELECT 1")
                waiting = PostgresPool(url_of(t), HASTY)
                with pytest.raises(Transient, match="55P03"):
                    await waiting.write(lambda c: c.execute(text("SELECT pg_advisory_xact_lock(7)")).close())
                await waiting.close()
                assert not stopped.ended()

    asyncio.run(story())
