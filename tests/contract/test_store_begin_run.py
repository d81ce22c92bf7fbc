"""A run of a crawl begins with outages counted anew; asked to, with nothing left alone."""

from collections.abc import Callable

import pytest

from shared.domain.frontier.states import UrlState
from shared.domain.frontier.store_model import Changes, HostChange
from tests.support.database.store_tables import NOW_MS, Tables, links

OnStore = Callable[..., None]
HOST = "a.example.com"
LATER_MS = NOW_MS + 86_400_000


@pytest.mark.parametrize("unblock", [False, True])
def test_run_begins_with_outages_anew_and_blocks_lifted_if_asked(on_store: OnStore, unblock: bool) -> None:
    async def story(t: Tables) -> None:
        await t.found(*links(HOST, range(2)))
        row = await t.lease(HOST, 1)
        assert row is not None
        await t.settle(row, UrlState.WAITING, due_ms=LATER_MS, reason="http_503")
        host_id = t.host_id(HOST)
        change = HostChange(
            host_id, 0, 0, 4, 3, NOW_MS, "connect", LATER_MS, NOW_MS, None, silent_since_ms=NOW_MS - 5_000
        )
        await t.apply(Changes(hosts={host_id: change}))
        await t.store.begin_run(t.crawl_id, NOW_MS, unblock=unblock)
        until_ms = NOW_MS if unblock else LATER_MS
        assert t.rows("SELECT silent_since_ms, failures, blocked_until_ms FROM hosts") == [
            (0, 4, 0 if unblock else LATER_MS)
        ]
        assert (await t.queue(HOST)).next_due_ms == until_ms
        assert t.rows("SELECT rank FROM urls WHERE state = 1") == [(until_ms,)]
        assert await t.promote(HOST, NOW_MS) == int(unblock)

    on_store(story)
