"""Whole walks of retention over the tables of a test, under short retention times."""

from typing import Final

from shared.adapters.sql.admin.retention import SqlRetained
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.ops.retention import DAY_MS, RetainedKind, Retention
from tests.support.database.store_tables import NOW_MS, Tables

LATER_MS: Final = NOW_MS + 1000 * DAY_MS
RULES: Final = Retention(
    audit_days=10,
    commands_days=10,
    revisions=3,
    deleted_crawls_days=10,
    dead_letters_days=10,
    producers_days=28,
    uploads_days=10,
    revoked_keys_days=10,
    hosts_days=10,
    changes_days=10,
)


async def walked(t: Tables, what: RetainedKind, now_ms: int = LATER_MS) -> list[int]:
    """Return the number of rows that each pass of a whole walk removed."""
    assert isinstance(t.store, SqlStore)
    retained, place, passes = SqlRetained(t.store.executor), "", []
    while True:
        forgotten = await retained.forget(what, RULES, now_ms, place)
        passes.append(forgotten.rows)
        place = forgotten.place
        if not place:
            return passes
        assert len(passes) < 100, "it goes on for ever"
