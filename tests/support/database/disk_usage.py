"""What the frontier's tables take on disk."""

from dataclasses import dataclass

from sqlalchemy import Connection, text

from shared.adapters.sql.frontier.store import SqlStore

_SQLITE = text("SELECT name, pgsize AS bytes, payload FROM dbstat WHERE aggregate = TRUE")
_POSTGRESQL = text(
    "SELECT relname AS name, pg_relation_size(oid) AS bytes, 0 AS payload FROM pg_class"
    " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')"
)
_COUNTED = text("SELECT sum(discovered) AS known, sum(fetches) AS fetched FROM crawl_counters")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of `urls` and its indexes a URL, of `fetches` a fetched one; `parts`: bytes by table and index.

    A URL that was fetched keeps its row in `urls`, and leaves the index of what is queued.
    """

    known: float
    fetched: float
    parts: dict[str, int]


async def footprint(store: SqlStore) -> Footprint:
    """The tables' sizes as the engine tells them."""
    return await store.executor.read(_footprint)


def _footprint(connection: Connection) -> Footprint:
    rows = connection.execute(_SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL).all()
    parts = {row.name: int(row.bytes) for row in rows if row.bytes}

    def of(table: str) -> int:
        return sum(size for name, size in parts.items() if name == table or name.startswith(f"{table}_"))

    sums = connection.execute(
        text("SELECT sum(discovered) AS known, sum(fetches) AS fetched FROM crawl_counters")
    ).one()
    return Footprint(of("urls") / max(1, int(sums.known)), of("fetches") / max(1, int(sums.fetched)), parts)
