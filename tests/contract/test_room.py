"""How full a PostgreSQL database is."""

from collections.abc import Callable

from sqlalchemy import text

from shared.adapters.sql.room import size_of
from shared.adapters.sql.store import SqlStore
from tests.support.tables import Tables

BALLAST = text("CREATE TABLE ballast AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i")


def test_a_database_is_as_full_as_its_size_of_what_it_was_given(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        assert isinstance(t.store, SqlStore)
        gauge = size_of(t.store.executor, 1 << 40)
        before = await gauge()
        assert before is not None
        assert before.most == 1 << 40
        await t.store.executor.write(
            lambda c: c.execute(
                text("CREATE TABLE ballast AS SELECT repeat(md5(i::text), 30) FROM generate_series(1, 4000) i")
            )
        )
        after = await gauge()
        assert after is not None
        assert after.used - before.used > 1 << 20

    on_postgres(story)
