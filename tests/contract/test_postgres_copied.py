"""New links of a large batch go to PostgreSQL by COPY, and mean what they mean in small ones."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text

from shared.adapters.sql.engine import schema
from shared.adapters.sql.engine.bulk import COPIED_FROM, inserting
from shared.adapters.sql.frontier.discoveries import INSERT_URL
from shared.domain.errors import Permanent
from shared.domain.frontier.store_model import DiscoveredLink
from tests.support.database.frozen_owner import stopped, waiting_for_a_lock
from tests.support.database.query_plans import recorded
from tests.support.database.store_tables import Tables, books, link

HOST = "a.example.com"
MANY, FEW = COPIED_FROM, COPIED_FROM - 1


def found_links(n: int, depth: int = 1) -> list[DiscoveredLink]:
    return [link(f"https://{HOST}/{i}?é=漢", depth) for i in range(n)]


@pytest.mark.parametrize("n", [FEW, MANY])
def test_a_batch_of_either_size_makes_the_same_rows(on_postgres: Callable[..., None], n: int) -> None:
    async def story(t: Tables, url: str) -> None:
        with recorded() as sent:
            found = await t.found(*found_links(n))
        assert any(statement.startswith("INSERT INTO urls ") for statement in sent) == (n == FEW)
        assert (found.new, found.known) == (n, 0)
        for one in (found_links(n)[0], found_links(n)[-1]):
            row = t.url(one)
            assert row.pop("rank") > 0
            assert row.pop("url") == one.url.removeprefix(f"https://{HOST}")
            assert (row.pop("state"), row.pop("depth"), row.pop("hops")) == (0, 1, 0)
            assert (row.pop("attempts"), row.pop("flags")) == (0, 0)
            assert not any(row.values()), row
        again = await t.found(*found_links(n))
        assert (again.new, again.known) == (0, n)
        assert books(t.at) == []

    on_postgres(story)


def test_row_inserted_meanwhile_is_known_when_batch_repeats(
    on_postgres: Callable[..., None],
) -> None:
    async def story(t: Tables, url: str) -> None:
        first, *rest = found_links(MANY)
        await t.found(link(f"https://{HOST}/"))
        host_id = t.host_id(HOST)

        def inserts(connection: Connection) -> None:
            row = (t.crawl_id, host_id, first.fingerprint, "/", 1, 0, 0, 5, None, None, 0, 0, 0)
            inserting(schema.urls, INSERT_URL.columns).run(connection, [row])
            connection.execute(text("UPDATE queues SET queued = queued + 1"))
            found = ", ".join(f"{name} = {name} + 1" for name in ("discovered", "queued", "accepted", "new"))
            connection.execute(text(f"UPDATE crawl_counters SET {found}"))

        with stopped(url, inserts, lambda c: None) as other:
            await other.there()
            applied = asyncio.create_task(t.found(first, *rest))
            await waiting_for_a_lock(t)
            assert await other.go_on() == "committed"
            found = await applied
        assert (found.new, found.known) == (MANY - 1, 1)

    on_postgres(story)


def test_number_beyond_column_fails_batch_and_leaves_nothing(on_postgres: Callable[..., None]) -> None:
    async def story(t: Tables, url: str) -> None:
        with pytest.raises(Permanent, match="does not fit its column"):
            await t.found(*found_links(MANY, depth=1 << 20))
        assert t.rows("SELECT 1 FROM urls") == []
        t.sent.clear()
        assert (await t.found(*found_links(MANY))).new == MANY, "the connection can be used again"

    on_postgres(story)
