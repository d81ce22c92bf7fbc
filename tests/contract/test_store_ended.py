"""The store's promises to the leader about crawls that are over: collected until done, reopened where needed."""

from collections.abc import Callable

import pytest

from shared.domain.command import collection_of
from shared.domain.crawl_state import CANCELLED, COMPLETE
from shared.domain.frontier import CrawlState
from shared.domain.ids import Partition
from tests.support.tables import NOW_MS, PARTITION, Tables, links

OnStore = Callable[..., None]


def test_a_deleted_crawl_is_named_until_every_partition_has_removed_its_rows(on_store: OnStore) -> None:
    async def story(t: Tables) -> None:
        other, _ = await t.store.put_crawl("other", "{}", NOW_MS)
        await t.found(*links("a.example.com", range(3)))
        assert await t.store.uncollected() == {}
        await t.store.set_state(t.crawl_id, CrawlState.DELETED, None, NOW_MS)
        assert await t.store.uncollected() == {t.crawl_id: [Partition(p) for p in range(8)]}
        await t.command("delete", id=collection_of(t.crawl_id))
        assert await t.store.uncollected() == {t.crawl_id: [Partition(p) for p in range(8) if p != PARTITION]}
        await t.store.collected(t.crawl_id, NOW_MS)
        assert await t.store.uncollected() == {}
        await t.store.set_state(other.crawl_id, CrawlState.DELETED, None, NOW_MS)
        assert list(await t.store.uncollected()) == [other.crawl_id]

    on_store(story)


@pytest.mark.parametrize(
    ("state", "reason", "reopens"),
    [
        (CrawlState.FINISHED, COMPLETE, True),
        (CrawlState.FINISHED, CANCELLED, False),
        (CrawlState.FINISHED, "max_pages", False),
        (CrawlState.PAUSED, None, False),
    ],
)
def test_a_crawl_runs_again_when_it_was_complete_and_something_is_queued(
    on_store: OnStore, state: CrawlState, reason: str | None, reopens: bool
) -> None:
    async def story(t: Tables) -> None:
        await t.store.set_state(t.crawl_id, state, reason, NOW_MS)
        assert await t.store.reopen() == [], "there is nothing to do"
        await t.found(*links("a.example.com", range(2)))
        assert await t.store.reopen() == ([t.crawl_id] if reopens else [])
        row = await t.store.crawl(t.crawl_id)
        assert row is not None
        if reopens:
            assert (row.state, row.finished_reason, row.finished_at_ms) == (CrawlState.RUNNING, None, None)
        else:
            assert (row.state, row.finished_reason) == (state, reason)
        assert await t.store.reopen() == []

    on_store(story)
