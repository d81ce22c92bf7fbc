"""How full a PostgreSQL database is."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from shared.adapters.sql.engine import full_disk as module
from shared.adapters.sql.engine.postgres import database_gauge
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.errors import ResourceFull
from shared.domain.ops.watermarks import OF_STORAGE, PressureState, Resource
from tests.support.database.store_tables import Tables


def test_a_database_is_as_full_as_its_size_of_what_it_was_given(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        assert isinstance(t.store, SqlStore)
        gauge = database_gauge(t.store.executor, 1 << 40)
        before = await gauge()
        assert before is not None
        assert before.capacity == 1 << 40
        await t.store.executor.write(
            lambda c: c.execute(
                text("CREATE TABLE ballast AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i")
            )
        )
        after = await gauge()
        assert after is not None
        assert after.used - before.used > 1 << 20

    on_postgres(story)


def test_full_database_reports_pressure_until_a_write_succeeds(
    on_postgres: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tries is told to wait, and nothing is given up for it."""
    refusing = text("DO $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$")

    async def story(t: Tables, url: str) -> None:
        assert isinstance(t.store, SqlStore)
        executor = t.store.executor
        gauge, shortages = database_gauge(executor, 0), PressureState()

        async def looked() -> bool:
            level = await gauge()
            assert level is not None
            return shortages.observe(Resource.DATABASE, level, OF_STORAGE)

        assert not await looked()
        with pytest.raises(ResourceFull, match="disk is full: make room"):
            await executor.write(lambda c: c.execute(refusing).close())
        assert await looked()
        assert shortages.reason == (
            "the database takes no more, as its disk is full; it goes on by itself when there is room"
        )
        monkeypatch.setattr(module, "FULL_S", 0.0)
        assert await looked()
        assert shortages.reason is None

    on_postgres(story)
